"""The generated pages say what the hazard files say."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

from hazard_pages import PAGES, pages


def test_every_page_is_up_to_date():
    stale = [
        name
        for name, text in pages().items()
        if not (PAGES / name).exists() or (PAGES / name).read_text(encoding="utf-8") != text
    ]
    assert not stale, "run `make hazards`"


def test_no_page_is_left_of_a_hazard_that_is_gone():
    assert {path.name for path in PAGES.glob("*.md")} == set(pages())
