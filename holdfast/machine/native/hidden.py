"""Packages that import others unasked, so that a library is loaded although no script names it."""

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.core.facts import MachineFacts


@dataclass(frozen=True, slots=True)
class HiddenImport:
    """A package that imports another one whenever that is installed."""

    importer: str
    imported: str
    why: str


_HIDDEN = (
    HiddenImport("pandas", "pyarrow", "pandas imports pyarrow when it is installed"),
    HiddenImport("lightgbm", "scikit-learn", "lightgbm imports scikit-learn when it is installed"),
    HiddenImport("xgboost", "scikit-learn", "xgboost imports scikit-learn when it is installed"),
    HiddenImport("xgboost-cpu", "scikit-learn", "xgboost imports scikit-learn when it is installed"),
    HiddenImport("transformers", "tensorflow", "transformers 4 may import tensorflow when it is installed"),
)


def hidden_imports(distributions: Mapping[str, str]) -> tuple[HiddenImport, ...]:
    """The imports that happen without being written in the user's script, among what is installed."""
    installed = MachineFacts(distributions=distributions)
    return tuple(
        hidden
        for hidden in _HIDDEN
        if hidden.importer in distributions
        and hidden.imported in distributions
        and (hidden.importer != "transformers" or installed.has_below("transformers", "5"))
    )
