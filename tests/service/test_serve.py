"""`holdfast serve` as people start it: real processes, SQLite, a real small training run."""

import re
import signal
import subprocess
import sys
import urllib.request

import psutil
import pytest

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
    site.until(lambda: f"Holdfast serves at http://127.0.0.1:{port}" in log.read_text(), 150, log.read_text)
    return process, port


def test_a_job_runs_to_its_end_and_a_second_service_is_refused(site):
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
    assert "is already served" in second.stderr
    assert f"at http://127.0.0.1:{port}" in second.stderr
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0


@pytest.mark.full
def test_a_killed_service_leaves_its_runs_going_and_ctrl_c_puts_them_back(site):
    process, _ = serve(site)
    (job_id,) = site.submit(max_steps=20_000, save_seconds=1)
    site.wait_for_steps(job_id, 20)
    keeper, children = site.keeper(job_id), psutil.Process(process.pid).children()
    kill(process)
    process.wait()
    psutil.wait_procs(children, timeout=20)
    assert not any(child.is_running() for child in children)
    assert keeper.is_running()

    process, _ = serve(site)
    assert site.row(job_id)["claims"] == 1
    assert site.keeper(job_id).pid == keeper.pid
    process.send_signal(signal.SIGINT)
    process.wait(120)
    assert site.row(job_id)["state"] == "queued", site.told(job_id)
    assert not site.engines(job_id)
    assert "runs save and wait" in (site.home / "test-serve.log").read_text()
    assert any((site.run_folder(job_id) / "checkpoints").iterdir())
