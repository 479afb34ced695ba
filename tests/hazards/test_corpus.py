"""Real failures with confirmed causes: the files of them that HOLDFAST_CORPUS names."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

from score_corpus import main

CORPUS = os.environ.get("HOLDFAST_CORPUS")


@pytest.mark.skipif(not CORPUS, reason="HOLDFAST_CORPUS names no files of real failures")
def test_causes_are_named_right_and_no_decoy_is_named(capsys):
    assert main(map(Path, CORPUS.split(os.pathsep))) == 0, capsys.readouterr().out
