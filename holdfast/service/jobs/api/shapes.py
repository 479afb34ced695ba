"""What goes into the API. A field that is not known is refused, so that a typo is not an answer."""

from typing import Annotated, Any, Literal

from ninja import Schema
from pydantic import AfterValidator, ConfigDict, Field

from holdfast.service.jobs.api.json_text import is_storable

Json = dict[str, Any]
Id = Annotated[int, Field(ge=1, le=2**63 - 1)]


def _storable(text: str) -> str:
    if not is_storable(text):
        raise ValueError("it holds characters that no text has")
    return text


Text = Annotated[str, AfterValidator(_storable), Field(max_length=200)]
LongText = Annotated[str, AfterValidator(_storable), Field(max_length=20_000)]
State = Literal["queued", "running", "planned", "finished", "failed", "stopped"]
Goal = Literal["plan", "model"]
Cursor = Annotated[int | None, Field(ge=1, le=2**63 - 1, description="`next` of the page before.")]
Limit = Annotated[int, Field(ge=1, le=200)]


class Given(Schema):
    """Something that is sent."""

    model_config = ConfigDict(extra="forbid")


class UploadGiven(Given):
    """What is said of an upload; its name otherwise comes from the file."""

    name: Text = ""
    team: Text = ""


class SubmitGiven(Given):
    """A run to be made. `settings` are those of `holdfast train`, without paths."""

    dataset: Id | None = None
    from_model: Id | None = None
    validation: Id | None = None
    test: Id | None = None
    negatives: Id | None = None
    settings: Json = Field(default_factory=dict)
    name: Text = ""
    goal: Goal = "plan"
    team: Text | None = None
    priority: Annotated[int, Field(ge=-100, le=100)] = 0


class RetryGiven(Given):
    """The same run again; what is null is taken back, also in `settings`; what is left out stays."""

    validation: Id | None = None
    test: Id | None = None
    negatives: Id | None = None
    settings: Json = Field(default_factory=dict)
    name: Text = ""
    goal: Goal | None = None


class ChoicesGiven(Given):
    """How a dataset is to be read; what is left out is found out."""

    choices: Json


class NameGiven(Given):
    """Another name."""

    name: Text


class TextsGiven(Given):
    """Texts for a model."""

    texts: Annotated[list[LongText], Field(min_length=1, max_length=32)]


class TokenGiven(Given):
    """A token to be made."""

    name: Text
    may_write: bool = True
    days: Annotated[int | None, Field(ge=1, le=3650)] = None


class SecretGiven(Given):
    """A secret to be kept."""

    name: Text
    value: LongText


class HookGiven(Given):
    """Where somebody wants to hear of their runs."""

    kind: Literal["webhook", "email"]
    target: Annotated[str, AfterValidator(_storable), Field(max_length=500)]
    on_finish: bool = True
    on_trouble: bool = True
