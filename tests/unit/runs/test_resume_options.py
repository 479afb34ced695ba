"""What the source of a script shows about resuming it."""

import pytest

from holdfast.core.records import CommandRequest
from holdfast.runs.resume_options import foresee

LOOP = "import torch, argparse\nparser = argparse.ArgumentParser()\n{}\nloss.backward()\n"
NANO = "import torch\ninit_from = 'scratch'\nexec(open('configurator.py').read())\nif init_from == 'resume': pass\n"


@pytest.mark.parametrize(
    ("source", "how", "option"),
    [
        ("from transformers import AutoModel, Trainer\n", "trainer", ""),
        ("from trl import SFTTrainer\n", "trainer", ""),
        ("import lightning as L\n", "lightning", ""),
        ("import torch, holdfast\nfor step in holdfast.steps(m, o, 9): loss.backward()\n", "steps", ""),
        (LOOP.format("parser.add_argument('--resume', action='store_true')"), "own_option", "--resume"),
        (
            LOOP.format("parser.add_argument('-r', '--resume_from_checkpoint', type=str)"),
            "own_option",
            "--resume_from_checkpoint=CHECKPOINT",
        ),
        (NANO + "loss.backward()\n", "own_option", "--init_from=resume"),
        (LOOP.format("parser.add_argument('--lr', type=float)"), "none", ""),
    ],
)
def test_resume_is_foreseen_from_the_source(tmp_path, source, how, option):
    (tmp_path / "t.py").write_text(source)
    found = foresee(CommandRequest(command=("python", "t.py"), cwd=str(tmp_path)))
    assert found
    assert (found.how, found.option) == (how, option)


@pytest.mark.parametrize(
    "source", ["import torch\nfrom mine import train\ntrain()\n", LOOP.format("torch.load(path)"), "def broken(:\n"]
)
def test_unclear_source_foresees_nothing(tmp_path, source):
    (tmp_path / "t.py").write_text(source)
    assert foresee(CommandRequest(command=("python", "t.py"), cwd=str(tmp_path))) is None
    assert foresee(CommandRequest(command=("true",), cwd=str(tmp_path))) is None


def test_option_that_the_command_uses_is_not_proposed(tmp_path):
    (tmp_path / "t.py").write_text(LOOP.format("parser.add_argument('--resume', action='store_true')"))
    assert foresee(CommandRequest(command=("python", "t.py", "--resume"), cwd=str(tmp_path))) is None


def test_steps_under_a_launcher_foresee_nothing(tmp_path):
    (tmp_path / "t.py").write_text("import holdfast\nholdfast.steps(m, o, 9)\n")
    command = ("torchrun", "--nproc-per-node", "2", "t.py")
    assert foresee(CommandRequest(command=command, cwd=str(tmp_path))) is None
