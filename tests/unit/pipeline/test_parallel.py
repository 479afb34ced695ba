"""Several processes: how many a machine can run, how they share cores and memory, how the ladder halves them."""

from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.core.errors import MachineError, RequestError, advice_text, leave_out, set_to
from holdfast.core.facts import DatasetFacts, DeviceTrial, Gpu, Lengths, MachineFacts, ModelFacts
from holdfast.core.plan import Fallback
from holdfast.core.records import RunPlan
from holdfast.core.setting_values import make_request
from holdfast.pipeline.memory_model import need_of
from holdfast.pipeline.train_plan import make_plan
from holdfast.supervisor.ladder import Tried, choose_fallback
from holdfast.supervisor.ladders import engine_ladder
from tests.unit.pipeline.test_train_plan import LAPTOP, LLAMA, MINILM, amounts, plan
from tests.unit.supervisor.test_ladder import engine_settings, named

SMOLLM = ModelFacts(
    name="smollm",
    folder="/s",
    kind="llama",
    parameters=134_515_008,
    layers=30,
    hidden=576,
    inner=1536,
    vocabulary=49_152,
)
STUCK = Tried(changes={}, ending="hang", slug="rank-stuck", step_reached=7)


def cards(count: int, memory_bytes: int = 24_000_000_000) -> MachineFacts:
    gpus = tuple(Gpu(name="Fast 1", kind="cuda", has_bf16=True, memory_bytes=memory_bytes) for _ in range(count))
    trial = DeviceTrial(device="cuda:0", outcome="agrees", detail="", seconds=1)
    return MachineFacts(os="linux", cpu_count=8, memory_bytes=64_000_000_000, gpus=gpus, trials=(trial,))


def language_plan(machine: MachineFacts, model: ModelFacts = SMOLLM, **asked: object) -> RunPlan:
    words = Lengths(unit="words", median=10, mean=12, p95=29, p99=43, longest=79, measured=100)
    facts = DatasetFacts(
        task="causal", form="x", rows=1000, columns=(), splits={"train": 1000}, lengths={"text": words}
    )
    return make_plan(make_request({"data": "x.jsonl", **asked}), Path("/r"), machine, facts, model, amounts())


def test_single_process_is_not_mentioned():
    assert not {"processes", "shard"} & plan().choices.keys()
    assert not {"processes", "shard"} & plan(processes=1).choices.keys()


def test_cores_are_shared_visibly():
    made = plan(processes=2)
    settings = made.settings
    assert (settings.processes, settings.threads, settings.shard) == (2, 2, False)
    assert plan(processes=3).choices["threads"].value == 1


def test_threads_that_were_asked_for_are_those_of_each_process():
    assert plan(processes=2, threads=4).choices["threads"].value == 4


@pytest.mark.parametrize("asked", [0, 1.5, "two"])
def test_invalid_number_of_processes_is_refused(asked):
    with pytest.raises(RequestError) as refused:
        make_request({"data": "x.csv", "processes": asked})
    assert refused.value.setting == "processes"
    assert "1 to 1,024" in refused.value.problems[0].text


def test_more_processes_than_cores_are_refused():
    with pytest.raises(MachineError) as refused:
        plan(processes=9)
    assert "8 cores" in refused.value.found
    assert refused.value.try_next == (set_to("processes", 8),)


def test_more_processes_than_gpus_are_refused():
    with pytest.raises(MachineError) as refused:
        plan(machine=cards(2), processes=4)
    assert "2 GPUs" in refused.value.found
    assert refused.value.try_next == (set_to("processes", 2), set_to("device", "cpu"))


def test_more_processes_than_examples_in_a_step_are_refused():
    with pytest.raises(RequestError) as refused:
        plan(processes=4, batch_size=3)
    assert refused.value.setting == "processes"


@pytest.mark.parametrize(
    ("asked", "kind", "instead"),
    [
        ({"processes": 99, "batch_size": 16}, MachineError, ("--processes 8",)),
        ({"processes": 99, "batch_size": 4}, RequestError, ("--processes 4",)),
        ({"processes": 4, "batch_size": 8, "nodes": 4}, RequestError, ("--processes 2", "--batch-size 16")),
        ({"processes": 2, "batch_size": 4, "nodes": 3}, RequestError, ("leave out --processes", "--batch-size 6")),
        ({"batch_size": 2, "nodes": 3}, RequestError, ("--nodes 2", "--batch-size 3")),
    ],
)
def test_suggested_number_is_not_refused_in_turn(asked, kind, instead):
    given = {**asked, **({"out": "/shared"} if "nodes" in asked else {})}
    with pytest.raises(kind) as refused:
        plan(**given)
    assert [advice_text(one).partition("  (")[0] for one in refused.value.try_next] == list(instead)


