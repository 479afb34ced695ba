"""What the columns of a dataset are for: the task, its form, and the role of each column."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.core.data_warnings import DataWarning
from holdfast.core.facts import Task
from holdfast.core.plan import Choice
from holdfast.data.label_forms import LabelForm

Roles = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnLayout:
    """One way to read a dataset, with the reason for every choice."""

    task: Task
    form: str
    roles: Roles  # "text", "label", "prompt", "answer", "query", "positive", ... -> columns
    choices: Mapping[str, Choice[str]] = field(default_factory=dict)
    labels: LabelForm | None = None
    warnings: tuple[DataWarning, ...] = ()

    def column(self, role: str) -> str | None:
        """The first column of a role."""
        columns = self.roles.get(role, ())
        return columns[0] if columns else None

    @property
    def used(self) -> tuple[str, ...]:
        """Every column that is read."""
        return tuple(column for columns in self.roles.values() for column in columns)
