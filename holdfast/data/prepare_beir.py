"""Prepares a BEIR folder for two towers."""

from array import array
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.data.request import Progress
from holdfast.data.shards import write_array
from holdfast.data.survey_beir import BeirSurvey
from holdfast.data.tokens import Tokens
from holdfast.data.tower_writer import TowerWriter, add_near_misses, as_table, manifest_of, numbered


def prepare_beir(
    survey: BeirSurvey, tokens: Tokens, length: int, prefixes: tuple[str, str], folder: Path, on_progress: Progress
) -> dict[str, Any]:
    """Write the corpus as it is, and of the queries those that are judged."""
    writer = TowerWriter(tokens, length, folder, on_progress, len(survey.passages.ids) + len(survey.queries.ids))
    writer.write("corpus", survey.passages.texts(), prefixes[1])
    if survey.passages.group_column:
        write_array(folder, "corpus.groups", numbered(survey.passages.groups), np.int64)
    near = array("q", survey.near_misses.get("train", ()))
    choices = add_near_misses(survey.request, survey.query_index.find, survey.passage_index.find, near)
    counts = {}
    for name, flat in survey.judgements.items():
        pairs = as_table(flat, 2)
        asked = np.unique(pairs[:, 0])
        numbers = np.full(len(survey.queries.ids), -1, dtype=np.int64)
        numbers[asked] = np.arange(len(asked))
        wanted = set(asked.tolist())
        writer.write(name, (text for at, text in enumerate(survey.queries.texts()) if at in wanted), prefixes[0])
        qrels = np.stack((numbers[pairs[:, 0]], pairs[:, 1], np.ones(len(pairs), dtype=np.int64)), axis=1)
        write_array(folder, f"{name}.qrels", qrels, np.int64)
        write_array(folder, f"{name}.rows", asked + 1, np.int64)
        if name == "train" and near:
            table = as_table(near, 2)
            table = np.stack((numbers[table[:, 0]], table[:, 1]), axis=1)
            write_array(folder, "train.negatives", table[table[:, 0] >= 0], np.int64)
        counts[name] = len(pairs)
    return manifest_of(writer, counts, choices)
