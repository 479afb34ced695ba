"""`holdfast predict`: use a finished model from the shell."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.core.artifacts import to_json
from holdfast.core.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.runs.prediction import Question
    from holdfast.runs.prediction_inputs import PredictionInputs

_PATH = click.Path(path_type=Path)
_SHOWN_LABELS = 5
_SHOWN_CHARACTERS = 100


@click.command()
@click.argument("run", metavar="RUN", type=_PATH)
@click.argument("what", metavar="TEXT... | FILE | -", nargs=-1, required=True)
@click.option("--out", metavar="FILE", type=_PATH, help="Write the answers here: .csv, .tsv or .jsonl.")
@click.option("--text-column", "columns", multiple=True, help="Column with the text. May be repeated to join columns.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or mps.")
@click.option("--all-labels", is_flag=True, help="In a table, add a column with the probability of each label.")
@click.option("--top", type=click.IntRange(1, 1000), default=5, show_default=True, help="Number of passages to find.")
@click.option("--corpus", metavar="FILE", type=_PATH, help="Search these texts instead of the run's corpus.")
@click.option(
    "--max-new-tokens",
    type=click.IntRange(1, 32_768),
    default=256,
    show_default=True,
    help="Maximum length of an answer.",
)
@click.option(
    "--temperature",
    type=click.FloatRange(0, 10),
    default=0.0,
    show_default=True,
    help="Sampling temperature; 0 gives the most likely answer.",
)
@click.option("--seed", type=int, default=42, show_default=True, help="Random seed for sampling.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def predict(
    run: Path,
    what: tuple[str, ...],
    out: Path | None,
    columns: tuple[str, ...],
    as_json: bool,
    all_labels: bool,
    corpus: Path | None,
    **options: Any,
) -> None:
    """Get labels, answers or passages from the model of a RUN, or from a model folder.

    Give texts, a FILE (CSV, TSV, JSON, JSON lines, Parquet, Excel; gzipped or not) or - for standard input, one text
    per line. Probabilities are calibrated. Only safetensors are loaded.
    """
    from holdfast.cli.screen import Screen

    screen = Screen(stream=sys.stderr, quiet=as_json)
    screen.working("looking for the model", 0, None)

    try:
        from holdfast.core.records import PredictOptions
        from holdfast.runs.answers_file import check_target, write_answers
        from holdfast.runs.finished_model import find_model
        from holdfast.runs.prediction import predict as ask
        from holdfast.runs.prediction_inputs import PredictionInputs

        if out:
            check_target(out)
        model = find_model(run)
        if corpus and not corpus.is_file():
            raise RequestError(f"there is no file {corpus}")
        asking = PredictionInputs(model, columns)
        rows = _rows(asking, what)
        how = PredictOptions(**options, corpus=str(corpus.resolve()) if corpus else None)
        pairs = ask(model, rows, how, screen.working)
        if out:
            count = write_answers(out, pairs, every_label=all_labels)
            answers = []
        else:
            answers = list(pairs)
            count = sum(bool(said) for _, said in answers)
    finally:
        screen.erase()
    notes = asking.notes()
    if as_json:
        from holdfast.runs.answers_file import joined

        said = {"out": out.resolve()} if out else {"answers": [joined(given, said) for given, said in answers]}
        click.echo(to_json({"task": model.task, "rows": count, **said, "notes": notes}))
    elif out:
        click.echo(f"[ok] {count:,} rows answered: {out}")
    else:
        for line in _lines(answers):
            click.echo(line)
    if not as_json and count:
        for note in notes:
            click.echo(f"[!]  {note}", err=True)
    if not count:
        raise RequestError("no row has a text", found="\n".join(notes))


def _rows(asking: "PredictionInputs", what: tuple[str, ...]) -> "Iterator[Question]":
    from holdfast.runs.prediction_inputs import ENDINGS

    if what == ("-",):
        return asking.stream(sys.stdin)
    if len(what) == 1:
        path = Path(what[0])
        is_name = what[0].lower().endswith(ENDINGS) and " " not in what[0]
        if len(what[0]) < 4096 and (is_name or path.is_file()):
            return asking.file(path)
    return asking.texts(what)


def _lines(answers: list[tuple[dict[str, Any], dict[str, Any]]]) -> "Iterator[str]":
    """Answers for a terminal: in full for one text, one line each for several."""
    for given, said in answers:
        text = " ".join(str(given.get("text") or next(iter(given.values()), "")).split())
        short = text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."
        if "answer" in said:
            yield from ([f"> {short}"] if len(answers) > 1 else []) + [str(said["answer"])]
        elif "found" in said:
            yield from [f"> {short}"] if len(answers) > 1 else []
            for rank, one in enumerate(said["found"], start=1):
                passage = " ".join(str(one.get("text", "")).split())
                yield f"{rank:>3}  {one['score']:.3f}  {passage[:300]}{'...' if len(passage) > 300 else ''}"
        elif not said:
            yield f"(no text)   {short}"
        elif len(answers) == 1:
            best = list(said["probabilities"].items())
            chosen = said["predicted"] if isinstance(said["predicted"], list) else [said["predicted"]]
            shown = max(_SHOWN_LABELS, len(chosen))
            yield from (f"{'*' if name in chosen else ' '} {chance:6.1%}  {name}" for name, chance in best[:shown])
        else:
            yield f"{_label(said)}   {short}"


def _label(said: dict[str, Any]) -> str:
    names = said["predicted"] if isinstance(said["predicted"], list) else [said["predicted"]]
    return ", ".join(f"{name} ({said['probabilities'][name]:.0%})" for name in names) or "(none)"
