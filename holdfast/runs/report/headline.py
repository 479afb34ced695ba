"""The head of the page: what came out, in one sentence and a few figures, and how to use it."""

import shlex
from collections.abc import Iterator
from pathlib import Path

from holdfast.core.runfolder import REQUEST
from holdfast.core.text import human_seconds, plural
from holdfast.runs.report.html import Html, join, section, tag
from holdfast.runs.report.learning_section import SHARES
from holdfast.runs.story import Story
from holdfast.runs.timeline import lasted_seconds, outcome_of

STATES = {
    "finished": ("finished", "good"),
    "failed": ("failed", "bad"),
    "stopped": ("stopped", "warn"),
    "running": ("still going", "warn"),
}
_COMMON_NAMES = {"train", "data", "dataset"}
_NAMES = {
    "ndcg@10": "nDCG@10",
    "mrr@10": "MRR@10",
    "map@100": "MAP@100",
    "micro_f1": "micro F1",
    "macro_f1": "macro F1",
    "calibration_error": "calibration error, scores as they came",
    "calibrated_error": "calibration error, after calibration",
}


def head(story: Story) -> Html:
    """Title, state, sentence and figures."""
    word, look = STATES[state_of(story)]
    tiles = [tag("li", tag("b", value), tag("span", name)) for name, value in _figures(story)]
    return tag(
        "header",
        tag("span", word, class_=f"state {look}"),
        tag("h1", title_of(story)),
        tag("p", sentence_of(story), class_="lead"),
        tag("ul", tiles, class_="tiles", aria_label="Figures") if tiles else None,
    )


def title_of(story: Story) -> str:
    """What this run is called."""
    if story.is_command:
        return _command(story) or story.folder.name
    base = base_model(story)
    path = Path(str(story.request.get("data") or (story.dataset.get("files") or [""])[0]))
    # Half of all datasets are called train.csv.
    data = f"{path.parent.name}/{path.name}" if path.stem in _COMMON_NAMES and path.parent.name else path.name
    return " on ".join(filter(None, (base, data))) or story.folder.name


def base_model(story: Story) -> str:
    """The model it started from, in a word."""
    named = (story.plan.get("model") or {}).get("name") if isinstance(story.plan.get("model"), dict) else None
    return str(named or Path(str(story.settings.get("model") or story.request.get("model") or "")).name)


def state_of(story: Story) -> str:
    """ "finished", "failed", "stopped" or "running", by what `holdfast status` goes by: the result, or who holds it."""
    if story.is_held:
        return "running"
    said = story.result.get("state")
    return str(said) if said in STATES else "stopped"


def sentence_of(story: Story) -> str:
    """The result in one sentence."""
    state, steps = state_of(story), story.planned_steps
    said = story.result.get("sentence")
    if isinstance(said, str) and said and not (state == "finished" and best_score(story)):
        return said[0].upper() + said[1:].rstrip(".") + "."
    if state != "finished":
        reached = max(story.steps, default=0) or (story.attempts[-1].beat[1] if story.attempts else 0)
        of = f" of {steps:,}" if steps else ""
        return f"{STATES[state][0].capitalize()} at step {reached:,}{of}: {_last_word(story)}."
    bad = sum(outcome_of(attempt)[0] not in ("finished", "stopped") for attempt in story.attempts)
    survived = f", after {plural(bad, 'failed attempt')} that it survived" if bad else ""
    score = best_score(story)
    took = human_seconds(lasted_seconds(story))
    if not score:
        return f"Finished in {took}{survived}."
    split, name, value = score
    return f"Finished in {took}{survived}: {_value(name, value)} {metric_name(name)} on the {split} split."


def _last_word(story: Story) -> str:
    """Why a run without a result has none."""
    if not story.request:
        return f"{REQUEST} is missing or cannot be read, so it cannot be resumed"
    if not story.attempts:
        return "it has not begun to train yet" if story.is_held else "it had not begun to train"
    if story.attempts[-1].is_live:
        return f"attempt {story.attempts[-1].number} is running"
    word, sentence = outcome_of(story.attempts[-1])
    return "it was trained to the end, but its result was not written" if word == "finished" else sentence


