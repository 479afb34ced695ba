"""Which examples count as wrong, and in which order they are shown."""

import numpy as np

from holdfast.engine.mistakes import WrongRow, missed_queries, wrong_labels


def test_most_certain_mistakes_come_first():
    scores = np.array([[2.0, 0.0], [0.0, 0.1], [3.0, 0.0], [0.0, 1.0]])
    found = list(wrong_labels(scores, np.array([1, 0, 0, 0]), is_multi=False))
    assert [one.row for one in found] == [0, 3, 1]
    assert found[0] == WrongRow(row=0, expected=[1], predicted=[0], probabilities={0: 0.8808, 1: 0.1192})


def test_missed_label_is_a_mistake():
    scores = np.array([[3.0, -3.0], [3.0, 3.0], [-1.0, -1.0]])
    truth = np.array([[1.0, 1.0], [1.0, 1.0], [0.0, 0.0]], dtype=np.float32)
    found = list(wrong_labels(scores, truth, is_multi=True))
    assert [one.row for one in found] == [0]
    assert (found[0].expected, found[0].predicted) == ([0, 1], [0])


def test_worst_ranked_queries_come_first_without_hits():
    found = np.array([[0, 1, 2], [1, 0, 2], [2, 1, 0], [2, 1, 0]])
    judgements = {0: {0: 1}, 1: {2: 1}, 2: {9: 1, 8: 2}, 3: {1: 1, 0: 1}}
    assert list(missed_queries(found, judgements)) == [(2, 8, 2, None), (1, 2, 1, 3), (3, 1, 2, 2)]
