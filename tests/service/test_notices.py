"""Notices are delivered, signed, to allowed addresses only; failed deliveries are retried with growing delays."""

import contextlib
import hashlib
import hmac
import json
import socket
import threading
import time
import uuid
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from django.utils import timezone

from holdfast.core.errors import RequestError
from holdfast.service.jobs import leases, notices, webhooks
from holdfast.service.jobs.leases import end_job
from holdfast.service.jobs.limits import TESTS, WINDOW_SECONDS, TooMany
from holdfast.service.jobs.models import Hook, Job, LoginFailure, Notice, Worker
from holdfast.service.jobs.notices import MOST_TRIES, file_notices, make_hook, send_due, send_test

pytestmark = pytest.mark.django_db


class Ear:
    """A real server on the loopback that answers as it is told."""

    def __init__(self):
        self.answers, self.heard = [], []
        ear = self

        class Listener(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                ear.heard.append((self.path, dict(self.headers), body))
                self.send_response(ear.answers.pop(0) if ear.answers else 204)
                self.send_header("Location", "http://127.0.0.1:9/elsewhere")
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Listener)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook?a=1"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def ear():
    made = Ear()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
def local(monkeypatch):
    monkeypatch.setenv("HOLDFAST_HOOKS_LOCAL", "1")


@pytest.fixture
def ada(django_user_model):
    return django_user_model.objects.create_user("ada", password="a long enough one")


@pytest.fixture
def job(ada):
    metrics = {"test": {"accuracy": 0.913}}
    return Job.objects.create(owner=ada, name="bank\nquestions", state="finished", metrics=metrics, claims=1, step=20)


def let_time_pass():
    Notice.objects.filter(sent=None).update(next_try=timezone.now() - timedelta(seconds=1))


