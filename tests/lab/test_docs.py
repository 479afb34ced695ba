"""The blocks of commands that the documentation marks as runnable, run as a reader would, page by page.

The folder has what the pages speak of: examples/, a script train.py, a process PID that sleeps, and in the slow half a
finished run named RUN.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs_text import ROOT, Block, all_pages, blocks_of, name_of, spans_of

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
STANDS_FOR = {"DATA": "reviews.csv", "LOG": "examples/crashed_run.log", "SLUG": "openmp-duplicate", "TEXT": "'a text'"}
ENDS = ("bundle", "doctor", "explain", "export", "memory", "models", "predict", "report", "status", "survey", "watch")
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


@pytest.mark.lab
@pytest.mark.full
def test_commands_within_sentences_and_tables_work(tmp_path):
    """Those that end by themselves; alternatives one after the other, with and without what is in brackets."""
    spans = {span for page in all_pages() for span in spans_of(page)}
    commands = {command for span in spans for command in _variants(span) if command.split()[1] in ENDS}
    assert len(commands) >= 15
    follow([Block(ROOT / "README.md", 0, "sh", "\n".join(sorted(commands)))], tmp_path)


def follow(blocks: list[Block], folder: Path) -> None:
    """Type the blocks' commands one after the other, in a folder that has the examples."""
    shutil.copytree(ROOT / "examples", folder / "examples")
    shutil.copy(ROOT / "examples" / "bank_questions.csv", folder / "reviews.csv")
    shutil.copy(ROOT / "examples" / "bank_questions.csv", folder / "new.csv")
    (folder / "texts.txt").write_text("where is my card\nwhat is the rate\n")
    (folder / "train.py").write_text(TRAIN_PY)
    rows = [{"instruction": f"Add {one} and 1.", "output": f"{one + 1}"} for one in range(20)]
    (folder / "instructions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = os.environ | {"PATH": path, "COLUMNS": "100", "XDG_STATE_HOME": str(folder / "state")}
    if any("RUN" in command.split() for block in blocks for command in block.commands):
        subprocess.run(["bash", "-c", TRAIN], cwd=folder, env=env, check=True, capture_output=True)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as sleeper:
        try:
            for block in blocks:
                _type(block, folder, env, sleeper.pid)
        finally:
            sleeper.kill()


def _type(block: Block, folder: Path, env: dict[str, str], pid: int) -> None:
    printed = ""
    for command in block.commands:
        typed = re.sub(r"\bPID\b", str(pid), command)
        ended = subprocess.run(["bash", "-c", typed], cwd=folder, env=env, capture_output=True, text=True)
        printed += f"$ {command}\n{ended.stdout}"
        where = f"{name_of(block.page)}, line {block.line}: {command}\n{ended.stdout[-2000:]}{ended.stderr[-2000:]}"
        wanted = {block.exit_code} | ({3} if "holdfast doctor" in command else set())  # a blocker is an answer too
        assert ended.returncode in wanted, where
    if block.is_printed:
        assert printed.strip() == block.text.strip()


def _variants(span: str) -> list[str]:
    """The commands that a piece of inline code stands for; none where it is no whole command of ours."""
    if not span.startswith("holdfast ") or "..." in span or any(word in span for word in ("WORDS", "NAME")):
        return []
    with_options = [span.replace("[", "").replace("]", ""), re.sub(r"\[.*?\]", "", span).strip()]
    found = []
    for one in with_options:
        head, _, last = one.rpartition(" ")
        found += [f"{head} {choice}" for choice in last.split("|")]
    places = STANDS_FOR | {"FOLDER": str(Path(pytest.__file__).parents[1]), "FILE": "texts.txt"}
    needs = [one for one in found if len(one.split()) > 2 or one.split()[1] in ("doctor", "memory", "models")]
    return [" ".join(places.get(word, word) for word in one.split()) for one in needs if not one.endswith(" -")]
