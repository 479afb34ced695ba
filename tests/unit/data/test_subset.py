"""The longest examples as a prepared folder of their own, and how much work a folder holds."""

import json

import numpy as np
import pytest

from holdfast.data.amounts import amounts_of
from holdfast.data.shards import open_array, open_tokens
from holdfast.data.subset import write_longest
from tests.tiny import tiny_instructions, tiny_prepared, tiny_questions, tiny_vectors


def named(folder, task):
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "task": task}))
    return folder


def test_the_longest_texts_come_with_their_labels(tmp_path):
    whole = named(tiny_prepared(tmp_path / "whole"), "classify")
    part = write_longest(whole, tmp_path / "part", 3)
    texts, all_texts = open_tokens(part, "train"), open_tokens(whole, "train")
    assert sorted(texts.lengths) == sorted(all_texts.lengths)[-3:]
    labels = [text[0] % 3 for text in (texts[at] for at in range(3))]
    assert open_array(part, "train.labels").tolist() == labels


def test_learned_flags_stay_with_their_texts(tmp_path):
    part = write_longest(tiny_instructions(tmp_path / "whole"), tmp_path / "part", 2)
    assert len(open_array(part, "train.learn")) == len(open_tokens(part, "train").tokens)


@pytest.mark.parametrize("make", [tiny_questions, tiny_vectors])
def test_queries_keep_their_answers(tmp_path, make):
    whole = make(tmp_path / "whole")
    part = write_longest(whole, tmp_path / "part", 4)
    qrels = open_array(part, "train.qrels")
    assert len(qrels) == 4
    form = json.loads((part / "manifest.json").read_text())["form"]
    corpus = open_tokens(part, "corpus") if form == "text" else open_array(part, "corpus.vectors")
    assert qrels[:, 1].max() < len(corpus)


def test_the_work_in_a_folder_is_counted(tmp_path):
    whole = named(tiny_prepared(tmp_path / "whole"), "classify")
    lengths = open_tokens(whole, "train").lengths
    found = amounts_of(whole, batch_size=4)
    assert (found.examples, found.tokens) == (len(lengths), lengths.sum())
    assert found.largest_step_tokens == np.sort(lengths)[-4:].sum()
