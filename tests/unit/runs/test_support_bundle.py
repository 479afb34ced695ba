"""A bundle holds what explains a failure, and no planted secret, name or piece of data."""

import json
import zipfile
from pathlib import Path

import pytest

from holdfast.core.errors import MachineError, RequestError
from holdfast.core.observations import DiskSpace, ExitStatus
from holdfast.core.records import CollectedEvidence, write_record
from holdfast.runs import support_bundle as module
from holdfast.runs.support_bundle import pack_run, render_bundle

HF, WANDB = "hf_" + "Zz9Yy8Xx7Ww6Vv5Uu4Tt", "0123456789abcdef0123456789abcdef01234567"
VARIABLES = {"HF_TOKEN": HF, "WANDB_API_KEY": WANDB, "SERVICE_PASSWORD": "correct horse", "USER": "marlene"}
PLANTED = (HF, WANDB, "correct horse", "marlene", "gpu-box-17", "hunter22", "10.20.30.40", "patient has a cough")


@pytest.fixture
def run(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(module.socket, "gethostname", lambda: "gpu-box-17.example.org")
    monkeypatch.setattr(module.getpass, "getuser", lambda: "marlene")
    monkeypatch.setattr(module.Path, "home", lambda: Path("/home/marlene"))
    folder = tmp_path / "run"
    attempt = folder / "attempts" / "01"
    (attempt / "stacks").mkdir(parents=True)
    for name in ("checkpoints", "model", "prepared"):
        (folder / name).mkdir()
        (folder / name / "weights.safetensors").write_bytes(b"patient has a cough")
    (folder / "dataset.json").write_text('{"labels": ["patient has a cough"]}')
    environment = {"HF_TOKEN": HF, "OMP_NUM_THREADS": "4", "PS1": "marlene@gpu-box-17$ "}
    request = {"command": ["python", "/home/marlene/train.py", "--api-key", HF], "environment": environment}
    (folder / "request.json").write_text(json.dumps(request))
    (folder / "supervisor.json").write_text(json.dumps({"pid": 7, "host": "gpu-box-17", "boot_id": "1-2-3"}))
    (folder / "events.jsonl").write_text(
        '{"event": "attempt_started", "number": 1}\n'
        '{"event": "sampled", "step": 1, "samples": ["patient has a cough"]}\n'
    )
    (attempt / "output.log").write_text(
        f"login with {HF}\ncloning https://marlene:hunter22@git.example.org/x\nnode gpu-box-17 at 10.20.30.40\n"
        f"wandb key {WANDB} sent\nsaid correct horse\n"
        "RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.\n"
    )
    (attempt / "stacks" / "native-7.txt").write_text("    poll (libc.so.6)\n    <module> (/home/marlene/train.py:3)\n")
    full = DiskSpace(folder="/home/marlene/x", free_bytes=0, total_bytes=10)
    write_record(attempt, CollectedEvidence(exit=ExitStatus(code=1), observations=(full,)))
    (attempt / "stacks" / "python-9.txt").symlink_to("/etc/hostname")
    return folder


def text_of(file: Path) -> str:
    with zipfile.ZipFile(file) as packed:
        return "\n".join(f"{name}\n{packed.read(name).decode()}" for name in packed.namelist())


def test_no_planted_secret_name_or_data_is_in_it(run, tmp_path):
    bundle = pack_run(run, tmp_path / "out.zip", VARIABLES)
    text = text_of(bundle.file)
    for planted in PLANTED:
        assert planted not in text


def test_bundle_hides_machine_names(run, tmp_path):
    for name in ("gpu-box-17", "gpu-box-18"):
        (run / "nodes" / name).mkdir(parents=True)
        part = run / "attempts" / "01" / "nodes" / name
        part.mkdir(parents=True)
        (part / "output.log").write_text(f"{name} lost its peer gpu-box-18\n")
    bundle = pack_run(run, tmp_path / "out.zip", VARIABLES)
    assert {f"attempts/01/nodes/node-{number}/output.log" for number in (1, 2)} <= set(bundle.files)
    assert "gpu-box" not in text_of(bundle.file)


def test_bundle_contains_the_failure_evidence(run, tmp_path):
    bundle = pack_run(run, tmp_path / "out.zip", VARIABLES)
    text = text_of(bundle.file)
    assert "DataLoader worker (pid 7) is killed by signal: Killed." in text
    assert "disk_space" in text
    assert '"OMP_NUM_THREADS": "4"' in text
    assert "poll (libc.so.6)" in text
    assert {"request.json", "attempts/01/output.log", "attempts/01/stacks/native-7.txt"} <= set(bundle.files)


def test_weights_data_and_links_are_left_out(run, tmp_path):
    bundle = pack_run(run, tmp_path / "out.zip", VARIABLES)
    assert not any("weights" in name or "python-9" in name for name in bundle.files)
    assert bundle.left_out.pop("dataset.json")
    assert bundle.left_out == {"checkpoints": "weights", "model": "weights", "prepared": "data"}
    said = render_bundle(bundle)
    assert "removed" in said
    assert "secret" in said
    assert "checkpoints: weights" in said


def test_a_long_log_keeps_its_beginning_and_its_end(run, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_MOST_LOG_BYTES", 200)
    (run / "attempts" / "01" / "output.log").write_text("first line\n" + "noise\n" * 1000 + "last line\n")
    text = text_of(pack_run(run, tmp_path / "out.zip", VARIABLES).file)
    assert "first line" in text
    assert "last line" in text
    assert "left out" in text
    assert text.count("noise") < 100


def test_path_that_is_not_a_run_is_refused(tmp_path):
    with pytest.raises(RequestError, match="not the folder of a run"):
        pack_run(tmp_path, tmp_path / "out.zip", VARIABLES)


def test_an_earlier_bundle_is_never_written_over(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert [pack_run(run, None, VARIABLES).file.name for _ in range(3)] == [
        "run-bundle.zip",
        "run-bundle-2.zip",
        "run-bundle-3.zip",
    ]
    with pytest.raises(RequestError, match="already exists"):
        pack_run(run, tmp_path / "run-bundle.zip", VARIABLES)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux only")
def test_a_bundle_on_a_full_disk_leaves_no_file(run, tmp_path):
    (tmp_path / ".b.zip.draft").symlink_to("/dev/full")
    with pytest.raises(MachineError, match=f"{tmp_path}/b.zip") as refused:
        pack_run(run, tmp_path / "b.zip")
    assert refused.value.slug == "disk-full"
    assert refused.value.found.startswith("No space left on device; ")
    assert not list(tmp_path.glob("*b.zip*"))
