"""Advice names the command that was run."""

import shlex

import pytest

from holdfast.core.evidence import Diagnosis
from holdfast.core.plan import Remedy
from holdfast.runs.cause_wording import with_own_command


@pytest.mark.parametrize(
    ("advice", "command", "said"),
    [
        ("gdb --args python train.py", "python3 my_train.py --lr 1", "gdb --args python3 my_train.py --lr 1"),
        ("NCCL_DEBUG=INFO torchrun train.py", "torchrun fit.py", "NCCL_DEBUG=INFO torchrun fit.py"),
        ("python -u train.py > train.log", "python fit.py", "python -u fit.py > train.log"),
        ("CUDA_VISIBLE_DEVICES=1 python train.py", "python -m fit", "CUDA_VISIBLE_DEVICES=1 python -m fit"),
        ("torchrun train.py", "./fit.sh", "torchrun train.py"),
        ("torchrun train.py", "torchrun --nproc-per-node=2 fit.py", "torchrun fit.py"),
        ("torchrun train.py", "bash -c 'cd x && python fit.py'", "torchrun train.py"),
        ("grep exit train.py", "python -m my.py fit.py", "grep exit fit.py"),
        ("grep 'a|b' train.py", "python fit.py --note 'a b'", "grep 'a|b' fit.py"),
        ("gdb --args python train.py", "python -m holdfast.engine 01", "gdb --args python train.py"),
    ],
)
def test_advice_names_the_command_that_was_run(advice, command, said):
    diagnosis = Diagnosis(slug="x", confidence="proven", title="x", remedies=(Remedy("look", command=advice),))
    assert with_own_command(diagnosis, shlex.split(command)).remedies[0].command == said


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("python -m pkg.fit --config conf.py", ""),
        ("bash -c 'python fit.py'", ""),
        ("python -c 'import fit'", ""),
        ("python fit.py", "grep exit fit.py"),
    ],
)
def test_advice_about_a_script_needs_one(command, said):
    remedy = Remedy("look", command="grep exit train.py", needs_script=True)
    diagnosis = Diagnosis(slug="x", confidence="proven", title="x", remedies=(remedy,))
    assert with_own_command(diagnosis, shlex.split(command)).remedies[0].command == said


def test_a_command_with_quotes_is_not_put_into_quotes():
    advice = "holdfast run -- sh -c 'python train.py < answers.txt'"
    diagnosis = Diagnosis(slug="x", confidence="proven", title="x", remedies=(Remedy("answer", command=advice),))
    assert with_own_command(diagnosis, ("python", "-c", "input()")).remedies[0].command == advice
