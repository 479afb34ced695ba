"""Finds the text and label columns of a dataset for classifying."""

from collections.abc import Iterator, Mapping
from shlex import quote

from holdfast.core.data_warnings import DataWarning, data_warning
from holdfast.core.errors import set_to
from holdfast.core.plan import Choice
from holdfast.data import names
from holdfast.data.data_request import DataRequest
from holdfast.data.label_forms import LabelForm, find_label_form, form_of_columns
from holdfast.data.layout import ColumnLayout
from holdfast.data.profile import ColumnProfile

Profiles = Mapping[str, ColumnProfile]

_SECOND = ("sentence2", "question2", "text2", "hypothesis", "sent2")
_TITLES = ("title", "headline", "subject")


def by_names(request: DataRequest, profiles: Profiles) -> ColumnLayout | None:
    """A text column and a label column, known by their names or requested."""
    label = _label_by_name(request, profiles)
    if not label:
        return None
    text = _text_columns(request, profiles, label.value)
    return _layout(request, profiles, text, label) if text else None


def by_values(request: DataRequest, profiles: Profiles) -> ColumnLayout | None:
    """A text column, and a label column known by its values."""
    text = _text_columns(request, profiles, "")
    if not text:
        return None
    others = [profile for name, profile in profiles.items() if name not in text[0] and not names.is_identity(name)]
    zero_one = [profile for profile in others if profile.is_zero_one and profile.name != request.label_column]
    if len(zero_one) > 1:
        form, choice = form_of_columns(zero_one, request.multi_label)
        return _finished(request, profiles, text, form, {"labels": choice})
    likely = [profile for profile in others if profile.looks_like_labels]
    if not likely:
        return None
    best = min(likely, key=lambda profile: profile.distinct)
    because = f"{best.distinct:,} different values in {best.filled:,} rows"
    if len(likely) > 1:
        because += f"; fewer than in {', '.join(repr(one.name) for one in likely if one is not best)}"
    return _layout(request, profiles, text, Choice(best.name, because))


def pairs_with_labels(request: DataRequest, profiles: Profiles) -> ColumnLayout | None:
    """Two texts that are classified together, such as a premise and a hypothesis."""
    columns = tuple(profiles)
    first, second = names.find(names.QUERY, columns), names.find(_SECOND, columns)
    label = _label_by_name(request, profiles)
    if not first or not second or not label or request.text_columns:
        return None
    if not (profiles[label.value].looks_like_labels or request.label_column):
        return None
    text = ((first, second), f"{first!r} and {second!r} are classified together, joined by a line break")
    return _layout(request, profiles, text, label)


def _label_by_name(request: DataRequest, profiles: Profiles) -> Choice[str] | None:
    if request.label_column:
        return Choice(request.label_column, "as requested")
    columns = tuple(column for column in profiles if column not in request.text_columns)
    named = [column for name in names.LABEL if (column := names.find((name,), columns))]
    spelled = names.find(("label_text", "label_name"), columns)
    numbered = profiles[named[0]] if named and profiles[named[0]].kinds == {"number"} else None
    if spelled and numbered and profiles[spelled].distinct == numbered.distinct:
        return Choice(spelled, f"the names of the numbers in {numbered.name!r}")
    fitting = [column for column in named if _may_hold_labels(profiles[column])]
    strong = [column for column in fitting if names.plain_name(column) not in names.WEAK_LABEL]
    weak = [column for column in fitting if profiles[column].looks_like_labels]
    if weak and sum(profile.is_zero_one for profile in profiles.values()) > 1 and profiles[weak[0]].is_zero_one:
        weak = []  # one of several columns of 0 and 1, each of them a label
    chosen = strong[0] if strong else weak[0] if weak else None
    return Choice(chosen, f"named {chosen!r}") if chosen else None


def _may_hold_labels(profile: ColumnProfile) -> bool:
    """Joined labels may have many different values; running text and objects cannot be labels."""
    return "object" not in profile.kinds and profile.mean_characters <= 200


def _text_columns(request: DataRequest, profiles: Profiles, label: str) -> tuple[tuple[str, ...], str] | None:
    if request.text_columns:
        joined = ", joined by a line break" if len(request.text_columns) > 1 else ""
        return request.text_columns, f"as requested{joined}"
    columns = tuple(column for column in profiles if column != label)
    for name in names.TEXT:
        column = names.find((name,), columns)
        if column and profiles[column].kinds <= {"text", "number"}:
            return (column,), f"named {column!r}"
    texts = [profiles[column] for column in columns if not names.is_identity(column)]
    texts = [profile for profile in texts if profile.looks_like_text or profile.kinds == {"text"}]
    if not texts:
        return None
    best = max(texts, key=lambda profile: (profile.mean_characters, profile.distinct))
    if best.is_zero_one or (best.looks_like_labels and best.mean_words < 1.5 and not label):
        return None
    return (best.name,), f"has the longest texts, {best.mean_characters:.0f} characters on average"


def _layout(
    request: DataRequest, profiles: Profiles, text: tuple[tuple[str, ...], str], label: Choice[str]
) -> ColumnLayout | None:
    if label.value in text[0]:
        return None
    form, choice = find_label_form(profiles[label.value], request.multi_label)
    return _finished(request, profiles, text, form, {"label column": label, "labels": choice})


def _finished(
    request: DataRequest,
    profiles: Profiles,
    text: tuple[tuple[str, ...], str],
    form: LabelForm,
    choices: Mapping[str, Choice[str]],
) -> ColumnLayout:
    columns, because = text
    roles: dict[str, tuple[str, ...]] = {"text": columns, "label": form.columns}
    if request.group_column:
        roles["group"] = (request.group_column,)
    labels = choices["labels"]
    return ColumnLayout(
        task="classify",
        form=labels.value,
        roles=roles,
        choices={
            "form": Choice(
                labels.value,
                f"text in {' + '.join(map(repr, columns))}, labels in {', '.join(map(repr, form.columns[:4]))}",
            ),
            "text column": Choice(" + ".join(columns), because),
            **choices,
        },
        labels=form,
        warnings=tuple(_unread_title(profiles, columns, form)),
    )


def _unread_title(profiles: Profiles, text: tuple[str, ...], form: LabelForm) -> Iterator[DataWarning]:
    """Name a title that could be read along with the text."""
    title = names.find(_TITLES, tuple(profiles))
    if len(text) == 1 and title and title not in (*text, *form.columns) and profiles[title].looks_like_text:
        both = f"{quote(title)} --text-column {quote(text[0])}"
        yield data_warning("unread-title", set_to("text_column", placeholder=both, note="reads both"), column=title)
