"""Reads a dataset as training would, and says what it holds and how it will be used. Trains nothing.

Reads: the user's files. Leaves: `DatasetFacts`, which a run keeps as `dataset.json`.
"""

from dataclasses import fields

from holdfast.core.facts import DatasetFacts
from holdfast.core.progress import Progress, no_progress
from holdfast.data.data_request import DataRequest
from holdfast.data.files import find_files
from holdfast.data.magic import name_of_binary
from holdfast.data.rawfile import open_bytes, reading
from holdfast.data.survey_beir import BeirSurvey, survey_beir
from holdfast.data.survey_table import TableSurvey, survey_table
from holdfast.data.survey_vectors import VectorSurvey, survey_vectors
from holdfast.data.tokenizer import ModelTokenizer

Survey = TableSurvey | BeirSurvey | VectorSurvey


def printed_facts(facts: DatasetFacts) -> dict[str, object]:
    """The facts as `survey --json` and the service show them: warnings as sentences, and their values next to them."""
    printed = {"warnings": [one.line for one in facts.warnings], "warning_details": facts.warnings}
    return {field.name: printed.pop(field.name, getattr(facts, field.name)) for field in fields(facts)} | printed


def survey(request: DataRequest, tokens: ModelTokenizer | None = None, on_progress: Progress = no_progress) -> Survey:
    """Survey a file, a folder of splits, a BEIR folder or a file of vectors."""
    files = find_files(request)
    if files.beir:
        return survey_beir(request, files, tokens, on_progress)
    first = files.splits["train"][0]
    with open_bytes(first) as file, reading(first):
        is_vectors = name_of_binary(file.read(65_536)) == "npz"
    if is_vectors:
        return survey_vectors(request, files, on_progress)
    return survey_table(request, files, tokens, on_progress)
