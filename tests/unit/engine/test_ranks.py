"""Ranks share a step: who takes what, what they agree on, and that the sum is what one process computes."""

import numpy as np
import pytest
import torch
from torch import nn

from holdfast.core.errors import MachineError, RequestError
from holdfast.core.event_log import EventLog, read_events
from holdfast.core.events import CheckpointRejected
from holdfast.engine.attempt_settings import AttemptSettings
from holdfast.engine.batches import balanced_shares, split_step
from holdfast.engine.checkpoint import TrainingState
from holdfast.engine.data_order import DataOrder
from holdfast.engine.distributed_ranks import StepAllReduce, _buckets, own_device, require_enough
from holdfast.engine.rank_checkpoints import make_checkpoints
from holdfast.engine.rank_info import RankInfo, read_rank_info
from holdfast.engine.ranks import ALONE
from holdfast.engine.tasks import load_task
from tests.tiny import tiny_bert, tiny_instructions, tiny_llama, tiny_prepared, tiny_questions
from tests.unit.engine.thread_ranks import together

LORA = {"lora": {"r": 4, "lora_alpha": 8, "lora_dropout": 0.1}}
MINING = {"mining": {"from_epoch": 0, "last_rank": 20, "negatives": 2}}
TORCHRUN = {"TORCHELASTIC_RUN_ID": "7", "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts")
    bert, llama = tiny_bert(folder / "bert"), tiny_llama(folder / "llama")
    return {
        "classify": (bert, tiny_prepared(folder / "labels")),
        "causal": (llama, tiny_instructions(folder / "chats")),
        "two-tower": (bert, tiny_questions(folder / "pairs")),
    }


def settings_for(parts, task: str, **more) -> AttemptSettings:
    model, prepared = map(str, parts[task])
    return AttemptSettings(task=task, model=model, prepared=prepared, run="", batch_size=8, threads=1, **more)


def step_of(parts, task: str, ranks=ALONE, step: int = 3, **more):
    """The loss and the gradient of one step."""
    found = load_task(settings_for(parts, task, **more), ranks)
    found.begin_epoch(0)
    loss = float(found.forward_backward(step, DataOrder(found.lengths, 8, 42).examples(step)))
    if ranks.are_many:
        step = StepAllReduce(ranks, found.model)
        loss = step.agree(loss, is_interrupted=False, is_stopping=False, is_time_to_save=False).loss
        step.add_gradients()
    return loss, {name: weight.grad for name, weight in found.model.named_parameters() if weight.grad is not None}


@pytest.mark.parametrize(
    ("task", "more"),
    [
        ("classify", {}),
        ("causal", {"micro_tokens": 60}),
        ("causal", {"options": LORA}),
        ("two-tower", {}),
        ("two-tower", {"micro_tokens": 60, "options": {"learn_temperature": True, "towers": "separate"}}),
        ("two-tower", {"options": MINING | {"symmetric": True}}),
    ],
    ids=["classify", "causal", "LoRA", "towers", "towers, cached", "towers, mined"],
)
@pytest.mark.parametrize("size", [2, 3])
def test_ranks_match_loss_and_gradient_of_one_process(parts, task, more, size):
    loss, gradients = step_of(parts, task, **more)
    for found_loss, found in together(size, lambda ranks: step_of(parts, task, ranks, **more)):
        assert found_loss == pytest.approx(loss, rel=1e-5)
        assert found.keys() == gradients.keys()
        for name, gradient in gradients.items():
            torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6, msg=name)


def test_rank_without_texts_takes_part(parts):
    def few(ranks):
        found = load_task(settings_for(parts, "two-tower"), ranks)
        loss = float(found.forward_backward(0, np.arange(2)))  # two queries and their passages
        return (
            StepAllReduce(ranks, found.model)
            .agree(loss, is_interrupted=False, is_stopping=False, is_time_to_save=False)
            .loss
        )

    assert together(7, few) == pytest.approx([few(ALONE)] * 7, rel=1e-5)


