"""The preload is imported as a script sees it: from its own folder on the path."""

import sys
from pathlib import Path

import pytest

import holdfast

sys.path.append(str(Path(holdfast.__file__).parent / "preload"))


@pytest.fixture
def attempt(tmp_path):
    """An attempt folder whose settings the test gives; events can be read back."""
    from holdfast_preload import events, settings

    folder = tmp_path / "run/attempts/02"
    folder.mkdir(parents=True)
    events.open_in(str(folder))
    events._told.clear()
    settings.read(str(folder))
    yield folder
    settings._given.clear()
    events._path = ""
