"""A small chaos; `make chaos` is the large one."""

import pytest

from tests.service.chaos import chaos


@pytest.mark.service
@pytest.mark.full
@pytest.mark.timeout(1800)
def test_every_job_finishes_once_whatever_is_killed(tmp_path):
    found = chaos(tmp_path, jobs=12, workers=2, broker="redis", seed=1, every=6.0, seconds=1500)
    assert found["finished_once"] == 12, found
    assert found["left_running"] == 0, found
    assert sum(found["killed"].values()) >= 5, found