def test_a_finish_arrives_signed_at_the_address(ada, job, ear, local):
    hook = make_hook(ada, "webhook", ear.url)
    assert file_notices(job, "finished") == 1
    assert send_due() == 1
    path, headers, body = ear.heard[0]
    at, made = (part.partition("=")[2] for part in headers["X-Holdfast-Signature"].split(","))
    assert hmac.compare_digest(made, hmac.new(hook.key.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest())
    told = json.loads(body)
    assert path == "/hook?a=1"
    assert told["event"] == headers["X-Holdfast-Event"] == "finished"
    assert told["run"]["id"] == job.pk
    assert told["run"]["metrics"] == {"test": {"accuracy": 0.913}}
    assert send_due() == 0, "it is sent once"


def test_test_message_is_delivered_without_a_run(ada, ear, local, mailoutbox):
    assert send_test(make_hook(ada, "webhook", ear.url)).arrived
    assert json.loads(ear.heard[0][2])["event"] == "test"
    assert send_test(make_hook(ada, "email", "ada@example.org")).arrived
    assert "step" not in mailoutbox[0].body
    assert "/runs/" not in mailoutbox[0].body
    assert not Notice.objects.exists()


def test_tests_are_bounded_for_each_person_whatever_the_hook(ada, client, django_user_model, mailoutbox):
    hooks = [make_hook(ada, "email", f"ada{at}@example.org") for at in range(2)]
    for at in range(TESTS):
        assert send_test(hooks[at % 2]).arrived
    with pytest.raises(TooMany):
        send_test(hooks[0])
    client.force_login(ada)
    answer = client.post(f"/api/hooks/{hooks[1].pk}/test")
    assert answer.status_code == 429
    assert 0 < int(answer["Retry-After"]) <= WINDOW_SECONDS
    shown = client.post(f"/account/hooks/{hooks[1].pk}/test", follow=True).content.decode()
    assert "15 minutes" in shown
    assert len(mailoutbox) == TESTS
    bob = django_user_model.objects.create_user("bob")
    assert send_test(make_hook(bob, "email", "bob@example.org")).arrived
    LoginFailure.objects.update(at=timezone.now() - timedelta(seconds=WINDOW_SECONDS + 1))
    assert send_test(hooks[0]).arrived


def test_same_event_is_reported_once(ada, job, ear, local):
    make_hook(ada, "webhook", ear.url)
    assert [file_notices(job, "failed"), file_notices(job, "failed")] == [1, 0]
    job.queued = timezone.now()  # it was resumed
    assert file_notices(job, "failed") == 1


def test_hooks_receive_only_requested_events(ada, job, local):
    make_hook(ada, "webhook", "https://example.org/", on_trouble=False)
    make_hook(ada, "email", "ada@example.org", on_finish=False)
    file_notices(job, "finished")
    file_notices(job, "trouble")
    assert sorted(Notice.objects.values_list("hook__kind", "event")) == [("email", "trouble"), ("webhook", "finished")]


def test_failing_webhook_backs_off_and_is_given_up(ada, job, ear, local):
    make_hook(ada, "webhook", ear.url)
    file_notices(job, "finished")
    ear.answers = [500] * 50
    waits = []
    for _ in range(MOST_TRIES + 3):
        send_due()
        waits.append((Notice.objects.get().next_try - timezone.now()).total_seconds())
        let_time_pass()
    assert len(ear.heard) == MOST_TRIES
    assert waits[:3] == sorted(waits[:3])
    assert waits[0] <= 10 < waits[1] <= 60 < waits[2]
    assert Notice.objects.get().sent is None
    assert "500" in Notice.objects.get().said


def test_notice_is_delivered_when_the_receiver_returns(ada, job, ear, local):
    make_hook(ada, "webhook", ear.url)
    file_notices(job, "finished")
    ear.answers = [503, 302]
    assert send_due() == 0
    assert send_due() == 0, "it waits"
    let_time_pass()
    assert send_due() == 0
    assert "redirects are not followed" in Notice.objects.get().said
    let_time_pass()
    assert send_due() == 1
    assert len(ear.heard) == 3


def test_dead_and_endless_servers_do_not_block(ada, job, local, monkeypatch):
    monkeypatch.setattr(webhooks, "_WHOLE_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as drip:

        def answer():
            connection, _ = drip.accept()
            with connection:
                while True:
                    try:
                        connection.sendall(b"H")
                    except OSError:
                        return
                    if stop.wait(0.05):
                        return

        stop = threading.Event()
        threading.Thread(target=answer, daemon=True).start()
        make_hook(ada, "webhook", f"http://127.0.0.1:{drip.getsockname()[1]}/")
        make_hook(ada, "webhook", "http://127.0.0.1:9/")
        file_notices(job, "finished")
        begun = timezone.now()
        assert send_due() == 0
        stop.set()
    assert (timezone.now() - begun).total_seconds() < 5
    assert all(Notice.objects.values_list("said", flat=True))


def test_end_of_a_run_is_reported_once_by_its_holder(ada, ear, local, tmp_path, home):
    make_hook(ada, "webhook", ear.url)
    worker = Worker.objects.create(name="studio", host="studio", devices=["cpu"])
    job = leases.submit(owner=ada, name="bank", request={})
    claim = leases.claim(job.pk, worker)
    assert not end_job(job.pk, uuid.uuid4(), "failed", tmp_path, {"sentence": "by somebody else"})
    assert end_job(job.pk, claim, "failed", tmp_path, {"sentence": "every fallback was tried"})
    assert not end_job(job.pk, claim, "failed", tmp_path, {"sentence": "again"})
    assert send_due() == 1
    told = json.loads(ear.heard[0][2])
    assert (told["event"], told["run"]["sentence"]) == ("failed", "every fallback was tried")


def test_two_senders_send_once(ada, job, ear, local):
    make_hook(ada, "webhook", ear.url)
    file_notices(job, "finished")
    notice = Notice.objects.get()
    assert [notices._take(notice), notices._take(notice)] == [True, False]


@pytest.mark.parametrize(
    "address",
    [
        *("http://127.0.0.1/", "http://10.1.2.3/x", "https://192.168.1.1/", "http://169.254.169.254/latest/meta-data"),
        *(
            "http://[::1]/",
            "http://[::ffff:10.0.0.1]/",
            "http://[64:ff9b::a00:1]/",
            "http://0.0.0.0/",
            "http://[fe80::1]/",
        ),
        *(
            "ftp://example.org/",
            "//example.org",
            "example.org",
            "http://",
            "http://user:pw@example.org/",
            "https://a b/",
        ),
        *("http://example.org:0/", "http://example.org:99999/", "http://exämple.org/", "http://[::1/", ""),
    ],
)
def test_forbidden_address_is_refused(ada, address):
    with pytest.raises(RequestError):
        make_hook(ada, "webhook", address)


@pytest.mark.parametrize("answers", [["127.0.0.1"], ["93.184.216.34", "10.0.0.1"], ["fd00::1"], ["2002:7f00:1::"]])
def test_private_webhook_address_is_refused_on_send(ada, job, monkeypatch, answers):
    make_hook(ada, "webhook", "https://example.org/")
    file_notices(job, "finished")
    monkeypatch.setattr(webhooks, "_lookup", lambda *_: [(2, 1, 6, "", (address, 443)) for address in answers])
    assert send_due() == 0
    assert "private network" in Notice.objects.get().said


def test_the_connection_goes_to_the_address_that_was_looked_at(ada, job, ear, local, monkeypatch):
    port = ear.server.server_port
    make_hook(ada, "webhook", f"http://holdfast.invalid:{port}/")
    file_notices(job, "finished")
    asked = []

    def once(host, _):
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(webhooks, "_lookup", once)
    assert send_due() == 1
    assert asked == ["holdfast.invalid"]
    assert ear.heard[0][1]["Host"] == f"holdfast.invalid:{port}"


def test_e_mail_describes_the_event(ada, job, mailoutbox):
    make_hook(ada, "email", "ada@example.org")
    file_notices(job, "finished")
    assert send_due() == 1
    assert mailoutbox[0].subject.startswith("bank questions: ")
    assert mailoutbox[0].to == ["ada@example.org"]
    assert "accuracy 91.3%" in mailoutbox[0].body


def test_a_mail_server_that_is_not_there_is_tried_again(ada, job, settings):
    settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
    settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", 9
    make_hook(ada, "email", "ada@example.org")
    file_notices(job, "finished")
    assert send_due() == 0
    assert "refused" in Notice.objects.get().said.lower()


@pytest.mark.parametrize(
    "target", ["", "ada", "ada@example.org\nBcc: all@example.org", "ada@example.org, bob@example.org"]
)
def test_invalid_e_mail_address_is_refused(ada, target):
    with pytest.raises(RequestError):
        make_hook(ada, "email", target)
    assert not Hook.objects.exists()


def test_slow_tls_handshake_does_not_block(ada, local, monkeypatch):
    monkeypatch.setattr(webhooks, "_WHOLE_SECONDS", 0.5)
    has_ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip():
            line, _ = server.accept()
            with line, contextlib.suppress(OSError):
                line.sendall(b"\x16\x03\x03\x40\x00")  # a record of 16,384 bytes is to come
                while not has_ended.wait(0.05):
                    line.sendall(b"\0")

        thread = threading.Thread(target=drip)
        thread.start()
        began = time.monotonic()
        delivery = send_test(make_hook(ada, "webhook", f"https://127.0.0.1:{server.getsockname()[1]}/"))
        lasted = time.monotonic() - began
        has_ended.set()
        thread.join()
    assert not delivery.arrived
    assert lasted < 5
