"""Opens a dataset, and reads it once to say what it holds and how it will be used. Trains nothing.

`detect` finds the columns and the task. `survey` and `prepare` both make the one pass over the rows: `survey` only
counts, `prepare` also tokenizes and writes. Both leave `DatasetFacts`, which a run keeps as `dataset.json`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields

from holdfast.core.facts import DatasetFacts
from holdfast.core.progress import Progress, no_progress
from holdfast.data.badrows import BadRows
from holdfast.data.data_request import DataRequest
from holdfast.data.files import find_files
from holdfast.data.magic import name_of_binary
from holdfast.data.rawfile import fingerprint_of, open_bytes, reading
from holdfast.data.sources import Findings, Source
from holdfast.data.sources.beir import open_beir_source
from holdfast.data.sources.rows import open_row_source
from holdfast.data.sources.vectors import open_vector_source
from holdfast.data.token_lengths import TokenLengths
from holdfast.data.tokenizer import ModelTokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """A dataset that was read once."""

    source: Source
    facts: DatasetFacts
    histograms: Mapping[str, list[tuple[int, int]]]  # role -> shortest length of a bar, and its texts
    bad: BadRows  # the rows that are not used


def detect(request: DataRequest, on_progress: Progress = no_progress) -> Source:
    """Open a dataset: its files, format, columns and task. No tokenizer is needed."""
    files = find_files(request, on_progress)
    if files.beir:
        return open_beir_source(request, files.beir, on_progress)
    first = files.splits["train"][0]
    if first.is_file():
        with open_bytes(first) as file, reading(first):
            if name_of_binary(file.read(65_536)) == "npz":
                return open_vector_source(request, files, on_progress)
    return open_row_source(request, files, on_progress)


def survey(request: DataRequest, tokens: ModelTokenizer | None = None, on_progress: Progress = no_progress) -> Survey:
    """Read a dataset once without writing anything; lengths are in tokens where there is a tokenizer."""
    source, bad = detect(request, on_progress), BadRows(request.max_bad_share)
    found = source.read(TokenLengths(tokens) if tokens else None, bad, on_progress)
    return Survey(source=source, facts=facts_of(source, found, bad), histograms=found.histograms, bad=bad)


def facts_of(source: Source, found: Findings, bad: BadRows) -> DatasetFacts:
    """What a pass over a source found, as the facts that everything later reads."""
    layout = source.layout
    text, label = layout.roles.get("text") or layout.roles.get("messages"), layout.roles.get("label")
    if layout.form == "beir":
        text = layout.roles["passage"]
    return DatasetFacts(
        task=layout.task,
        form=layout.form,
        rows=found.rows,
        columns=source.columns,
        text_column=" + ".join(text) if text else None,
        label_column=" + ".join(label) if label else None,
        roles=layout.roles,
        labels=found.labels,
        multi_label=layout.labels is not None and layout.labels.is_multi,
        splits=found.splits,
        lengths=found.lengths,
        warnings=found.warnings,
        bad_rows=tuple(bad.listed),
        bad_row_count=bad.count,
        incomplete_row_count=bad.incomplete,
        choices=found.choices,
        files=tuple(str(file.path) for _, file in source.files),
        fingerprint=fingerprint_of(source.files),
    )


def printed_facts(facts: DatasetFacts) -> dict[str, object]:
    """The facts as `survey --json` and the service show them: warnings as sentences, and their values next to them."""
    printed = {"warnings": [one.line for one in facts.warnings], "warning_details": facts.warnings}
    return {field.name: printed.pop(field.name, getattr(facts, field.name)) for field in fields(facts)} | printed
