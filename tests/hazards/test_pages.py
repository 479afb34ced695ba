"""The generated pages say what the hazard files say; a new hazard begins as a file that Python can read."""

import shutil
import subprocess
import sys
from pathlib import Path

from tools.hazard_pages import PAGES, pages

TOOL = Path(__file__).parents[2] / "tools" / "new_hazard.py"


def test_every_page_is_up_to_date():
    stale = [
        name
        for name, text in pages().items()
        if not (PAGES / name).exists() or (PAGES / name).read_text(encoding="utf-8") != text
    ]
    assert not stale, "run `make hazards`"


def test_no_page_is_left_of_a_hazard_that_is_gone():
    assert {path.name for path in PAGES.glob("*.md")} == set(pages())


def test_new_hazard_is_a_skeleton_with_a_unique_name(tmp_path):
    (tmp_path / "tools").mkdir()
    (tmp_path / "holdfast" / "hazards").mkdir(parents=True)
    tool = shutil.copy(TOOL, tmp_path / "tools")

    def make(name):
        return subprocess.run([sys.executable, tool, name], capture_output=True, text=True)

    assert "make hazards" in make("area-fault").stdout
    made = (tmp_path / "holdfast" / "hazards" / "area_fault.py").read_text()
    compile(made, "area_fault.py", "exec")
    assert 'slug="area-fault"' in made
    assert "already exists" in make("area-fault").stderr
    refused = make("Fault")
    assert refused.returncode != 0
    assert "name" in refused.stderr
    assert not (tmp_path / "holdfast" / "hazards" / "Fault.py").exists()
