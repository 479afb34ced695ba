"""Workers with a real database and a real broker: no message, kill or outage loses a job or runs one twice."""

import signal
import time
import uuid

import psutil
import pytest

from tests.service.parts import fresh_database, postgres, rabbitmq, redis
from tests.service.place import Place, kill, place
from tests.tiny import tiny_bert

pytestmark = [pytest.mark.service, pytest.mark.timeout(1200)]

LONG = {"max_steps": 100_000, "save_seconds": 1}  # long enough to be killed in the middle on any machine
LEASE_SECONDS = 12
ANNOUNCE = "from holdfast.service.broker import announce; print([announce({}) for _ in range({})])"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_bert(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def database():
    with postgres() as part:
        yield part


@pytest.fixture(scope="module")
def broker():
    with redis() as part:
        yield part


@pytest.fixture
def urls(database, broker):
    return {"database_url": fresh_database(database, f"test_{uuid.uuid4().hex[:12]}"), "broker_url": broker.url}


@pytest.fixture
def site(tmp_path, model, urls):
    """With a lease that a busy machine does not lose by itself."""
    with place(tmp_path, model, LEASE_SECONDS=60, **urls) as made:
        yield made


@pytest.fixture
def hasty(tmp_path, model, urls):
    """With a lease that runs out soon."""
    with place(tmp_path, model, LEASE_SECONDS=LEASE_SECONDS, **urls) as made:
        yield made


def assert_finished_once(site: Place, job_id: int) -> None:
    """The job is finished, with one model in the registry and one end in its folder."""
    assert site.row(job_id)["state"] == "finished", site.told(job_id)
    assert site.ask(f"select count(*) as n from jobs_trainedmodel where job_id={job_id}")[0]["n"] == 1
    assert site.result(job_id)["state"] == "finished"
    assert len(site.events(job_id, "run_finished")) == 1
    assert any((site.run_folder(job_id) / "model").glob("*.safetensors"))


def test_the_same_message_five_times_runs_a_job_once(site):
    site.worker(slots=2)
    (job_id,) = site.submit()
    assert site.run_code(ANNOUNCE.format(job_id, 5)).strip() == str([True] * 5)
    site.wait(job_id, "finished")
    time.sleep(1)
    assert_finished_once(site, job_id)
    assert site.row(job_id)["claims"] == 1


@pytest.mark.full
def test_redelivered_redis_message_is_harmless(tmp_path, model, urls):
    with place(tmp_path, model, LEASE_SECONDS=60, BROKER_VISIBILITY_SECONDS=1, **urls) as site:
        site.worker("one")
        site.worker("two")
        jobs = site.submit(4, max_steps=40)
        for job_id in jobs:
            site.wait(job_id, "finished")
        for job_id in jobs:
            assert_finished_once(site, job_id)
            assert site.row(job_id)["claims"] == 1


def test_rabbitmq_brings_jobs_too(tmp_path, model, database):
    with rabbitmq() as broker:
        url = fresh_database(database, "rabbit")
        with place(tmp_path, model, LEASE_SECONDS=60, database_url=url, broker_url=broker.url) as site:
            site.worker()
            site.wait_for_words("one", "listening to any, cpu")
            (job_id,) = site.submit(max_steps=2)
            assert site.run_code(ANNOUNCE.format(job_id, 3)).strip() == str([True] * 3)
            site.wait(job_id, "finished")
            assert_finished_once(site, job_id)
            assert f"job {job_id}: claimed on the message for job {job_id}" in site.said("one")
            assert site.row(job_id)["claims"] == 1


@pytest.mark.full
def test_job_submitted_without_broker_is_taken(site, broker):
    site.worker()
    broker.kill()
    try:
        (job_id,) = site.submit()
        assert site.run_code(ANNOUNCE.format(job_id, 1)).strip() == "[False]"  # given up, and no error for who submits
        site.wait(job_id, "finished")
        assert_finished_once(site, job_id)
    finally:
        broker.start()
    (job_id,) = site.submit()  # and the worker listens again
    site.wait(job_id, "finished")


@pytest.mark.full
def test_run_survives_killed_worker_and_successor_finds_it(site):
    worker = site.worker()
    (job_id,) = site.submit(**LONG)
    site.wait_for_steps(job_id)
    kill(worker)
    worker.wait()
    agent, claim = site.agent(job_id), site.row(job_id)["claim"]
    site.worker()
    site.wait_for_words("one", "listening", times=2)
    site.stop(job_id)
    assert site.row(job_id)["claims"] == 1
    assert site.first_steps(job_id) == [0]
    assert f"agent {agent.pid} of job {job_id}, claim {claim}" in (site.home / f"agents/{job_id}.log").read_text()


def test_run_of_killed_agent_continues_under_another(site):
    site.worker()
    (job_id,) = site.submit(**LONG)
    site.wait_for_steps(job_id)
    kill(site.agent(job_id))
    site.wait_for_resume(job_id)
    assert site.row(job_id)["claims"] == 2
    site.stop(job_id)


@pytest.mark.full
def test_killed_supervisor_is_replaced(site):
    site.worker()
    (job_id,) = site.submit(**LONG)
    site.wait_for_steps(job_id)
    kill(site.supervisor(job_id))
    site.wait_for_resume(job_id)
    assert site.row(job_id)["claims"] == 1, site.told(job_id)


@pytest.mark.full
def test_frozen_agent_ends_its_run_and_writes_nothing(hasty):
    hasty.worker("one")
    (job_id,) = hasty.submit(**LONG)
    hasty.wait_for_steps(job_id)
    frozen, supervisor = hasty.agent(job_id), hasty.supervisor(job_id)
    hasty.worker("two")
    kill(frozen, signal.SIGSTOP)
    kill(hasty.processes["one"], signal.SIGSTOP)  # with its worker: the whole machine is silent
    hasty.until(lambda: hasty.row(job_id)["claims"] == 2, 400, lambda: hasty.told(job_id))
    hasty.until(lambda: hasty.supervisor(job_id).pid != supervisor.pid, 400, lambda: hasty.told(job_id))
    assert not supervisor.is_running() or supervisor.status() == psutil.STATUS_ZOMBIE  # never two at a time
    claim = hasty.row(job_id)["claim"]
    kill(frozen, signal.SIGCONT)
    hasty.until(lambda: frozen.status() == psutil.STATUS_ZOMBIE, 400)  # its worker does not hear of it
    hasty.wait_for_resume(job_id)
    assert hasty.row(job_id)["claim"] == claim
    assert "ending the run: lost" in (hasty.home / f"agents/{job_id}.log").read_text()
    kill(hasty.processes["one"], signal.SIGCONT)


@pytest.mark.full
def test_short_database_outage_does_not_affect_the_run(site, database):
    site.worker()
    (job_id,) = site.submit(**LONG)
    site.wait_for_steps(job_id)
    database.kill()
    time.sleep(3)
    database.start()
    site.until(lambda: "did not answer" in (site.home / f"agents/{job_id}.log").read_text(), 60)
    site.stop(job_id)
    assert site.row(job_id)["claims"] == 1
    assert site.first_steps(job_id) == [0]


@pytest.mark.full
@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_run_ends_before_its_lease_without_database(hasty, database, how):
    hasty.worker()
    (job_id,) = hasty.submit(**LONG)
    hasty.wait_for_steps(job_id)
    begun = time.monotonic()
    database.kill() if how == "killed" else database.pause()
    try:
        hasty.until(lambda: not hasty.engines(job_id), 30, lambda: "the engine still runs")
        assert time.monotonic() - begun < LEASE_SECONDS
    finally:
        database.start() if how == "killed" else database.go_on()
    hasty.wait_for_resume(job_id)
