"""A supervised run as a Ray task, on a real cluster of two machines on this one, of which one is lost."""

import json
import os
import shlex
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core.artifacts import read_artifact
from holdfast.core.heartbeat import read_beat
from holdfast.core.notice import NoticeWriter
from holdfast.core.records import LeaseNotice
from holdfast.core.runfolder import BEATS, CHILD, LEASES, NOTICE, attempt_folder
from holdfast.runs.lease import describe_self, newest_lease
from tests.lab.supervised import SCRIPTS
from tests.lab.together import unbroken_total, wait_until

ray = pytest.importorskip("ray", reason="ray is not installed (pip install 'holdfast[ray]')")
from holdfast.core.errors import RequestError
from holdfast.integrations.ray import run_command, train

pytestmark = [pytest.mark.lab, pytest.mark.full]
MACHINE = {"num_cpus": 1, "object_store_memory": 100 * 2**20}
EXAMPLE = Path(__file__).parents[2] / "examples" / "bank_questions.csv"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head that runs no tasks, and one machine."""
    from ray.cluster_utils import Cluster

    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")]))
    os.environ["PYTHONPATH"] = path  # the workers import what the tests import
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112  (by default a worker comes last on a busy machine)
    cluster = Cluster(initialize_head=True, head_node_args={**MACHINE, "num_cpus": 0, "include_dashboard": False})
    try:
        cluster.first = cluster.add_node(**MACHINE)
        ray.init(address=cluster.address, log_to_driver=False)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def begin(folder: Path, port: int, pause: str) -> Any:
    one = shlex.join([sys.executable, str(SCRIPTS / "pair.py"), "out", str(port)])
    return run_command.remote(
        ["sh", "-c", f"{one} & {one}; wait"],
        out=str(folder / "run"),
        cwd=str(folder),
        variables={"PET_RDZV_ID": "both", "PAUSE": pause, "XDG_STATE_HOME": str(folder / "state")},
    )


def has_stepped(folder: Path, attempt: int, step: int) -> bool:
    pages = (attempt_folder(folder / "run", attempt) / BEATS).glob("*")
    return any(beat.step >= step for page in pages if (beat := read_beat(page)))


def lead_elsewhere(run: Path) -> NoticeWriter:
    """A machine that has taken the run, and is not heard of any more."""
    lease = run / LEASES / f"{newest_lease(run) + 1:06d}"
    lease.mkdir()
    notice = NoticeWriter(lease / NOTICE)
    other = {"node": "elsewhere", "machine": "another", "hardware": "", "state": "held", "lease_seconds": 600.0}
    notice.write(replace(describe_self(LeaseNotice), **other))
    return notice


def test_run_of_lost_machine_continues_elsewhere(cluster, tmp_path, port):
    task = begin(tmp_path, port, pause="0.2")
    wait_until(lambda: has_stepped(tmp_path, 1, 15), "it did not begin")
    cluster.add_node(**MACHINE)
    cluster.remove_node(cluster.first, allow_graceful=False)
    result = ray.get(task, timeout=600)
    assert result["state"] == "finished", result
    assert result["attempts"] == 2
    assert json.loads((tmp_path / "out" / "final.json").read_text()) == unbroken_total()


def test_cancelled_task_ends_its_processes_and_can_rerun(cluster, tmp_path, port):
    task = begin(tmp_path, port, pause="0.2")
    wait_until(lambda: has_stepped(tmp_path, 1, 15), "it did not begin")
    child = read_artifact(attempt_folder(tmp_path / "run", 1) / CHILD)["pid"]
    ray.cancel(task)
    with pytest.raises((ray.exceptions.TaskCancelledError, ray.exceptions.RayTaskError)):
        ray.get(task, timeout=300)
    assert not Path(f"/proc/{child}").exists()
    assert read_artifact(tmp_path / "run" / "result.json")["state"] == "stopped"

    elsewhere = lead_elsewhere(tmp_path / "run")
    task = begin(tmp_path, port, pause="0.02")
    time.sleep(10)  # it waits for that machine by now; where it has not begun, it is cancelled all the same
    ray.cancel(task)
    with pytest.raises((ray.exceptions.TaskCancelledError, ray.exceptions.RayTaskError)):
        ray.get(task, timeout=120)
    assert not attempt_folder(tmp_path / "run", 2).exists()

    elsewhere.write({**describe_self(), "state": "released"})
    assert ray.get(begin(tmp_path, port, pause="0.02"), timeout=600)["state"] == "finished"
    assert json.loads((tmp_path / "out" / "final.json").read_text()) == unbroken_total()


def test_invalid_request_raises_and_failure_is_returned(cluster, tmp_path):
    with pytest.raises(RequestError, match="no command named"):
        ray.get(run_command.remote(["no-such-command"], out=str(tmp_path / "none")), timeout=120)
    (tmp_path / "bug.py").write_text("import nothing_of_this_name\n")
    failed = ray.get(run_command.remote([sys.executable, "bug.py"], out=str(tmp_path / "bug"), cwd=str(tmp_path)))
    assert (failed["state"], failed["exit_code"]) == ("failed", 4)
    assert "nothing_of_this_name" in failed["sentence"]


def test_a_model_is_trained_as_a_task(cluster, tmp_path):
    settings = {"data": str(EXAMPLE), "max_steps": 8, "model": "minilm"}
    result = ray.get(train.remote(out=str(tmp_path / "model"), **settings), timeout=600)
    assert result["state"] == "finished", result
    assert (tmp_path / "model" / "model" / "config.json").exists()
