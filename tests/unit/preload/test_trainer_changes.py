"""How changes of the plan reach a script."""

import json
from types import SimpleNamespace

import pytest
from holdfast_preload import env_changes, script_settings
from holdfast_preload.loader_hooks import changed_loader
from holdfast_preload.loss_check import LossCheck
from holdfast_preload.trainer_changes import change_batches, split_batch
from holdfast_preload.trainer_saves import is_disk_full
from holdfast_preload.wraps import around, given, in_phase

from holdfast.core.event_log import read_events
from holdfast.core.events import BadNumbersFound, ChangeApplied, ChangeRefused, HookFailed, NotObserved
from holdfast.hazards.diagnose import diagnose
from holdfast.logs.log_text import read_evidence


def ask(attempt, **asked):
    (attempt / "settings.json").write_text(json.dumps(asked))
    script_settings.read(str(attempt))


def told(attempt, kind):
    return [event for event in read_events(attempt / "events.jsonl") if isinstance(event, kind)]


@pytest.mark.parametrize(
    ("batch", "factor", "micro"), [(8, 2, 4), (8, 16, 1), (6, 4, 1), (7, 2, 1), (1, 2, 1), (12, 2, 6), (12, 5, 2)]
)
def test_a_batch_is_split_evenly(batch, factor, micro):
    assert split_batch(batch, factor) == micro
    assert batch % micro == 0


def trainer_of(module, name, **fields):
    kind = type(name, (), {"__module__": module})
    made = kind()
    made.__dict__.update(fields)
    return made


def arguments(batch=8):
    return SimpleNamespace(
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=2,
        per_device_eval_batch_size=8,
        eval_accumulation_steps=None,
    )


def test_a_split_batch_is_accumulated(attempt):
    ask(attempt, micro_batch_factor=2, eval_micro_batch_factor=4)
    args = arguments()
    change_batches(trainer_of("transformers.trainer", "Trainer"), args, None)
    assert (args.per_device_train_batch_size, args.gradient_accumulation_steps) == (4, 4)
    assert (args.per_device_eval_batch_size, args.eval_accumulation_steps) == (2, 10)
    assert [event.change for event in told(attempt, ChangeApplied)] == ["micro_batch", "eval_micro_batch"]


def test_splitting_a_batch_of_one_is_refused(attempt):
    ask(attempt, micro_batch_factor=2)
    args = arguments(batch=1)
    change_batches(trainer_of("transformers.trainer", "Trainer"), args, None)
    assert args.gradient_accumulation_steps == 2
    (refused,) = told(attempt, ChangeRefused)
    assert (refused.change, refused.value) == ("micro_batch", 2)
    assert refused.because


def test_dropped_last_batches_are_not_split(attempt):
    ask(attempt, micro_batch_factor=2)
    args = arguments()
    args.dataloader_drop_last = True
    change_batches(trainer_of("transformers.trainer", "Trainer"), args, None)
    assert args.per_device_train_batch_size == 8
    assert "dropped" in told(attempt, ChangeRefused)[0].because


def test_in_batch_negatives_are_never_split(attempt):
    ask(attempt, micro_batch_factor=2)
    args, loss = arguments(), type("MultipleNegativesRankingLoss", (), {})()
    change_batches(trainer_of("sentence_transformers.base.trainer", "BaseTrainer", _holdfast_loss=loss), args, None)
    assert args.per_device_train_batch_size == 8
    assert "MultipleNegativesRankingLoss" in told(attempt, ChangeRefused)[0].because


def test_cached_loss_takes_smaller_mini_batches(attempt):
    ask(attempt, micro_batch_factor=2)
    args = arguments()
    plain = type("MultipleNegativesRankingLoss", (), {"forward": None})()
    fields = {"mini_batch_size": 32, "forward": None, "loss": plain}
    inner = type("CachedMultipleNegativesRankingLoss", (), fields)()
    loss = SimpleNamespace(loss=inner)
    change_batches(trainer_of("sentence_transformers.base.trainer", "BaseTrainer", _holdfast_loss=loss), args, None)
    assert (args.per_device_train_batch_size, inner.mini_batch_size) == (8, 4)