def test_machines_share_each_step_and_each_shares_its_own_cores():
    made = plan(nodes=2, out="/shared")
    assert (made.choices["processes"].value, made.choices["threads"].value) == (1, 4)
    assert made.choices["nodes"].value == 2
    assert made.nodes == 2
    assert plan(nodes=2, processes=2, out="/shared").choices["threads"].value == 2


def test_weights_are_sharded_over_all_machines():
    one = need_of(SMOLLM, 4096, task="causal", processes=2, shard=True)
    two = need_of(SMOLLM, 4096, task="causal", processes=2, nodes=2, shard=True)
    assert one.weights - two.weights == SMOLLM.parameters * 16 // 2


def test_several_processes_on_an_apple_gpu_are_refused():
    trial = DeviceTrial(device="mps", outcome="agrees", detail="", seconds=1)
    mac = MachineFacts(os="macos", cpu_count=8, gpus=(Gpu(name="M2", kind="mps"),), trials=(trial,))
    with pytest.raises(MachineError) as refused:
        plan(machine=mac, processes=2, device="mps")
    assert refused.value.try_next == (leave_out("processes"), set_to("device", "cpu"))
    assert plan(machine=mac, processes=2).choices["processes"].value == 2
    with pytest.raises(MachineError) as refused:
        plan(machine=mac, nodes=2, out="/shared", device="mps")
    assert refused.value.setting == "nodes"


def test_several_processes_on_other_systems_are_refused():
    with pytest.raises(MachineError, match="windows"):
        plan(machine=replace(LAPTOP, os="windows"), processes=2)


def test_each_process_needs_memory_and_cards_have_their_own():
    one, two = (need_of(MINILM, 4096, task="classify", processes=count) for count in (1, 2))
    assert two.activations == 2 * one.activations
    assert two.weights < 2 * one.weights  # one of them makes the copy that is saved
    card = need_of(MINILM, 4096, task="classify", on_card=True)
    assert need_of(MINILM, 4096, task="classify", on_card=True, processes=2).weights == card.weights


def test_weights_are_sharded_only_if_they_do_not_fit():
    assert not language_plan(cards(2), processes=2, lora=False).choices["shard"].value
    made = language_plan(cards(8, 40_000_000_000), LLAMA, processes=8, lora=False)
    assert made.choices["shard"].value
    assert "34.0 GB" in made.choices["shard"].because


def test_sharding_saves_memory_only_with_many_processes():
    small = replace(LAPTOP, cpu_count=32, cpu_count_physical=32, memory_bytes=53_000_000_000, memory_free_bytes=None)
    made = language_plan(small, processes=16, lora=False, batch_size=16)
    assert made.choices["shard"].value
    with pytest.raises(MachineError):
        language_plan(replace(small, memory_bytes=7_500_000_000), processes=2, lora=False, batch_size=4)


def test_memory_error_suggests_fewer_processes():
    with pytest.raises(MachineError) as refused:
        plan(machine=replace(LAPTOP, memory_bytes=1_000_000_000, memory_free_bytes=1_000_000_000), processes=4)
    assert refused.value.action
    assert (refused.value.action.setting, refused.value.action.value) == ("processes", 2)


def test_second_stuck_rank_reduces_processes():
    ladder = engine_ladder(engine_settings(processes=4, threads=1))
    first = choose_fallback(named("rank-stuck"), [STUCK], ladder)
    assert (first.action, first.changes) == ("again", {})
    second = choose_fallback(named("rank-stuck"), [STUCK, STUCK], ladder)
    assert second.changes == {"processes": 2, "threads": 2}
    half = replace(STUCK, changes=second.changes, fallback=Fallback(second.fallback.title, second.fallback.change))
    third = choose_fallback(named("rank-stuck"), [STUCK, STUCK, half], ladder)
    assert third.changes == {"processes": 1, "threads": 4}


def test_oom_reduces_processes_then_batches():
    ladder = engine_ladder(engine_settings(processes=2, threads=1, micro_tokens=4096))
    killed = Tried(changes={}, ending="signal", exit_code=-9, slug="host-oom", step_reached=7, phase="step")
    first = choose_fallback(named("host-oom"), [killed], ladder)
    assert first.changes == {"processes": 1, "threads": 2}
    alone = replace(killed, changes=first.changes, fallback=Fallback(first.fallback.title, first.fallback.change))
    second = choose_fallback(named("host-oom"), [killed, alone], ladder)
    assert second.changes == {**first.changes, "micro_tokens": 2048}


def test_one_process_with_sharding_cannot_be_halved():
    for settings in ({"processes": 1}, {}, {"processes": 2, "shard": True}):
        ladder = engine_ladder(engine_settings(**settings))
        assert ladder.apply({}, {"processes": "halve"}) == {}


def test_one_thread_as_a_remedy_outlives_fewer_processes():
    ladder = engine_ladder(engine_settings(processes=4, threads=2))
    assert ladder.apply({"threads": 1}, {"processes": "halve"}) == {"threads": 1, "processes": 2}