def best_score(story: Story) -> tuple[str, str, float] | None:
    """The figure that decides: split, metric and value."""
    for split in ("test", "validation"):
        found = story.metrics.get(split) or (story.result.get("metrics") or {}).get(split)
        if not isinstance(found, dict):
            continue
        is_multi = story.manifest.get("multi_label") or story.dataset.get("multi_label")
        names = ("micro_f1",) if is_multi else (*SHARES.get(story.task, ()), "perplexity", "loss")
        for name in names:
            if isinstance(found.get(name), int | float):
                return split, name, float(found[name])
    return None


def metric_name(name: str) -> str:
    """A metric's name as people write it."""
    return _NAMES.get(name, name.replace("_", " "))


def use_section(story: Story) -> Html:
    """The commands that come next."""
    run = shlex.quote(str(story.folder))
    if not story.has_model:
        if state_of(story) in ("finished", "running") or not story.request:
            return Html("")
        return section("What next", tag("pre", tag("code", f"holdfast resume {run}")), id_="next")
    example = {"causal": '"What should I ask first?"', "two-tower": '"what to look for"'}.get(story.task, '"a text"')
    lines = [f"holdfast predict {run} {example}", f"holdfast predict {run} FILE.csv --out answers.csv"]
    lines += [f"holdfast demo {run}", f"holdfast export {run} --to script"]
    code = {
        "classify": "from transformers import pipeline\npipeline('text-classification', {folder})('a text')",
        "causal": "from transformers import pipeline\npipeline('text-generation', {folder})('a text')",
        "two-tower": "from sentence_transformers import SentenceTransformer\n"
        "SentenceTransformer({folder}).encode(['a text'])",
    }.get(story.task, "")
    shown = code.format(folder=repr(str(story.folder / "model"))) if code else ""
    return section(
        "Use the model",
        tag("pre", tag("code", "\n".join(lines))),
        tag("p", "In Python, without Holdfast:", class_="meta") if shown else None,
        tag("pre", tag("code", shown)) if shown else None,
        id_="use",
    )


def _figures(story: Story) -> Iterator[tuple[str, str]]:
    if score := best_score(story):
        split, name, value = score
        yield f"{metric_name(name)}, {split}", _value(name, value)
        other = story.metrics.get("validation")
        if split == "test" and isinstance(other, dict) and isinstance(other.get(name), int | float):
            yield f"{metric_name(name)}, validation", _value(name, float(other[name]))
    done, steps = max(story.steps, default=0), story.planned_steps
    if done:
        yield ("step reached of " + f"{steps:,}" if steps and steps != done else "steps"), f"{done:,}"
    if seconds := lasted_seconds(story):
        count = f", {plural(len(story.attempts), 'attempt')}" if len(story.attempts) > 1 else ""
        yield f"of training{count}", human_seconds(seconds)
    rows = story.dataset.get("rows")
    if isinstance(rows, int):
        yield "rows of data", f"{rows:,}"
    if device := story.settings.get("device"):
        yield f"device, {story.settings.get('precision', 'fp32')}", str(device)


def _value(name: str, value: float) -> str:
    return f"{value:.3f}" if name in ("loss", "perplexity") else f"{value * 100:.1f} %"


def _command(story: Story) -> str:
    command = story.request.get("command")
    if not isinstance(command, list) or not command:
        return str(command or "")
    return shlex.join([Path(str(command[0])).name, *map(str, command[1:])])


def links(parts: list[tuple[str, str, Html]]) -> Html:
    """The way to the parts that this page has."""
    return tag(
        "nav", [tag("a", title, href=f"#{name}") for name, title, part in parts if part], aria_label="On this page"
    )


def everything(parts: list[tuple[str, str, Html]]) -> Html:
    """The parts, one below the other."""
    return join(*(part for _, _, part in parts))
