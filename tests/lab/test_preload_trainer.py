"""HF Trainer scripts, unmodified: killed, they continue from a whole checkpoint and end with the same weights."""

import hashlib
import signal
from pathlib import Path

import pytest

from holdfast.core.events import BadNumbersFound, CheckpointRejected, Resumed, TrainingStopped
from tests.lab.preloaded import SCRIPTS, Preloaded, at_step
from tests.tiny import tiny_bert

pytestmark = pytest.mark.lab
CLASSIFY = SCRIPTS / "hf_classify.py"


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return tiny_bert(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def unbroken(model, tmp_path_factory) -> str:
    run = tmp_path_factory.mktemp("unbroken")
    attempt = Preloaded(run, 1, CLASSIFY, model, "out").finish()
    assert attempt.step() == 36
    return weights(run)


def weights(run: Path) -> str:
    return hashlib.sha256((run / "out/final/model.safetensors").read_bytes()).hexdigest()


@pytest.mark.full
def test_kills_in_three_epochs_keep_identical_weights(model, unbroken, tmp_path):
    for number, step in enumerate((5, 15, 29), start=1):
        resume = number > 1
        attempt = Preloaded(tmp_path, number, CLASSIFY, model, "out", resume=resume, save_seconds=0)
        attempt.wait_until(at_step(step)).kill()
        if resume:
            assert attempt.events(Resumed)
    last = Preloaded(tmp_path, 4, CLASSIFY, model, "out", resume=True).finish()
    (resumed,) = last.events(Resumed)
    assert resumed.step >= 27
    assert last.step() == 36
    assert weights(tmp_path) == unbroken


def test_broken_checkpoint_is_skipped_and_reported(model, unbroken, tmp_path):
    first = Preloaded(tmp_path, 1, CLASSIFY, model, "out", "save_steps=8", may_save=False)
    first.wait_until(at_step(26)).kill()
    newest = tmp_path / "out/checkpoint-24"
    (newest / "optimizer.pt").write_bytes((newest / "optimizer.pt").read_bytes()[:5000])
    (tmp_path / "out/checkpoint-16/trainer_state.json").unlink()
    second = Preloaded(tmp_path, 2, CLASSIFY, model, "out", "save_steps=8", resume=True).finish()
    skipped = {Path(event.path).name: event.reason for event in second.events(CheckpointRejected)}
    assert "optimizer.pt" in skipped["checkpoint-24"]
    assert "not finished" in skipped["checkpoint-16"]
    assert second.events(Resumed)[0].step == 8
    assert weights(tmp_path) == unbroken


@pytest.mark.full
def test_checkpoints_of_another_run_are_left_alone(model, unbroken, tmp_path):
    Preloaded(tmp_path / "other", 1, CLASSIFY, model, tmp_path / "out", "save_steps=6", "seed=1").finish()
    first = Preloaded(tmp_path, 1, CLASSIFY, model, "out", save_seconds=0)
    first.wait_until(at_step(10)).kill()
    second = Preloaded(tmp_path, 2, CLASSIFY, model, "out", resume=True).finish()
    assert 9 <= second.events(Resumed)[0].step <= 12
    assert weights(tmp_path) == unbroken


@pytest.mark.full
def test_two_trainings_of_one_script_each_continue_their_own(model, tmp_path):
    script = tmp_path / "stages.py"
    text = CLASSIFY.read_text()
    again = "Trainer(model=model, args=TrainingArguments(output, **arguments), train_dataset=rows).train()\n"
    script.write_text(text.replace("trainer.save_model", again + "trainer.save_model"))
    Preloaded(tmp_path / "a", 1, script, model, "out", "max_steps=10").finish()
    first = Preloaded(tmp_path / "b", 1, script, model, "out", "max_steps=10", save_seconds=0)
    first.wait_until(at_step(15)).kill()
    second = Preloaded(tmp_path / "b", 2, script, model, "out", "max_steps=10", resume=True).finish()
    assert [event.train for event in second.events(Resumed)] == [1, 2]
    assert second.step() == 20
    assert weights(tmp_path / "a") == weights(tmp_path / "b")


POISON = """
from transformers import TrainerCallback
class Poison(TrainerCallback):
    def on_step_begin(self, args, state, control, model, **kwargs):
        if state.global_step == 14:
            with torch.no_grad():
                next(model.parameters())[5] = float("nan")
trainer.add_callback(Poison())
"""


@pytest.mark.full
def test_nan_ends_the_attempt_and_next_starts_before_it(model, unbroken, tmp_path):
    script = tmp_path / "poisoned.py"
    script.write_text(CLASSIFY.read_text().replace("trainer.train()", POISON + "trainer.train()"))
    first = Preloaded(tmp_path, 1, script, model, "out", "save_steps=5", save_seconds=0).finish(code=1)
    (bad,) = first.events(BadNumbersFound)
    assert 14 <= bad.step <= 16
    assert bad.last_finite_step == 14
    assert "RuntimeError: loss is not finite at step" in first.output.read_text()
    second = Preloaded(tmp_path, 2, CLASSIFY, model, "out", "save_steps=5", resume=True).finish()
    assert second.events(Resumed)[0].step == 14
    assert weights(tmp_path) == unbroken


@pytest.mark.full
@pytest.mark.parametrize("how", ["signal", "file"])
def test_stop_saves_and_resume_has_identical_weights(model, unbroken, tmp_path, how):
    first = Preloaded(tmp_path, 1, CLASSIFY, model, "out").wait_until(at_step(6))
    if how == "signal":
        first.process.send_signal(signal.SIGTERM)
    else:
        (first.folder / "stop").touch()
    code = first.process.wait(timeout=60)
    if code:  # a script of half a second may be done before the file is looked for
        assert code == 143
        (stopped,) = first.events(TrainingStopped)
        assert stopped["saved"]
        second = Preloaded(tmp_path, 2, CLASSIFY, model, "out", resume=True).finish()
        assert second.events(Resumed)[0].step == stopped.step
    assert weights(tmp_path) == unbroken


@pytest.mark.full
def test_scripts_own_checkpoint_is_respected_unless_broken(model, tmp_path):
    script = tmp_path / "own.py"
    script.write_text(CLASSIFY.read_text().replace("trainer.train()", "trainer.train(resume_from_checkpoint=True)"))
    Preloaded(tmp_path, 1, CLASSIFY, model, "out", "save_steps=10").finish()
    (tmp_path / "out/checkpoint-36/trainer_state.json").unlink()
    attempt = Preloaded(tmp_path / "run", 1, script, model, tmp_path / "out", "save_steps=10").finish()
    assert attempt.events(Resumed)[0].step == 30
    assert attempt.events(CheckpointRejected)


@pytest.mark.full
def test_output_folder_is_unchanged_by_the_preload(model, tmp_path):
    options = ("save_steps=9", "save_total_limit=2")
    Preloaded(tmp_path, 1, CLASSIFY, model, "out", *options, save_seconds=0).finish()
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"checkpoint-27", "checkpoint-36", "final"}
    ours = {path.name for path in (tmp_path / "checkpoints/train-1").iterdir()}
    assert ours == {"checkpoint-34", "checkpoint-35"}
