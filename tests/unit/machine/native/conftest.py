"""The machine on which a foreign folder is judged."""

import pytest

from holdfast.machine.native import dynamic_loader


@pytest.fixture
def on_linux(monkeypatch):
    """The verdicts about foreign folders must not depend on the machine that runs the tests."""
    monkeypatch.setattr(dynamic_loader, "HOST_SYSTEM", "linux")