@pytest.mark.parametrize("in_lockstep", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_every_text_of_a_step_belongs_to_one_rank(size, in_lockstep):
    draws = np.random.default_rng(size)
    lengths, examples = draws.integers(3, 40, 50), draws.permutation(50)[:16]

    def of_rank(ranks):
        return list(split_step(examples, lengths, 60, 2, ranks))

    def places(batches):
        found = [part for parts in batches for part in parts if not part.is_idle]
        return sorted(
            tuple(map(int, one))
            for part in found
            for one in zip(part.places, part.first_tokens, part.examples, strict=True)
        )

    dealt = together(size, of_rank, in_lockstep=in_lockstep)
    assert sorted(one for batches in dealt for one in places(batches)) == places(of_rank(ALONE))
    for batches in dealt:
        for micro in batches:
            assert sum(int(lengths[part.examples].sum()) for part in micro) <= 60
    assert len({len(batches) for batches in dealt}) == 1 or not in_lockstep


def test_shares_of_ranks_are_about_equal():
    lengths = np.sort(np.random.default_rng(0).integers(10, 60, 64))
    for size in (2, 3, 8):
        tokens = [int(lengths[some].sum()) for some in balanced_shares(lengths, size)]
        assert max(tokens) <= 1.1 * lengths.sum() / size
    assert [len(some) for some in balanced_shares(np.array([5, 5]), 4)] == [1, 1, 0, 0]


@pytest.mark.parametrize("in_lockstep", [False, True])
@pytest.mark.parametrize(("works", "size"), [(7, 3), (2, 3), (6, 2), (1, 4)])
def test_distributed_work_counts_once(works, size, in_lockstep):
    dealt = together(size, lambda ranks: list(ranks.own_share(list(range(works)))), in_lockstep=in_lockstep)
    assert sorted(work for own in dealt for work, counts in own if counts) == list(range(works))
    assert min(map(len, dealt)) >= 1
    assert len(set(map(len, dealt))) == 1 or not in_lockstep


def test_first_rank_times_saves_and_any_rank_may_stop():
    def agree(ranks):
        own = {"is_interrupted": False, "is_stopping": ranks.rank == 2, "is_time_to_save": ranks.rank == 1}
        return StepAllReduce(ranks, nn.Linear(2, 2)).agree(ranks.rank + 1.0, **own)

    for met in together(3, agree):
        assert (met.loss, met.is_interrupted, met.is_stopping, met.is_time_to_save) == (6.0, False, True, False)


def test_failed_part_drops_the_step_on_all_ranks():
    def agree(ranks):
        own = {"is_interrupted": ranks.rank == 1, "is_stopping": False, "is_time_to_save": False}
        return StepAllReduce(ranks, nn.Linear(2, 2)).agree(0.0, **own)

    assert all(met.is_interrupted for met in together(2, agree))


def test_weight_unused_by_all_ranks_has_no_gradient():
    def add(ranks):
        torch.manual_seed(0)
        model = nn.ModuleList([nn.Linear(2, 2, bias=False) for _ in range(3)])
        if ranks.rank == 0:
            model[0].weight.grad = torch.ones(2, 2)
        model[1].weight.grad = torch.full((2, 2), ranks.rank + 1.0)
        step = StepAllReduce(ranks, model)
        step.agree(0.0, is_interrupted=False, is_stopping=False, is_time_to_save=False)
        step.add_gradients()
        return [layer.weight.grad if layer.weight.grad is None else float(layer.weight.grad.mean()) for layer in model]

    assert together(2, add) == [[1.0, 3.0, None]] * 2


def test_gradient_buckets_have_one_dtype():
    weights = [torch.zeros(1 << 22), *(torch.zeros(3) for _ in range(2)), torch.zeros(3, dtype=torch.bfloat16)]
    weights += [torch.zeros(1 << 24)]
    assert [len(bucket) for bucket in _buckets(weights)] == [3, 1, 1]
    assert [weight for bucket in _buckets(weights) for weight in bucket] == weights


def test_all_ranks_load_the_first_ranks_checkpoint(tmp_path):
    folder, told = tmp_path / "checkpoints", tmp_path / "events.jsonl"

    def saved(value: float) -> dict:
        return {"weights": {"w": torch.full((50,), value)}, "optimizer": {"w/step": torch.tensor(value)}}

    def save(ranks):
        made = make_checkpoints(folder, EventLog(told), ranks)
        for step in (1, 2):
            made.save(step, saved(float(step)), TrainingState(), best=step == 1)
        made.save(2, saved(2.5), TrainingState(), is_begun=True)
        made.wait()

    def load(ranks):
        made = make_checkpoints(folder, EventLog(told), ranks)
        newest, best = made.load_newest(), made.load_best()
        return newest.step, float(newest.parts["weights"]["w"][0]), best.step

    assert together(2, lambda ranks: make_checkpoints(folder, EventLog(told), ranks).load_newest()) == [None, None]
    together(2, save)
    assert together(3, load) == [(2, 2.5, 1)] * 3
    assert load(ALONE) == (2, 2.5, 1)
    (folder / "step-000000002-begun" / "weights.safetensors").write_bytes(b"other")
    assert together(3, load) == [(2, 2.0, 1)] * 3
    assert [event.path for event in read_events(told) if isinstance(event, CheckpointRejected)] == [
        "step-000000002-begun"
    ]


def test_torchrun_sets_the_rank():
    assert read_rank_info({}) is None
    assert read_rank_info({"RANK": "0", "WORLD_SIZE": "2"}) is None  # of a job that we are no part of
    assert read_rank_info(TORCHRUN | {"WORLD_SIZE": "1", "RANK": "0"}) is None
    assert read_rank_info(TORCHRUN) == RankInfo(rank=3, size=4, local_rank=1, local_size=2)
    assert RankInfo(0, 4, 0, 4).threads(3) == 3
    assert RankInfo(0, 64, 0, 64).threads(None) == 1
    assert RankInfo(0, 256, 0, 64).threads(2) == 1  # a plan of a machine with more cores than this one


def test_ranks_of_other_machines_must_have_the_same_model():
    def refused(ranks, words: str) -> str:
        try:
            ranks.require_same(words, "the model")
        except RequestError as error:
            return error.what
        return ""

    assert together(2, lambda ranks: refused(ranks, "abc")) == ["", ""]
    assert [bool(what) for what in together(2, lambda ranks: refused(ranks, f"abc {ranks.rank}"))] == [False, True]


def test_too_many_ranks_are_refused_with_numbers():
    require_enough(8, 8)
    with pytest.raises(RequestError) as refused:
        require_enough(8, 9)
    assert [word for word in refused.value.found.split() if word.isdigit()] == ["9", "8"]
    info = RankInfo(rank=99, size=100, local_rank=99, local_size=100)
    assert own_device("cpu", info) == "cpu"
    for device in ("mps", "cuda"):
        with pytest.raises(MachineError):
            own_device(device, info)
