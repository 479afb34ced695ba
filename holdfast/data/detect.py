"""Finds the task and the columns, by their names first and by their values where names do not decide.

Every way to read the columns is tried, the most telling first. The first one that fits is used; a warning names an
equally good one for another task.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from holdfast.core.data_warnings import DataWarning, data_warning
from holdfast.core.errors import RequestError, set_to
from holdfast.core.plan import Choice
from holdfast.core.text import closest
from holdfast.data import names
from holdfast.data.data_request import DataRequest
from holdfast.data.detect_classify import by_names as classify_by_names
from holdfast.data.detect_classify import by_values as classify_by_values
from holdfast.data.detect_classify import pairs_with_labels
from holdfast.data.layout import ColumnLayout
from holdfast.data.profile import ColumnProfile

Profiles = Mapping[str, ColumnProfile]

# Rows per article, on average, that make pairs of passages; fewer where only the first values were counted.
_REPEATS, _EARLY_REPEATS = 2.0, 1.2
_STRONG_POSITIVE = ("positive", "pos", "positives", "positive_passages", "positive_ctxs", "passage", "passages")
_STRONG_ANSWER = ("completion", "response", "output", "chosen", "reply")


def detect(request: DataRequest, profiles: Profiles, repeated: tuple[str, ...] = ()) -> ColumnLayout:
    """Choose how to read these columns."""
    _check_asked(request, profiles)
    found = [(weight, one) for weight, one in _readings(request, profiles) if request.task in (None, one.task)]
    if not found:
        raise _no_reading(request, profiles)
    (chosen_weight, chosen), *others = found
    if twice := [name for name in repeated if name in chosen.used]:
        raise RequestError(
            f"several columns are named {twice[0]!r}, and one of them is needed",
            seen=f"columns: {', '.join(profiles)}",
            try_next=("give the columns different names",),
        )
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
    finders: tuple[tuple[int, Callable[[DataRequest, Profiles], ColumnLayout | None]], ...] = (
        (3, _messages),
        (3, _strong_pairs),
        (3, _instructions),
        (3, _prompts),
        (2, pairs_with_labels),
        (2, classify_by_names),
        (2, _weak_pairs),
        (2, _questions),
        (2, _question_pairs),
        (1, _passages),
        (1, classify_by_values),
        (0, _plain_text),
    )
    if request.task == "two-tower":  # requested, so columns without telling names are used by their order
        finders = (*finders, (0, _pairs_by_place))
    if request.label_column:  # a label column means classify
        finders = ((3, pairs_with_labels), (3, classify_by_names), *finders)
    for weight, finder in finders:
        layout = finder(request, profiles)
        if layout:
            yield weight, layout


def _messages(request: DataRequest, profiles: Profiles) -> ColumnLayout | None:
    column = names.find(names.MESSAGES, tuple(profiles))
    if not column or not profiles[column].kinds & {"list", "text"}:
        return None
    if profiles[column].kinds == {"text"} and not _holds_json_lists(profiles[column]):
        return None
    return ColumnLayout(
        task="causal",
        form="messages",
        roles={"messages": (column,)},
        choices={"form": Choice("messages", f"column {column!r} has conversations")},
    )


def _instructions(request: DataRequest, profiles: Profiles) -> ColumnLayout | None:
    columns = tuple(profiles)
    instruction = names.find(names.INSTRUCTION, columns)
    answer = names.find(names.ANSWER, columns)
    if not instruction or not answer:
        return None
    roles: dict[str, tuple[str, ...]] = {"prompt": (instruction,), "answer": (answer,)}
    context = names.find(names.CONTEXT, tuple(column for column in columns if column != answer))
    if context:
        roles["context"] = (context,)
    return _with_system("instruction", roles, columns, f"columns {instruction!r} and {answer!r}")


def _prompts(request: DataRequest, profiles: Profiles) -> ColumnLayout | None:
    columns = tuple(profiles)
    prompt = names.find(("prompt", "question", "input", "source"), columns)
    answer = names.find(_STRONG_ANSWER, columns)
    if not prompt or not answer or prompt == answer:
        return None
    return _prompt_layout(prompt, answer, columns)


def _questions(request: DataRequest, profiles: Profiles) -> ColumnLayout | None:
    columns = tuple(profiles)
    prompt, answer = names.find(names.PROMPT, columns), names.find(("answer", "target", "text"), columns)
    if not prompt or not answer or prompt == answer:
        return None
    return _prompt_layout(prompt, answer, columns)


def _prompt_layout(prompt: str, answer: str, columns: tuple[str, ...]) -> ColumnLayout:
    rejected = names.find(names.REJECTED, columns)
    warnings = (data_warning("unused-preferences", column=rejected),) if rejected else ()
    because = f"columns {prompt!r} and {answer!r}"
    return _with_system("prompt and answer", {"prompt": (prompt,), "answer": (answer,)}, columns, because, warnings)


def _with_system(
    form: str,
    roles: dict[str, tuple[str, ...]],
    columns: tuple[str, ...],
    because: str,
    warnings: tuple[DataWarning, ...] = (),
) -> ColumnLayout:
    if system := names.find(names.SYSTEM, columns):
        roles["system"] = (system,)
    if history := names.find(("history",), columns):
        roles["history"] = (history,)
    return ColumnLayout(
        task="causal", form=form, roles=roles, choices={"form": Choice(form, because)}, warnings=warnings
    )


def _strong_pairs(request: DataRequest, profiles: Profiles) -> ColumnLayout | None:
    columns = tuple(profiles)
    query, positive = names.find(names.QUERY, columns), names.find(names.POSITIVE, columns)
    if not query or not positive or query == positive:
        return None
    is_strong = names.plain_name(positive) in _STRONG_POSITIVE or bool(names.find_all(names.NEGATIVE, columns))
    return _pair_layout(request, profiles, query, positive) if is_strong else None


def _weak_pairs(request: DataRequest, profiles: Profiles) -> ColumnLayout | None:
    columns = tuple(profiles)
    query = names.find(names.QUERY, columns)
    positive = names.find(tuple(name for name in names.POSITIVE if name != "answer"), columns)
    if not query or not positive or query == positive:
        return None
    return _pair_layout(request, profiles, query, positive)


def _question_pairs(request: DataRequest, profiles: Profiles) -> ColumnLayout | None:
    columns = tuple(profiles)
    query, positive = names.find(names.QUERY, columns), names.find(("answer",), columns)
    return _pair_layout(request, profiles, query, positive) if query and positive else None


def _pair_layout(request: DataRequest, profiles: Profiles, query: str, positive: str) -> ColumnLayout:
    columns = tuple(profiles)
    negatives = names.find_all(names.NEGATIVE, columns)
    roles: dict[str, tuple[str, ...]] = {"query": (query,), "positive": (positive,)}
    form = "pairs"
    if negatives:
        roles["negative"] = negatives
        form = "lists" if "list" in profiles[negatives[0]].kinds else "triplets"
    group = request.group_column or names.find(names.GROUP, columns)
    if group:
        roles["group"] = (group,)
    score = names.find(names.SCORE, columns)
    if score and profiles[score].kinds == {"number"} and profiles[score].distinct > 1:
        roles["score"] = (score,)
        form = f"scored {form}"
    because = f"columns {query!r} and {positive!r}" + (f", negatives in {', '.join(negatives)}" if negatives else "")
    return ColumnLayout(task="two-tower", form=form, roles=roles, choices={"form": Choice(form, because)})


def _pairs_by_place(request: DataRequest, profiles: Profiles) -> ColumnLayout | None:
    texts = [name for name, profile in profiles.items() if profile.looks_like_text and not names.is_identity(name)]
    if not 2 <= len(texts) <= 3:
        return None
    roles: dict[str, tuple[str, ...]] = {"query": (texts[0],), "positive": (texts[1],)}
    if len(texts) == 3:
        roles["negative"] = (texts[2],)
    form = "triplets" if len(texts) == 3 else "pairs"
    choice = Choice(form, f"in their order: {', '.join(texts)}")
    return ColumnLayout(task="two-tower", form=form, roles=roles, choices={"form": choice})


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
    return ColumnLayout(
        task="two-tower",
        form="passages of articles",
        roles={"text": (text,), "group": (group,)},
        choices={"form": Choice("passages of articles", because)},
    )


def _plain_text(request: DataRequest, profiles: Profiles) -> ColumnLayout | None:
    columns = request.text_columns or tuple(filter(None, (names.find(names.TEXT, tuple(profiles)),)))
    if not columns:
        longest = max((one for one in profiles.values() if one.looks_like_text), key=_length, default=None)
        columns = (longest.name,) if longest else ()
    if not columns or not profiles[columns[0]].filled:
        return None
    because = f"column {columns[0]!r} has text, and no other column says what to learn from it"
    return ColumnLayout(task="causal", form="text", roles={"text": columns}, choices={"form": Choice("text", because)})


def _length(profile: ColumnProfile) -> float:
    return profile.mean_characters


def _holds_json_lists(profile: ColumnProfile) -> bool:
    return any(isinstance(value, str) and value.lstrip().startswith("[") for value in profile.values)


def _check_asked(request: DataRequest, profiles: Profiles) -> None:
    """Refuse a column that does not exist, with a guess."""
    requested = [("text_column", column) for column in request.text_columns]
    requested += [("label_column", request.label_column or ""), ("group_column", request.group_column or "")]
    for setting, column in requested:
        if column and column not in profiles:
            raise RequestError(
                f"there is no column {column!r}",
                seen=f"columns: {', '.join(map(repr, profiles))}",
                try_next=(set_to(setting, closest(column, profiles)),),
                setting=setting,
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
        seen=f"columns: {held}",
        try_next=(set_to("text_column"), set_to("label_column"), set_to("task", placeholder="TASK")),
        setting="text_column",
    )


def _described(profile: ColumnProfile) -> str:
    many = "many different" if profile.has_many else f"{profile.distinct:,} different"
    return f"{'/'.join(sorted(profile.kinds)) or 'empty'}, {many}"
