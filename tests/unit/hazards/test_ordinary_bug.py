"""An exception that no hazard explains is answered with the user's own line, the wrong value and two reasons."""

import pytest

from holdfast.core.evidence import OrdinaryBug
from holdfast.hazards.diagnose import diagnose
from holdfast.hazards.tracebacks import PYTHON, REMOTE, owner_of
from holdfast.logs.log_text import read_evidence
from holdfast.runs.bug_wording import bug_place, bug_reasons

KEY = """Traceback (most recent call last):
  File "/home/jo/exp/train.py", line 88, in <module>
    main()
  File "/home/jo/exp/data.py", line 12, in rows
    label = labels[row["lable"]]
  File "/venv/lib/python3.12/site-packages/somelib/frame.py", line 410, in __getitem__
    return self._data[key]
KeyError: 'lable'
"""


def bug_of(log: str, status: str = "1") -> OrdinaryBug:
    diagnosis = diagnose(read_evidence(log, status))
    assert diagnosis.slug == "unknown"
    assert diagnosis.bug is not None
    return diagnosis.bug


def test_own_line_is_found_below_library_frames():
    bug = bug_of(KEY)
    assert (bug.place.file, bug.place.line, bug.place.source) == (
        "/home/jo/exp/data.py",
        12,
        'label = labels[row["lable"]]',
    )
    assert (bug.kind, bug.value, bug.raised_in) == ("missing_key", "'lable'", "somelib")


def test_similar_name_in_the_log_is_offered():
    log = (
        '  File "train.py", line 9, in step\n    loss = criterion(ouptut, target) + 0 * output.sum()\n'
        "NameError: name 'ouptut' is not defined\n"
    )
    assert bug_of(log).near == "output"


def test_notebook_cell_and_its_line_are_found():
    log = (
        "KeyError                                  Traceback (most recent call last)\n"
        "Cell In[4], line 12\n     10 x = 1\n---> 12 run(batch)\n\nCell In[2], line 3, in run(batch)\n"
        "      2 def run(batch):\n----> 3     return batch['ids']\n\nKeyError: 'ids'\n"
    )
    place = bug_of(log).place
    assert (place.file, place.line) == ("Cell In[2]", 3)


@pytest.mark.parametrize(
    ("message", "kind", "value"),
    [
        ("AttributeError: 'NoneType' object has no attribute 'shape'", "none_value", "shape"),
        (
            "UnboundLocalError: cannot access local variable 'loss' where it is not associated with a value",
            "unassigned_name",
            "loss",
        ),
        ("IndexError: list index out of range", "index_range", ""),
        ("IndexError: index 7 is out of bounds for axis 0 with size 7", "index_range", "7"),
        ("ValueError: Expected input batch_size (1280) to match target batch_size (1024).", "shape", ""),
        ("ValueError: not enough values to unpack (expected 2, got 1)", "unpack", ""),
        ("ZeroDivisionError: float division by zero", "division", ""),
        ("AssertionError", "assertion", ""),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'data/a.csv'", "missing_file", "'data/a.csv'"),
    ],
)
def test_kind_and_value_of_common_exceptions(message, kind, value):
    log = f'Traceback (most recent call last):\n  File "train.py", line 5, in <module>\n    step()\n{message}\n'
    bug = bug_of(log)
    assert (bug.kind, bug.value) == (kind, value)
    assert len(bug_reasons(bug)) == 2
    assert bug_place(bug).startswith("train.py:5")


def test_ctrl_c_is_known_and_placed():
    bug = bug_of(
        'Traceback (most recent call last):\n  File "train.py", line 7, in <module>\n    sleep(9)\nKeyboardInterrupt\n'
    )
    assert (bug.kind, bug.place.line) == ("interrupted", 7)


def test_finished_run_has_no_bug():
    assert diagnose(read_evidence(KEY, "0")).bug is None


@pytest.mark.parametrize(
    ("path", "owner"),
    [
        ("/home/jo/exp/train.py", ""),
        ("<ipython-input-3-1b2c>", ""),
        ("/venv/lib/python3.12/site-packages/trl/trainer/sft_trainer.py", "trl"),
        ("C:\\Python311\\Lib\\site-packages\\pandas\\core\\frame.py", "pandas"),
        ("torch/nn/modules/module.py", "torch"),
        ("/usr/lib/python3.12/json/decoder.py", PYTHON),
        ("/home/jo/.cache/huggingface/modules/transformers_modules/phi3/modeling_phi3.py", REMOTE),
        ("/home/jo/project/datasets/loader.py", ""),
        ("/home/jo/swift/train.py", ""),
        ("/home/jo/accelerate/src/accelerate/launchers.py", "accelerate"),
        ("datasets/arrow_dataset.py", "datasets"),
    ],
)
def test_owner_of_a_source_file(path, owner):
    assert owner_of(path) == owner
