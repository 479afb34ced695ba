"""Workers with a real database and a real broker: no message, kill or outage loses a job or runs one twice."""

import os
import signal
import time

import pytest

from tests.service.parts import postgres, rabbitmq, redis
from tests.service.place import kill, place
from tests.tiny import tiny_bert

pytestmark = [pytest.mark.service, pytest.mark.timeout(300)]

LONG = {"max_steps": 4000, "save_seconds": 2}  # long enough to be killed in the middle


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_bert(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def database():
    with postgres() as part:
        yield part


@pytest.fixture
def site(tmp_path, model, database):
    with redis() as broker, place(tmp_path, model, database_url=database.url, broker_url=broker.url) as made:
        made.broker, made.database = broker, database
        yield made


def finished_once(site, job_id):
    """Whether a job is finished, with one model and one end in its folder."""
    models = site.ask(f"select count(*) as n from jobs_trainedmodel where job_id={job_id}")[0]["n"]
    return (
        site.row(job_id)["state"] == "finished"
        and models == 1
        and site.result(job_id)["state"] == "finished"
        and len(site.events(job_id, "finished")) == 1
    )


def test_the_same_message_five_times_runs_a_job_once(site):
    site.worker(slots=2)
    (job_id,) = site.submit()
    code = f"from holdfast.service.jobs.tasks import announce; print([announce({job_id}) for _ in range(5)])"
    assert site.run_code(code).strip() == str([True] * 5)
    site.wait(job_id, "finished")
    time.sleep(1)
    assert finished_once(site, job_id)
    assert site.row(job_id)["claims"] == 1
