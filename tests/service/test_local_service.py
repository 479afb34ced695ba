"""`holdfast serve` as users start it: real processes, SQLite, a small real training run."""

import re
import signal
import subprocess
import sys
import urllib.request

import psutil
import pytest

from holdfast.core.errors import MachineError
from holdfast.service import local_service as serving
from holdfast.service.home import this_home
from holdfast.service.local_service import Address
from tests.service.parts import free_port
from tests.service.place import ROOT, kill, place
from tests.tiny import tiny_bert

pytestmark = [pytest.mark.service, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_bert(tmp_path_factory.mktemp("model"))


@pytest.fixture
def site(tmp_path, model):
    with place(tmp_path, model, LEASE_SECONDS=12) as made:
        yield made


def serve(site, *more):
    port = free_port()
    process = site.start("serve", "holdfast", "serve", "--no-browser", "--port", str(port), *more)
    log = site.home / "test-serve.log"
    site.until(lambda: f"http://127.0.0.1:{port}\n" in log.read_text(), 150, log.read_text)
    return process, port


def test_job_finishes_and_second_service_is_refused(site):
    process, port = serve(site)
    said = (site.home / "test-serve.log").read_text()
    assert re.search(rf"first login: http://127\.0\.0\.1:{port}/once/[\w-]{{20,}}\n", said)
    assert urllib.request.urlopen(f"http://127.0.0.1:{port}/login", timeout=60).status == 200
    (job_id,) = site.submit()
    site.wait(job_id, "finished", seconds=150)
    assert site.ask("select count(*) as n from jobs_trainedmodel")[0]["n"] == 1
    second = subprocess.run(
        [sys.executable, "-m", "holdfast", "serve", "--no-browser", "--port", str(free_port())],
        env=site.environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert second.returncode == 2
    assert f"at http://127.0.0.1:{port}" in second.stderr
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0


@pytest.fixture
def starting(home, monkeypatch):
    """A service whose web server is this code."""

    def make(code):
        this_home().make()
        service = serving._Service(Address(host="127.0.0.1", port=free_port()), this_home(), print)
        service._commands = {"web": [sys.executable, "-c", code], "dispatcher": ["sleep", "60"]}
        return service

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield make
    for number, handler in before.items():
        signal.signal(number, handler)


def test_crashing_web_server_is_given_up_with_its_output(starting):
    with pytest.raises(MachineError, match="the web server did not start") as caught:
        starting("raise SystemExit('no such thing')").run(lambda: None)
    assert caught.value.found == "no such thing"


def test_slow_start_with_activity_is_not_a_hang(starting):
    service = starting("while True: pass")
    service._start("web")
    try:
        assert not service._has_given_up(1000.0)
        web = psutil.Process(service._children["web"].pid)
        before = web.cpu_times().user
        while web.cpu_times().user <= before:
            pass
        assert not service._has_given_up(1000.0 + 2 * serving._STILL_SECONDS)
        kill(web, signal.SIGSTOP)
        while web.status() != psutil.STATUS_STOPPED:
            pass
        service._has_given_up(2000.0)  # what it did up to here
        assert service._has_given_up(2001.0 + serving._STILL_SECONDS)
    finally:
        kill(service._children["web"])


@pytest.mark.full
def test_runs_survive_a_killed_service_and_ctrl_c_requeues(site):
    process, _ = serve(site)
    (job_id,) = site.submit(max_steps=20_000, save_seconds=1)
    site.wait_for_steps(job_id, 20)
    agent, children = site.agent(job_id), psutil.Process(process.pid).children()
    kill(process)
    process.wait()
    psutil.wait_procs(children, timeout=20)
    assert not any(child.is_running() for child in children)
    assert agent.is_running()

    process, _ = serve(site)
    assert site.row(job_id)["claims"] == 1
    assert site.agent(job_id).pid == agent.pid
    process.send_signal(signal.SIGINT)
    process.wait(120)
    assert site.row(job_id)["state"] == "queued", site.told(job_id)
    assert not site.engines(job_id)
    assert "saving the runs" in (site.home / "test-serve.log").read_text()
    assert any((site.run_folder(job_id) / "checkpoints").iterdir())
