"""The plan of a training run: every choice has a reason; what cannot fit is said with numbers."""

from pathlib import Path

import pytest

from holdfast.core.errors import MachineError, RequestError, set_to
from holdfast.core.facts import DatasetFacts, DeviceTrial, Gpu, Lengths, MachineFacts, ModelFacts
from holdfast.core.setting_values import make_request
from holdfast.core.settings import PRESETS, is_of_preset, with_preset
from holdfast.data.amounts import Amounts
from holdfast.pipeline.choices import class_weights
from holdfast.pipeline.memory_model import need_of
from holdfast.pipeline.train_plan import make_plan

MINILM = ModelFacts(
    name="minilm",
    folder="/m",
    source="a folder",
    kind="bert",
    parameters=22_713_216,
    layers=6,
    hidden=384,
    inner=1536,
    vocabulary=30_522,
    positions=512,
)
LLAMA = ModelFacts(
    name="llama",
    folder="/l",
    kind="llama",
    parameters=8_000_000_000,
    layers=32,
    hidden=4096,
    inner=14_336,
    vocabulary=128_000,
)
LAPTOP = MachineFacts(
    os="linux", cpu_count=8, cpu_count_physical=4, memory_bytes=16_000_000_000, memory_free_bytes=12_000_000_000
)
WORDS = Lengths(unit="words", median=10, mean=12, p95=29, p99=43, longest=79, measured=100)


def dataset(task: str = "classify", rows: int = 1000) -> DatasetFacts:
    labels = {"a": rows // 4, "b": 3 * rows // 4} if task == "classify" else {}
    return DatasetFacts(
        task=task, form="x", rows=rows, columns=(), splits={"train": rows}, lengths={"text": WORDS}, labels=labels
    )


def amounts(longest_tokens: int = 158) -> Amounts:
    return Amounts(
        examples=1000,
        tokens=24_000,
        longest_tokens=longest_tokens,
        largest_step_tokens=100_000,
        evaluation_tokens=2400,
        report_tokens=4800,
        largest_read_tokens=2400,
    )


def plan(task: str = "classify", rows: int = 1000, machine: MachineFacts = LAPTOP, model: ModelFacts = MINILM, **asked):
    request = make_request({"data": "x.csv", **asked})
    return make_plan(request, Path("/r"), machine, dataset(task, rows), model, amounts())


def test_every_choice_has_a_reason():
    assert all(choice.because for choice in plan().choices.values())


def test_max_steps_overrides_epochs_visibly():
    made = plan(max_steps=2).choices
    assert made["max_steps"].value == 2
    assert "not used" in made["epochs"].because
    assert "max_steps" not in plan().choices


def test_request_is_carried_out():
    made = plan(epochs=7, lr=1e-3, batch_size=5, threads=3, micro_tokens=1000)
    values = {name: made.choices[name].value for name in ("epochs", "lr", "batch_size", "threads", "micro_tokens")}
    assert values == {"epochs": 7, "lr": 1e-3, "batch_size": 5, "threads": 3, "micro_tokens": 1000}
    assert {made.choices[name].because for name in values} == {"as requested"}


def test_few_rows_are_seen_more_often():
    assert plan(rows=60).choices["epochs"].value > plan(rows=50_000).choices["epochs"].value


def test_a_card_that_disagrees_with_the_cpu_is_not_used():
    gpu = Gpu(name="Fast 1", kind="cuda", has_bf16=True, memory_bytes=24_000_000_000)
    trial = DeviceTrial(device="cuda:0", outcome="differs", detail="loss 3 in place of 2", seconds=1)
    made = plan(machine=MachineFacts(cpu_count=4, gpus=(gpu,), trials=(trial,)))
    assert made.choices["device"].value == "cpu"


def test_a_card_that_agrees_is_used_in_bf16():
    gpu = Gpu(name="Fast 1", kind="cuda", has_bf16=True, memory_bytes=24_000_000_000)
    trial = DeviceTrial(device="cuda:0", outcome="agrees", detail="", seconds=1)
    made = plan(machine=MachineFacts(cpu_count=4, gpus=(gpu,), trials=(trial,)))
    assert (made.choices["device"].value, made.choices["precision"].value) == ("cuda", "bf16")


def test_missing_device_is_refused():
    with pytest.raises(MachineError) as raised:
        plan(device="cuda")
    assert raised.value.setting == "device"


def test_memory_refusal_has_numbers_and_advice():
    with pytest.raises(MachineError) as raised:
        plan("causal", model=LLAMA, lora=False)
    assert "12.0 GB free" in raised.value.found
    assert raised.value.slug == "host-oom"
    assert raised.value.action
    assert (raised.value.action.setting, raised.value.action.value) == ("lora", True)


def test_smaller_micro_batches_are_taken_before_giving_up():
    small = MachineFacts(cpu_count=4, memory_bytes=3_500_000_000, memory_free_bytes=3_500_000_000)
    made = plan(machine=small)
    assert made.choices["micro_tokens"].value < 16_384


def test_adapters_are_chosen_where_all_weights_do_not_fit():
    big = MachineFacts(cpu_count=4, memory_bytes=64_000_000_000, memory_free_bytes=64_000_000_000)
    made = plan("causal", machine=big, model=LLAMA)
    assert made.choices["lora"].value is True
    assert made.settings.options["lora"]["target_modules"] == "all-linear"


def test_an_encoder_is_not_trained_to_write():
    with pytest.raises(RequestError) as raised:
        plan("causal")
    assert raised.value.action == set_to("model", "smollm2")


def test_recomputing_activations_takes_less_memory_than_keeping_them():
    kept = need_of(MINILM, 4096, task="classify")
    assert need_of(MINILM, 4096, task="classify", gradient_checkpointing=True).bytes < kept.bytes
    assert need_of(LLAMA, 4096, task="causal", lora=True).bytes < need_of(LLAMA, 4096, task="causal").bytes


def test_class_weights_make_rare_classes_count_as_much():
    asked = make_request({"data": "x", "class_weights": "balanced"})
    assert class_weights(asked, {"a": 10, "b": 90}, multi_label=False) == [5.0, 0.555556]


@pytest.mark.parametrize("preset", PRESETS)
def test_preset_fills_only_missing_settings(preset):
    filled = with_preset(make_request({"data": "x", "preset": preset, "epochs": 9}))
    assert filled.epochs == 9
    assert filled.lr == PRESETS[preset]["lr"]


def test_preset_length_differs_from_requested_length():
    asked = make_request({"data": "x.csv", "preset": "instruct", "max_length": 512})
    assert not is_of_preset(with_preset(asked), "max_length")
    assert is_of_preset(with_preset(make_request({"data": "x.csv", "preset": "instruct"})), "max_length")
