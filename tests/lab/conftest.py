"""Real processes take their time on a busy machine: the limit on a test only ends one that would never end."""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.timeout(900))
