import numpy as np

from holdfast.engine.retrieval_data import Relevance, contents

CORPUS = [np.array(text, dtype=np.int32) for text in ([1, 2], [3], [1, 2], [4], [5], [9, 9])]
QUERIES = [np.array(text, dtype=np.int32) for text in ([7], [8], [7], [9, 9])]
# Questions 0 and 2 are the same words; passage 0 answers the first, passage 3 the second.
QRELS = np.array([[0, 0, 1], [1, 1, 1], [2, 3, 1], [3, 4, 1]])
GROUPS = np.array([0, 1, 2, 3, 1, -1])


def judged(groups=None) -> Relevance:
    return Relevance(contents(QUERIES), contents(CORPUS), QRELS, groups)


def test_answers_and_their_copies_are_masked():
    assert judged().hidden(0).tolist() == [0, 2, 3]
    assert judged().hidden(2).tolist() == [0, 2, 3]
    assert judged().hidden(1).tolist() == [1]


def test_passages_of_the_same_article_are_hidden_on_request():
    assert judged(GROUPS).hidden(1).tolist() == [1, 4]
    assert judged(GROUPS).hidden(3).tolist() == [1, 4, 5]  # and the query's own text


def test_missing_articles_are_not_equal():
    groups = np.full(6, -1)
    assert judged(groups).hidden(1).tolist() == [1]


def test_passage_equal_to_the_query_is_found():
    assert judged().itself(3).tolist() == [5]
    assert judged().itself(0).tolist() == []


def test_all_passages_but_hidden_ones_may_be_negative():
    for groups in (None, GROUPS):
        allowed = judged(groups).may_be_negative(np.arange(4), np.arange(6))
        for query in range(4):
            assert np.flatnonzero(~allowed[query]).tolist() == judged(groups).hidden(query).tolist()
