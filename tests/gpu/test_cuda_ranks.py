"""Ranks on a card: the group, the meeting and weights that are dealt out. One card has one rank, so it meets itself."""

import json
import os

import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("no CUDA card", allow_module_level=True)

from safetensors.torch import load_file

from holdfast.core.event_log import EventLog, read_events
from holdfast.core.events import StepDone
from holdfast.core.heartbeat import BeatWriter
from holdfast.engine.attempt_settings import read_attempt_settings
from holdfast.engine.distributed_ranks import DistributedRanks
from holdfast.engine.loop import Loop
from holdfast.engine.rank_info import RankInfo
from holdfast.engine.ranks import ALONE
from holdfast.engine.tasks import load_task
from tests.tiny import tiny_attempt, tiny_bert, tiny_instructions, tiny_llama, tiny_prepared, tiny_questions

CASES = {
    "classify": (tiny_bert, tiny_prepared, {}),
    "causal": (tiny_llama, tiny_instructions, {"task": "causal", "micro_tokens": 100}),
    "two-tower": (tiny_bert, tiny_questions, {"task": "two-tower", "micro_tokens": 100}),
}


class OneRank(DistributedRanks):
    """The one rank of a card, which does all that several do."""

    are_many = True


def train(attempt, *, ranked: bool, stops: bool = False):
    settings = read_attempt_settings(attempt)
    ranks = ALONE
    if ranked:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29531", "RANK": "0", "WORLD_SIZE": "1"}
        if stops:
            (attempt / "stop").touch()
        ranks = OneRank(RankInfo(0, 1, 0, 1), settings.device, attempt / "stop", in_lockstep=settings.shard)
    events = EventLog(attempt / "events.jsonl")
    try:
        return Loop(load_task(settings, ranks), settings, BeatWriter(attempt / "beat"), events, ranks).train()
    finally:
        ranks.close()


def losses(attempt) -> list[float]:
    return [event.loss for event in read_events(attempt / "events.jsonl") if isinstance(event, StepDone)]


@pytest.mark.parametrize("shard", [False, True], ids=["whole", "dealt out"])
@pytest.mark.parametrize("case", CASES)
def test_rank_on_card_learns_like_one_process(tmp_path, case, shard):
    make_model, make_data, settings = CASES[case]
    parts = make_model(tmp_path / "model"), make_data(tmp_path / "prepared")
    given = {"epochs": 1, "device": "cuda:0", **settings}
    alone = tiny_attempt(tmp_path / "alone", *parts, **given)
    ranked = tiny_attempt(tmp_path / "ranked", *parts, **given, shard=shard)
    resumed = tiny_attempt(tmp_path / "ranked", *parts, number=2, **given, shard=shard)
    assert train(alone, ranked=False) == 0
    assert train(ranked, ranked=True, stops=True) == 143
    assert train(resumed, ranked=True) == 0
    assert losses(ranked) + losses(resumed) == pytest.approx(losses(alone), rel=1e-4)
    found, expected = (load_file(tmp_path / run / "model" / "model.safetensors") for run in ("ranked", "alone"))
    assert found.keys() == expected.keys()
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-3, atol=2e-5, err_msg=name)
    assert json.loads((tmp_path / "ranked" / "metrics.json").read_text())["step"]
