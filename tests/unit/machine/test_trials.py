"""What becomes of a device's child is always an answer."""

import pytest

from holdfast.machine.commands import Unanswerable
from holdfast.machine.trials import (
    Children,
    TrialEnd,
    found_devices,
    innermost_frame,
    judge,
    lost_devices,
    read_lines,
    run_child,
)

CRASH = """Fatal Python error: Segmentation fault

Thread 0x00007f11 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait

Current thread 0x00007f22 (most recent call first):
  File "/env/torch/nn/functional.py", line 2244 in linear
  File "/env/holdfast/machine/device_trial.py", line 90 in _loss

Extension modules: numpy (total: 1)
"""
ABORT = """OMP: Error #15: Initializing libomp.dylib, but found libomp.dylib already initialized.
Fatal Python error: Aborted
"""
HANG = """Timeout (0:01:00)!
Thread 0x00007f22 (most recent call first):
  File "/env/torch/cuda/__init__.py", line 310 in _lazy_init
"""
DOING = ({"doing": "import torch"}, {"doing": "a training step on mps"})
GOOD = (*DOING, {"outcome": "agrees", "detail": "loss 5.1 and gradients as in double precision"})


def ending(lines=(), errors="", code=0):
    return TrialEnd(lines, errors, code, 3.0)


def test_step_that_agrees():
    trial = judge("cpu", ending(GOOD), 60)
    assert (trial.outcome, trial.seconds) == ("agrees", 3.0)


def test_crash_has_its_signal_and_place():
    trial = judge("mps", ending(DOING, CRASH, -11), 60)
    assert (trial.outcome, trial.signal) == ("crash", "SIGSEGV")
    assert "nn/functional.py:2244" in trial.detail


def test_abort_has_its_error_message():
    trial = judge("cpu", ending(DOING[:1], ABORT, -6), 60)
    assert trial.signal == "SIGABRT"
    assert trial.error.startswith("OMP: Error #15: ")


def test_child_that_ended_itself_at_the_limit_hung():
    trial = judge("cuda:0", ending(DOING, HANG, 1), 60)
    assert trial.outcome == "hang"
    assert "cuda/__init__.py:310" in trial.detail


def test_child_that_was_killed_at_the_limit_hung():
    trial = judge("cpu", ending((), "", None), 5)
    assert trial.outcome == "hang"


def test_child_that_ended_early_is_an_error_with_its_output():
    trial = judge("cpu", ending((), "ModuleNotFoundError: No module named 'encodings'\n", 1), 5)
    assert (trial.outcome, trial.error) == ("error", "ModuleNotFoundError: No module named 'encodings'")


def test_crash_after_the_result_does_not_change_it():
    assert judge("cpu", ending(GOOD, CRASH, -11), 60).outcome == "agrees"


def test_output_of_libraries_is_skipped():
    text = 'Loading...\n{"doing": "import torch"}\n{not json}\n[1]\n{"outcome": "agrees"}\n'
    assert read_lines(text) == ({"doing": "import torch"}, {"outcome": "agrees"})


def test_cpu_child_lists_the_accelerators():
    lines = (*GOOD, {"kind": "cuda", "devices": ["cuda:0", "cuda:1"], "reason": ""}, {"kind": "mps", "devices": []})
    assert found_devices(ending(lines)) == ["cuda:0", "cuda:1"]


def test_unusable_gpu_is_reported_only_if_present():
    lines = (*GOOD, {"kind": "cuda", "devices": [], "reason": "CUDA initialization: the driver is too old"})
    assert lost_devices(ending(lines), 60, has_nvidia=False) == []
    (lost,) = lost_devices(ending(lines), 60, has_nvidia=True)
    assert (lost.device, lost.outcome) == ("cuda", "error")


def test_hang_while_looking_for_a_device_is_blamed_on_it():
    lines = (*GOOD, {"doing": "looking for cuda", "looking_for": "cuda"})
    (lost,) = lost_devices(ending(lines, "", None), 60, has_nvidia=True)
    assert (lost.device, lost.outcome) == ("cuda", "hang")
    assert judge("cpu", ending(lines, "", None), 60).outcome == "agrees"


def test_no_child_is_started_after_all_were_stopped():
    children = Children()
    children.stop()
    with pytest.raises(Unanswerable):
        run_child("cpu", 1.0, children)


def test_text_without_a_stack_has_no_frame():
    assert innermost_frame("") == ""
    assert innermost_frame("RuntimeError: no") == ""
