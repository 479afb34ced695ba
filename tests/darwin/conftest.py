import pytest

from tests.darwin.pretended import pretended_mac


@pytest.fixture
def mac(monkeypatch):
    """This process runs on a pretended macOS."""
    with pretended_mac(monkeypatch):
        yield
