"""The preload is imported as a script sees it: from its own folder on the path."""

import sys
from pathlib import Path

import pytest

import holdfast

sys.path.append(str(Path(holdfast.__file__).parent / "preload"))


@pytest.fixture
def attempt(tmp_path):
    """An attempt folder whose settings the test gives; events can be read back."""
    from holdfast_preload import event_writer, script_settings

    folder = tmp_path / "run/attempts/02"
    folder.mkdir(parents=True)
    event_writer.open_in(str(folder))
    event_writer._written.clear()
    script_settings.read(str(folder))
    yield folder
    script_settings._given.clear()
    event_writer._path = ""
