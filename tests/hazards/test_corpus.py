"""Real failures with confirmed causes, where such a file lies beside the checkout."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

from score_corpus import main

CORPUS = Path(__file__).parents[3] / "shared" / "corpus" / "cases.jsonl"


@pytest.mark.skipif(not CORPUS.exists(), reason="no corpus lies beside this checkout")
def test_causes_are_named_right_and_no_decoy_is_named(capsys):
    assert main(CORPUS) == 0, capsys.readouterr().out