def test_trainers_that_generate_in_groups_are_never_split(attempt):
    ask(attempt, micro_batch_factor=2)
    args = arguments()
    change_batches(trainer_of("trl.trainer.grpo_trainer", "GRPOTrainer"), args, None)
    assert args.per_device_train_batch_size == 8


def test_worker_options_are_dropped_without_workers(attempt):
    ask(attempt, changes={"loader_workers": 0})
    named = {"dataset": [1], "num_workers": 4, "prefetch_factor": 2, "persistent_workers": True, "timeout": 5}
    assert changed_loader(named) == {"dataset": [1], "num_workers": 0}


def test_workers_use_the_requested_start_method(attempt):
    ask(attempt, changes={"start_method": "spawn", "prefetch_batches": 1})
    changed = changed_loader({"dataset": [1], "num_workers": 2})
    assert (changed["multiprocessing_context"], changed["prefetch_factor"]) == ("spawn", 1)
    assert changed_loader({"dataset": [1]}) == {"dataset": [1]}


def test_changes_become_environment_variables(attempt):
    ask(attempt, changes={"threads": 2, "offline": True, "device": "cpu", "TOKENIZERS_PARALLELISM": "false"})
    variables = env_changes.variables()
    assert variables["OMP_NUM_THREADS"] == "2"
    assert variables["HF_HUB_OFFLINE"] == "1"
    assert variables["CUDA_VISIBLE_DEVICES"] == ""
    assert variables["TOKENIZERS_PARALLELISM"] == "false"


def test_broken_settings_mean_no_changes(attempt):
    (attempt / "settings.json").write_text('{"changes": {"dev')
    script_settings.read(str(attempt))
    assert script_settings.change("device") is None
    assert told(attempt, HookFailed)


@pytest.mark.parametrize("log", [{"loss": float("nan")}, {"loss": 0.0, "grad_norm": float("inf")}])
def test_bad_numbers_end_the_run_with_a_known_error(attempt, log):
    numbers = LossCheck(1)
    numbers.check_log({"loss": 1.0, "grad_norm": 1.0}, 10)
    with pytest.raises(RuntimeError, match="loss is not finite") as raised:
        numbers.check_log(log, 20)
    assert told(attempt, BadNumbersFound)[0].last_finite_step == 10
    text = f'Traceback (most recent call last):\n  File "train.py", line 9, in <module>\nRuntimeError: {raised.value}'
    assert diagnose(read_evidence(text, "1")).slug == "nan-loss"


def test_with_loss_scaling_one_overflow_is_healthy(attempt):
    numbers = LossCheck(1, is_scaled=True)
    for step, norm in enumerate((float("inf"), 1.0, float("inf"), float("inf"), 2.0)):
        numbers.check_log({"loss": 1.0, "grad_norm": norm}, step)
    assert not told(attempt, BadNumbersFound)


def test_missing_function_is_an_event(attempt):
    assert not around(SimpleNamespace(__name__="some.library"), "gone", in_phase("save"))
    assert told(attempt, NotObserved)[0].name == "gone"


def test_wrapping_keeps_class_and_static_methods(attempt):
    class Library:
        @classmethod
        def made(cls, value):
            return cls, value

        @staticmethod
        def plain(value):
            return value

    for name in ("made", "plain"):
        assert around(Library, name, in_phase("load"))
    assert Library.made(1) == (Library, 1)
    assert Library.plain(2) == 2


def test_arguments_are_bound_by_name():
    def call(self, first, second=2, *, third=3, **rest):
        return None

    assert given(call, ("me", 1), {"third": 4, "fourth": 5}) == {"self": "me", "first": 1, "third": 4, "fourth": 5}


def test_torch_save_errors_indicate_a_full_disk():
    error = RuntimeError("serialization failed")
    error.__context__ = RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 8389568 vs 8389520")
    assert is_disk_full(error)
    assert is_disk_full(OSError(28, "No space left on device"))
    assert not is_disk_full(RuntimeError("shape mismatch"))
