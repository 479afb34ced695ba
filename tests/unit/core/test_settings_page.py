"""The page of settings is made from the request, so it cannot be out of date."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_page_of_settings_is_up_to_date():
    spec = importlib.util.spec_from_file_location("settings_page", ROOT / "tools" / "settings_page.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.PAGE.read_text(encoding="utf-8") == module.page(), "run: python tools/settings_page.py"
