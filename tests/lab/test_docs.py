"""The blocks of commands that the documentation marks as runnable, run as a reader would, page by page.

The folder has what the pages speak of: examples/, a script train.py, and in the slow half a finished run named RUN.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs_text import ROOT, Block, all_pages, blocks_of, name_of

TRAIN_PY = """
import torch
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(30):
    loss = model(torch.randn(8, 4)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(loss.item())
"""
TRAIN = "holdfast train examples/bank_questions.csv --out RUN --max-steps 4 --prove never"
RUNNABLE = {page: [block for block in blocks_of(page) if block.is_run] for page in all_pages()}
QUICK = [page for page, blocks in RUNNABLE.items() if any(not block.is_slow for block in blocks)]
SLOW = [page for page, blocks in RUNNABLE.items() if any(block.is_slow for block in blocks)]


@pytest.mark.lab
@pytest.mark.parametrize("page", QUICK, ids=name_of)
def test_the_quick_commands_of_a_page_work(page, tmp_path):
    follow([block for block in RUNNABLE[page] if not block.is_slow], tmp_path)


@pytest.mark.lab
@pytest.mark.full
@pytest.mark.parametrize("page", SLOW, ids=name_of)
def test_all_commands_of_a_page_work(page, tmp_path):
    follow(RUNNABLE[page], tmp_path)


def follow(blocks: list[Block], folder: Path) -> None:
    """Type the blocks' commands one after the other, in a folder that has the examples."""
    shutil.copytree(ROOT / "examples", folder / "examples")
    shutil.copy(ROOT / "examples" / "bank_questions.csv", folder / "reviews.csv")
    shutil.copy(ROOT / "examples" / "bank_questions.csv", folder / "new.csv")
    (folder / "texts.txt").write_text("where is my card\nwhat is the rate\n")
    (folder / "train.py").write_text(TRAIN_PY)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = os.environ | {"PATH": path, "COLUMNS": "100", "XDG_STATE_HOME": str(folder / "state")}
    if any("RUN" in command.split() for block in blocks for command in block.commands):
        subprocess.run(["bash", "-c", TRAIN], cwd=folder, env=env, check=True, capture_output=True)
    for block in blocks:
        printed = ""
        for command in block.commands:
            ended = subprocess.run(["bash", "-c", command], cwd=folder, env=env, capture_output=True, text=True)
            printed += f"$ {command}\n{ended.stdout}"
            where = f"{name_of(block.page)}, line {block.line}: {command}\n{ended.stdout[-2000:]}{ended.stderr[-2000:]}"
            wanted = {block.exit_code} | ({3} if "holdfast doctor" in command else set())  # a blocker is an answer too
            assert ended.returncode in wanted, where
        if block.is_printed:
            assert printed.strip() == block.text.strip()
