"""What counts as a checkpoint that a training could go on from."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from holdfast_preload.loss_check import LossCheck
from holdfast_preload.trainer_saves import Saves


@pytest.mark.parametrize(("save_only_model", "last_step"), [(True, -1), (False, 7)])
def test_weights_only_save_does_not_delay_ours(attempt, tmp_path, save_only_model, last_step):
    trainer = SimpleNamespace(
        args=SimpleNamespace(output_dir=str(tmp_path), save_only_model=save_only_model),
        state=SimpleNamespace(global_step=7),
        model=None,
        is_world_process_zero=lambda: True,
    )
    saves = Saves(1, trainer, LossCheck(1))
    saves.watched(lambda trainer: None, (), {})
    assert saves.timer.last_step == last_step


def test_latest_complete_save_survives_incomplete_ones(attempt):
    saves = Saves(1, SimpleNamespace(args=SimpleNamespace(should_save=True)), LossCheck(1))
    for age, step in enumerate((150, 190, 200, 100)):  # the newest first
        folder = Path(saves.folder, f"checkpoint-{step}")
        folder.mkdir(parents=True)
        os.utime(folder, (1000 - age, 1000 - age))
    saves._keep_few(150)
    assert {path.name for path in Path(saves.folder).iterdir()} == {"checkpoint-150", "checkpoint-190"}
