"""Finds the task and the columns, by their names first and by their values where names do not decide.

Every way to read the columns is tried, the most telling first. The first one that fits is used; a warning names an
equally good one for another task.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from shlex import quote

from holdfast.core.data_warnings import DataWarning, data_warning
from holdfast.core.errors import RequestError, set_to
from holdfast.core.facts import Task
from holdfast.core.plan import Choice
from holdfast.core.text import closest
from holdfast.data import names
from holdfast.data.data_request import DataRequest
from holdfast.data.label_forms import LabelForm, find_label_form, form_of_columns
from holdfast.data.layout import ColumnLayout
from holdfast.data.profile import ColumnProfile

Profiles = Mapping[str, ColumnProfile]
Finder = Callable[[DataRequest, Profiles], ColumnLayout | None]
Names = tuple[str, ...]

# Rows per article, on average, that make pairs of passages; fewer where only the first values were counted.
_REPEATS, _EARLY_REPEATS = 2.0, 1.2
_STRONG_POSITIVE = ("positive", "pos", "positives", "positive_passages", "positive_ctxs", "passage", "passages")
_WEAK_POSITIVE = tuple(name for name in names.POSITIVE if name != "answer")
_STRONG_ANSWER = ("completion", "response", "output", "chosen", "reply")
_SECOND = ("sentence2", "question2", "text2", "hypothesis", "sent2")
AS_TEXT = set_to("task", "causal", note="trains a language model on the text")
_TITLES = ("title", "headline", "subject")


def detect(request: DataRequest, profiles: Profiles, repeated: Names = ()) -> ColumnLayout:
    """Choose how to read these columns."""
    _check_columns(request, profiles)
    found = [(weight, one) for weight, one in _readings(request, profiles) if request.task in (None, one.task)]
    if not found:
        raise _no_reading(request, profiles)
    (chosen_weight, chosen), *others = found
    if twice := [name for name in repeated if name in chosen.used]:
        raise RequestError(
            f"several columns are named {twice[0]!r}, and one of them is needed",
            found=f"columns: {', '.join(profiles)}",
            try_next=("give the columns different names",),
        )
    if chosen.form == "text" and not request.task:
        _check_is_no_guess(request, profiles)
    doubts = [one for weight, one in others if weight >= chosen_weight and one.task != chosen.task]
    warnings = [*chosen.warnings]
    if doubts and request.task is None and not request.label_column:
        other = doubts[0]
        warnings.append(data_warning("other-task", set_to("task", other.task), task=other.task, form=other.form))
    because = "as requested" if request.task else chosen.choices["form"].because
    choices: dict[str, Choice[str]] = {"task": Choice(chosen.task, because), **chosen.choices}
    return replace(chosen, choices=choices, warnings=tuple(warnings))


def _readings(request: DataRequest, profiles: Profiles) -> Iterator[tuple[int, ColumnLayout]]:
    """Every way to read the columns, the most telling first, with the weight of its names."""
    finders: tuple[tuple[int, Finder], ...] = (
        (3, _messages),
        (3, _strong_pairs),
        (3, _instructions),
        (3, partial(_prompts, ("prompt", "question", "input", "source"), _STRONG_ANSWER)),
        (2, _labeled_pairs),
        (2, _labels_by_name),
        (2, partial(_pairs, _WEAK_POSITIVE)),
        (2, partial(_prompts, names.PROMPT, ("answer", "target", "text"))),
        (2, partial(_pairs, ("answer",))),
        (1, _passages),
        (1, _labels_by_value),
        (0, _plain_text),
    )
    if request.task == "two-tower":  # requested, so columns without telling names are used by their order
        finders = (*finders, (0, _pairs_by_place))
    if request.label_column:  # a label column means classify
        finders = ((3, _labeled_pairs), (3, _labels_by_name), *finders)
    for weight, finder in finders:
        layout = finder(request, profiles)
        if layout:
            yield weight, layout


def _layout(
    task: Task, form: str, roles: Mapping[str, Names], because: str, warnings: tuple[DataWarning, ...] = ()
) -> ColumnLayout:
    choices = {"form": Choice(form, because)}
    return ColumnLayout(task=task, form=form, roles=roles, choices=choices, warnings=warnings)


# Language models


def _messages(request: DataRequest, profiles: Profiles) -> ColumnLayout | None:
    column = names.find(names.MESSAGES, tuple(profiles))
    if not column or not profiles[column].kinds & {"list", "text"}:
        return None
    has_json = any(isinstance(value, str) and value.lstrip().startswith("[") for value in profiles[column].values)
    if profiles[column].kinds == {"text"} and not has_json:
        return None
    return _layout("causal", "messages", {"messages": (column,)}, f"column {column!r} has conversations")


def _instructions(request: DataRequest, profiles: Profiles) -> ColumnLayout | None:
    columns = tuple(profiles)
    instruction, answer = names.find(names.INSTRUCTION, columns), names.find(names.ANSWER, columns)
    if not instruction or not answer:
        return None
    roles: dict[str, Names] = {"prompt": (instruction,), "answer": (answer,)}
    if context := names.find(names.CONTEXT, tuple(column for column in columns if column != answer)):
        roles["context"] = (context,)
    roles |= _around_prompt(columns)
    return _layout("causal", "instruction", roles, f"columns {instruction!r} and {answer!r}")


def _prompts(prompts: Names, answers: Names, request: DataRequest, profiles: Profiles) -> ColumnLayout | None:
    columns = tuple(profiles)
    prompt, answer = names.find(prompts, columns), names.find(answers, columns)
    if not prompt or not answer or prompt == answer:
        return None
    rejected = names.find(names.REJECTED, columns)
    warnings = (data_warning("unused-preferences", column=rejected),) if rejected else ()
    roles = {"prompt": (prompt,), "answer": (answer,), **_around_prompt(columns)}
    return _layout("causal", "prompt and answer", roles, f"columns {prompt!r} and {answer!r}", warnings)


def _around_prompt(columns: Names) -> dict[str, Names]:
    """What comes before the prompt: a system prompt and earlier turns."""
    found = {"system": names.find(names.SYSTEM, columns), "history": names.find(("history",), columns)}
    return {role: (column,) for role, column in found.items() if column}


def _plain_text(request: DataRequest, profiles: Profiles) -> ColumnLayout | None:
    columns = request.text_columns or tuple(filter(None, (names.find(names.TEXT, tuple(profiles)),)))
    if not columns:
        texts = [profile for profile in profiles.values() if profile.looks_like_text]
        columns = (max(texts, key=lambda profile: profile.mean_characters).name,) if texts else ()
    if not columns or not profiles[columns[0]].filled:
        return None
    named = "was requested" if request.text_columns else "has text"
    because = f"column {columns[0]!r} {named}"
    if not request.task:
        because += ", and no column of labels or answers was found"
    return _layout("causal", "text", {"text": columns}, because)


# Two towers


def _strong_pairs(request: DataRequest, profiles: Profiles) -> ColumnLayout | None:
    """Pairs whose names leave no doubt, because one is called positive or there are negatives."""
    columns = tuple(profiles)
    positive = names.find(names.POSITIVE, columns)
    is_strong = (positive and names.plain_name(positive) in _STRONG_POSITIVE) or names.find_all(names.NEGATIVE, columns)
    return _pairs(names.POSITIVE, request, profiles) if is_strong else None


def _pairs(positives: Names, request: DataRequest, profiles: Profiles) -> ColumnLayout | None:
    columns = tuple(profiles)
    query, positive = names.find(names.QUERY, columns), names.find(positives, columns)
    if not query or not positive or query == positive:
        return None
    negatives = names.find_all(names.NEGATIVE, columns)
    roles: dict[str, Names] = {"query": (query,), "positive": (positive,)}
    form = "pairs"
    if negatives:
        roles["negative"] = negatives
        form = "lists" if "list" in profiles[negatives[0]].kinds else "triplets"
    if group := request.group_column or names.find(names.GROUP, columns):
        roles["group"] = (group,)
    score = names.find(names.SCORE, columns)
    if score and profiles[score].kinds == {"number"} and profiles[score].distinct > 1:
        roles["score"] = (score,)
        form = f"scored {form}"
    because = f"columns {query!r} and {positive!r}" + (f", negatives in {', '.join(negatives)}" if negatives else "")
    return _layout("two-tower", form, roles, because)


def _pairs_by_place(request: DataRequest, profiles: Profiles) -> ColumnLayout | None:
    texts = [name for name, profile in profiles.items() if profile.looks_like_text and not names.is_identity(name)]
    if not 2 <= len(texts) <= 3:
        return None
    roles = dict(zip(("query", "positive", "negative"), ((text,) for text in texts), strict=False))
    form = "triplets" if len(texts) == 3 else "pairs"
    return _layout("two-tower", form, roles, f"in their order: {', '.join(texts)}")


def _passages(request: DataRequest, profiles: Profiles) -> ColumnLayout | None:
    columns = tuple(profiles)
    text = request.text_columns[0] if request.text_columns else names.find(names.TEXT, columns)
    group = request.group_column or names.find(names.GROUP, columns)
    if not text or not group or text == group:
        return None
    held = profiles[group]
    if held.distinct < 2 or held.repeats < (_EARLY_REPEATS if held.has_many else _REPEATS):
        return None
    groups = f"more than {held.distinct:,}" if held.has_many else f"{held.distinct:,}"
    because = f"texts of {groups} different {group!r}; two texts of one {group!r} are a pair"
    return _layout("two-tower", "passages of articles", {"text": (text,), "group": (group,)}, because)


# Classifying


def _labels_by_name(request: DataRequest, profiles: Profiles) -> ColumnLayout | None:
    """A text column and a label column, known by their names or requested."""
    label = _label_by_name(request, profiles)
    text = _text_columns(request, profiles, label.value) if label else None
    return _labeled(request, profiles, text, label) if label and text else None


def _labels_by_value(request: DataRequest, profiles: Profiles) -> ColumnLayout | None:
    """A text column, and a label column known by its values."""
    text = _text_columns(request, profiles, "")
    if not text:
        return None
    others = [one for name, one in profiles.items() if name not in text.value and not names.is_identity(name)]
    zero_one = [one for one in others if one.is_zero_one and one.name != request.label_column]
    if len(zero_one) > 1:
        form, choice = form_of_columns(zero_one, request.multi_label)
        return _classify(request, profiles, text, form, {"labels": choice})
    likely = [one for one in others if one.looks_like_labels]
    if not likely:
        return None
    best = min(likely, key=lambda one: one.distinct)
    because = f"{best.distinct:,} different values in {best.filled:,} rows"
    if len(likely) > 1:
        because += f"; fewer than in {', '.join(repr(one.name) for one in likely if one is not best)}"
    return _labeled(request, profiles, text, Choice(best.name, because))


def _labeled_pairs(request: DataRequest, profiles: Profiles) -> ColumnLayout | None:
    """Two texts that are classified together, such as a premise and a hypothesis."""
    columns = tuple(profiles)
    first, second = names.find(names.QUERY, columns), names.find(_SECOND, columns)
    label = _label_by_name(request, profiles)
    if not first or not second or not label or request.text_columns:
        return None
    if not (profiles[label.value].looks_like_labels or request.label_column):
        return None
    text: Choice[Names] = Choice(
        (first, second), f"{first!r} and {second!r} are classified together, joined by a line break"
    )
    return _labeled(request, profiles, text, label)


def _label_by_name(request: DataRequest, profiles: Profiles) -> Choice[str] | None:
    if request.label_column:
        return Choice(request.label_column, "as requested")
    columns = tuple(column for column in profiles if column not in request.text_columns)
    named = [column for name in names.LABEL if (column := names.find((name,), columns))]
    spelled = names.find(("label_text", "label_name"), columns)
    numbered = profiles[named[0]] if named and profiles[named[0]].kinds == {"number"} else None
    if spelled and numbered and profiles[spelled].distinct == numbered.distinct:
        return Choice(spelled, f"the names of the numbers in {numbered.name!r}")
    # Joined labels may have many different values, but running text and objects cannot be labels.
    fitting = [one for one in named if "object" not in profiles[one].kinds and profiles[one].mean_characters <= 200]
    strong = [column for column in fitting if names.plain_name(column) not in names.WEAK_LABEL]
    weak = [column for column in fitting if profiles[column].looks_like_labels]
    if weak and sum(profile.is_zero_one for profile in profiles.values()) > 1 and profiles[weak[0]].is_zero_one:
        weak = []  # one of several columns of 0 and 1, each of them a label
    chosen = strong[0] if strong else weak[0] if weak else None
    return Choice(chosen, f"named {chosen!r}") if chosen else None


def _text_columns(request: DataRequest, profiles: Profiles, label: str) -> Choice[Names] | None:
    if request.text_columns:
        joined = ", joined by a line break" if len(request.text_columns) > 1 else ""
        return Choice(request.text_columns, f"as requested{joined}")
    columns = tuple(column for column in profiles if column != label)
    for name in names.TEXT:
        column = names.find((name,), columns)
        if column and profiles[column].kinds <= {"text", "number"}:
            return Choice((column,), f"named {column!r}")
    texts = [profiles[column] for column in columns if not names.is_identity(column)]
    texts = [profile for profile in texts if profile.looks_like_text or profile.kinds == {"text"}]
    if not texts:
        return None
    best = max(texts, key=lambda profile: (profile.mean_characters, profile.distinct))
    if best.is_zero_one or (best.looks_like_labels and best.mean_words < 1.5 and not label):
        return None
    return Choice((best.name,), f"has the longest texts, {best.mean_characters:.0f} characters on average")


def _labeled(request: DataRequest, profiles: Profiles, text: Choice[Names], label: Choice[str]) -> ColumnLayout | None:
    if label.value in text.value:
        return None
    form, choice = find_label_form(profiles[label.value], request.multi_label)
    return _classify(request, profiles, text, form, {"label column": label, "labels": choice})


def _classify(
    request: DataRequest, profiles: Profiles, text: Choice[Names], form: LabelForm, choices: Mapping[str, Choice[str]]
) -> ColumnLayout:
    roles: dict[str, Names] = {"text": text.value, "label": form.columns}
    if request.group_column:
        roles["group"] = (request.group_column,)
    because = f"text in {' + '.join(map(repr, text.value))}, labels in {', '.join(map(repr, form.columns[:4]))}"
    layout = _layout("classify", choices["labels"].value, roles, because, tuple(_unread_title(profiles, text, form)))
    column = Choice(" + ".join(text.value), text.because)
    return replace(layout, labels=form, choices={**layout.choices, "text column": column, **choices})


def _unread_title(profiles: Profiles, text: Choice[Names], form: LabelForm) -> Iterator[DataWarning]:
    """Name a title that could be read along with the text."""
    title = names.find(_TITLES, tuple(profiles))
    if len(text.value) == 1 and title and title not in (*text.value, *form.columns) and profiles[title].looks_like_text:
        both = f"{quote(title)} --text-column {quote(text.value[0])}"
        yield data_warning("unread-title", set_to("text_column", placeholder=both, note="reads both"), column=title)


# Refusals


def _check_columns(request: DataRequest, profiles: Profiles) -> None:
    """Refuse a column that does not exist, with a guess."""
    requested = [("text_column", column) for column in request.text_columns]
    others = (("label_column", request.label_column), ("group_column", request.group_column))
    requested += [(setting, column) for setting, column in others if column]
    for setting, column in requested:
        if column not in profiles:
            raise RequestError(
                f"there is no column {column!r}",
                found=f"columns: {', '.join(map(repr, profiles))}",
                try_next=(set_to(setting, closest(column, profiles)),),
                setting=setting,
            )
    if request.label_column in request.text_columns:
        raise RequestError(
            f"column {request.label_column!r} was requested for both the text and the labels",
            found=f"columns: {', '.join(map(repr, profiles))}",
            try_next=(set_to("text_column"), set_to("label_column", note="another column")),
            setting="label_column",
        )


def _check_is_no_guess(request: DataRequest, profiles: Profiles) -> None:
    """Refuse to train a language model on labels, or on texts that have a score, unless it was requested."""
    for column in request.text_columns:
        if names.find(names.LABEL, (column,)) and profiles[column].looks_like_labels:
            raise RequestError(
                f"column {column!r} has labels, not texts",
                found=f"{profiles[column].distinct:,} different values in {profiles[column].filled:,} rows",
                try_next=(set_to("label_column", column, note="in place of the text column"), AS_TEXT),
                setting="text_column",
            )
    score = names.find(names.SCORE, tuple(profiles))
    if not request.text_columns and score and profiles[score].kinds == {"number"} and profiles[score].distinct > 1:
        raise RequestError(
            f"column {score!r} has numbers to predict, not classes",
            found=f"columns: {', '.join(map(repr, profiles))}",
            try_next=("turn the numbers into classes, such as low, medium and high", AS_TEXT),
            setting="task",
        )


def _no_reading(request: DataRequest, profiles: Profiles) -> RequestError:
    wanted = {
        "classify": "a text column and a label column",
        "causal": "columns such as instruction and output, prompt and completion, messages, or text",
        "two-tower": "columns such as query and positive, or text and article_id",
        None: "columns such as text and label, instruction and output, messages, or query and positive",
    }[request.task]
    held = ", ".join(f"{name!r} ({_described(profile)})" for name, profile in list(profiles.items())[:12])
    for_task = f" for {request.task}" if request.task else ""
    return RequestError(
        f"found nothing to train on{for_task}; expected {wanted}",
        found=f"columns: {held}",
        try_next=(set_to("text_column"), set_to("label_column"), set_to("task", placeholder="TASK")),
        setting="text_column",
    )


def _described(profile: ColumnProfile) -> str:
    many = "many different" if profile.has_many else f"{profile.distinct:,} different"
    return f"{'/'.join(sorted(profile.kinds)) or 'empty'}, {many}"
