"""What one user may take: waiting runs, turns, slots, time, uploads and connections."""

import contextlib
import socket
import threading
import time
from datetime import timedelta

import pytest
import uvicorn
from django.contrib.auth.models import User
from django.core.files.uploadedfile import SimpleUploadedFile
from django.utils import timezone

from holdfast.core.errors import RequestError
from holdfast.service import http_protocol, survey_watch
from holdfast.service.dispatcher import Dispatcher
from holdfast.service.jobs import datasets, leases
from holdfast.service.jobs.models import Dataset, Job, Worker
from holdfast.service.jobs.quotas import QuotaReached, check_room_of
from holdfast.service.jobs.requests import submit_run
from holdfast.service.jobs.uploads import receive
from holdfast.service.survey_child import SurveyJob, SurveyLimits, SurveyResult
from tests.service.conftest import FakeChild
from tests.service.parts import free_port

pytestmark = pytest.mark.django_db


@pytest.fixture
def bo():
    return User.objects.create_user("bo")


@pytest.fixture
def root():
    return User.objects.create_superuser("root")


@pytest.fixture
def worker():
    return Worker.objects.create(name="w", host="h", slots=1, devices=["cpu"])


def queue(owner, count=1, **fields):
    return [leases.submit(owner=owner, name="run", request={}, **fields) for _ in range(count)]


def claim_all(worker):
    found = []
    while taken := leases.claim_next(worker):
        found.append(Job.objects.get(pk=taken[0]))
    return found


def test_users_take_turns(ada, bo, worker, settings):
    settings.RUNS_PER_USER = 2
    queue(ada, 4)
    queue(bo, 2)
    assert [job.owner.username for job in claim_all(worker)] == ["ada", "bo", "ada", "bo"]
    assert Job.objects.filter(state="queued", owner=ada).count() == 2, "ada has reached her limit"


def test_queue_is_limited_per_user_but_not_for_administrators(ada, bo, root, data, settings):
    settings.QUEUED_PER_USER = 2
    queue(ada, 2)
    queue(root, 2)
    with pytest.raises(QuotaReached):
        submit_run(ada, {}, dataset=data)
    submit_run(bo, {}, dataset=data)
    submit_run(root, {}, dataset=data)


def test_only_administrators_jump_the_queue(ada, root, data):
    with pytest.raises(RequestError) as refused:
        submit_run(ada, {}, dataset=data, priority=1)
    assert [problem.setting for problem in refused.value.problems] == ["priority"]
    assert submit_run(root, {}, dataset=data, priority=1).priority == 1
    assert submit_run(ada, {}, dataset=data, priority=-1).priority == -1


def test_plan_does_not_wait_behind_a_training(ada, bo, worker, monkeypatch):
    monkeypatch.setattr("holdfast.service.dispatcher.start_agent", lambda *_: None)
    training, later = queue(ada), queue(ada)
    plans = queue(bo, 2, goal="plan")
    dispatcher = Dispatcher(worker)
    while dispatcher._claim(leases.claimable(worker)):
        pass
    running = set(Job.objects.filter(state="running").values_list("pk", flat=True))
    assert running == {training[0].pk, plans[0].pk}
    assert later[0].pk not in running


def test_run_beyond_the_time_limit_is_stopped(ada, root, worker, settings):
    settings.RUN_HOURS = 2
    jobs = [*queue(ada), *queue(root)]
    claim_all(worker)
    Job.objects.update(started=timezone.now() - timedelta(hours=3))
    assert leases.stop_overdue() == 1
    assert [Job.objects.get(pk=job.pk).stop_asked for job in jobs] == [True, False]


def test_place_in_queue_counts_those_who_go_first(ada, bo, worker):
    running = queue(ada)[0]
    claim_all(worker)
    Job.objects.filter(pk=running.pk).update(eta_seconds=30.0)
    second, third = queue(ada)[0], queue(bo)[0]
    assert leases.place_in_queue(third).ahead == 0
    assert leases.place_in_queue(third).starts_in_seconds == 30.0
    assert leases.place_in_queue(second).ahead == 1
    assert leases.place_in_queue(second).starts_in_seconds is None
    assert leases.place_in_queue(running) is None


def test_uploads_are_limited_by_number_and_by_bytes(home, ada, settings, monkeypatch):
    monkeypatch.setattr(datasets, "begin", lambda *_: FakeChild())
    settings.SURVEYS_PER_USER = 2
    for _ in range(2):
        receive(ada, SimpleUploadedFile("a.csv", b"text,label\na,b\n"))
    with pytest.raises(QuotaReached):
        receive(ada, SimpleUploadedFile("a.csv", b"text,label\na,b\n"))
    Dataset.objects.filter(owner=ada).update(state="ready")
    receive(ada, SimpleUploadedFile("a.csv", b"text,label\na,b\n"))
    settings.BYTES_PER_USER = 60
    with pytest.raises(QuotaReached):
        check_room_of(ada, 30)
    check_room_of(ada, 10)


def test_one_user_never_takes_all_survey_slots(tmp_path, monkeypatch):
    surveying, both = set(), threading.Barrier(2, timeout=30)

    def survey(folder, job):
        assert job.owner not in surveying
        surveying.add(job.owner)
        if folder.name in ("a1", "b1"):
            both.wait()  # the two users are read at the same time
        surveying.discard(job.owner)
        return SurveyResult(state="ready")

    monkeypatch.setattr(survey_watch, "_survey", survey)
    limits = SurveyLimits(seconds=9, memory_bytes=1, unpacked_bytes=1, rows=1)

    def turn(name, owner):
        survey_watch._in_turn(tmp_path / name, SurveyJob(path=name, limits=limits, owner=owner))

    threads = [threading.Thread(target=turn, args=one) for one in (("a1", 1), ("a2", 1), ("a3", 1), ("b1", 2))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)


@contextlib.contextmanager
def serving(**limits):
    """A web server with our protocol and an application that reads the whole body."""

    async def app(scope, receive, send):
        if scope["type"] != "http":
            return
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    port = free_port()
    config = uvicorn.Config(app, port=port, http=http_protocol.DeadlineProtocol, log_level="error", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield lambda: socket.create_connection(("127.0.0.1", port), timeout=30)
    finally:
        server.should_exit = True
        thread.join(30)


def test_unfinished_requests_are_cut_off_and_others_served(monkeypatch):
    monkeypatch.setattr(http_protocol, "HEADER_SECONDS", 0.5)
    monkeypatch.setattr(http_protocol, "BODY_SECONDS", 0.5)
    with serving() as connect:
        for unfinished in (
            b"",
            b"GET / HTTP/1.1\r\nX-a: ",
            b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nab",
        ):
            with connect() as slow:
                slow.sendall(unfinished)
                with contextlib.suppress(ConnectionResetError):
                    assert slow.recv(100) == b""
        with connect() as good:
            for _ in range(2):  # a second request of the same connection has its own deadline
                good.sendall(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc")
                assert good.recv(100).startswith(b"HTTP/1.1 204")


def test_too_many_connections_get_a_503_at_once(monkeypatch):
    monkeypatch.setattr(http_protocol, "MOST_CONNECTIONS", 2)
    with serving() as connect, connect(), connect(), connect() as third:
        assert third.recv(100).startswith(b"HTTP/1.1 503")
