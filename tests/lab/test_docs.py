"""The blocks of commands that the documentation marks as runnable, run as a reader would, page by page."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs_text import ROOT, Block, all_pages, blocks_of, name_of

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
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = os.environ | {"PATH": path, "COLUMNS": "100", "XDG_STATE_HOME": str(folder / "state")}
    for block in blocks:
        printed = ""
        for command in block.commands:
            ended = subprocess.run(["bash", "-c", command], cwd=folder, env=env, capture_output=True, text=True)
            printed += f"$ {command}\n{ended.stdout}"
            where = f"{name_of(block.page)}, line {block.line}: {command}\n{ended.stdout[-2000:]}{ended.stderr[-2000:]}"
            assert ended.returncode == block.exit_code, where
        if block.is_printed:
            assert printed.strip() == block.text.strip()
