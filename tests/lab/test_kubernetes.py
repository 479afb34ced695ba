"""deploy/kubernetes/job.yaml: it fits Kubernetes' own schema, and what its pods are told to run finishes."""

import os
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.core.artifacts import read_artifact
from holdfast.core.runfolder import RESULT
from tests.lab.slurm import own_programs
from tests.lab.supervised import LIMIT_SECONDS, SCRIPTS, weights
from tests.lab.together import unbroken_weights

MANIFEST = Path(__file__).parents[2] / "deploy" / "kubernetes" / "job.yaml"
SMALL = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def objects() -> dict[str, Any]:
    return {one["kind"]: one for one in yaml.safe_load_all(MANIFEST.read_text())}


def test_it_fits_the_schema_of_kubernetes(objects):
    schema = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    for one in objects.values():
        schema.validate(one, schema.latest_version(), strict=True)


def test_its_parts_fit_each_other(objects):
    job, service = objects["Job"]["spec"], objects["Service"]
    pod = job["template"]["spec"]
    container = pod["containers"][0]
    words = [*container["command"], *container["args"]]
    assert job["completions"] == job["parallelism"] == int(words[words.index("--nodes") + 1])
    assert f"--nnodes={job['completions']}" in words
    assert pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"job-name": objects["Job"]["metadata"]["name"]}
    assert (
        pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == objects["PersistentVolumeClaim"]["metadata"]["name"]
    )
    assert job["podFailurePolicy"]["rules"][0]["onExitCodes"]["containerName"] == container["name"]


@pytest.mark.full
def test_kubernetes_pods_finish_the_run(objects, tmp_path):
    """The pods' own words, with a folder here as the volume, loopback as the network and ranks.py as the script."""
    container = objects["Job"]["spec"]["template"]["spec"]["containers"][0]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    here = {
        "/shared/train.py": str(SCRIPTS / "ranks.py"),
        "/shared": str(tmp_path),
        "train-0.train:29400": f"127.0.0.1:{port}",
    }
    words = [*container["command"], *container["args"], "out"]
    for there, place in here.items():
        words = [word if str(SCRIPTS) in word else word.replace(there, place) for word in words]
    pods = []
    for name in ("train-0", "train-1"):
        own = {"HOLDFAST_NODE": name, "PATH": own_programs(), "XDG_STATE_HOME": str(tmp_path / name)}
        with (tmp_path / f"{name}.log").open("wb") as log:
            pods.append(
                subprocess.Popen(words, env={**os.environ, **SMALL, **own}, cwd=tmp_path, stdout=log, stderr=log)
            )
    try:
        assert [pod.wait(LIMIT_SECONDS) for pod in pods] == [0, 0], (tmp_path / "train-0.log").read_text()
    finally:
        for pod in pods:
            pod.kill()
    assert read_artifact(tmp_path / "runs" / "train" / RESULT)["state"] == "finished"
    assert weights(tmp_path / "out") == unbroken_weights()
