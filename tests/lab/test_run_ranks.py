"""Our engine in several processes: a rank that dies or hangs is named, and the same weights come out."""

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.core.artifacts import read_artifact
from holdfast.core.records import Outcome, read_record
from holdfast.core.runfolder import DIAGNOSIS, REQUEST, SETTINGS, attempt_folder, model_folder
from holdfast.core.settings import EngineSettings
from holdfast.runs.cause_wording import outcome_text
from holdfast.runs.engine_child import EngineChildren
from holdfast.runs.supervise import RunSpec, supervise
from holdfast.supervisor.child import Launch
from holdfast.supervisor.child_exits import read_ranks
from holdfast.supervisor.ladders import engine_ladder
from tests.lab.supervised import weights
from tests.tiny import tiny_bert, tiny_prepared

pytestmark = pytest.mark.lab
STRIKE = Path(__file__).parent / "faults" / "strike"
PROCESSES = 2
HANGS = {"SIGSTOP": "process-stopped", "deadlock": "thread-deadlock"}
DEATHS = {"SIGKILL": "process-killed", "SIGSEGV": "segfault-other"}


@pytest.fixture(scope="module")
def parts(tmp_path_factory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("parts")
    return tiny_bert(folder / "model"), tiny_prepared(folder / "prepared")


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory, parts) -> str:
    """The weights of a run of as many processes that nothing happened to."""
    run = tmp_path_factory.mktemp("unbroken")
    result = supervise(run, job(run, parts))
    assert (result.state, result.attempts) == ("finished", 1), result
    return weights(model_folder(run))


def job(run: Path, parts: tuple[Path, Path], strike: str = "", rank: int = 1, **variables: str) -> RunSpec:
    """The engine's run in several processes; `strike` is what hits one rank of the first attempt."""
    run.mkdir(parents=True, exist_ok=True)
    (run / REQUEST).write_text(json.dumps({"kind": "lab"}))
    places = {"model": str(parts[0]), "prepared": str(parts[1]), "run": str(run)}
    learning = {"lr": 1e-3, "batch_size": 8, "epochs": 3, "eval_steps": 12, "save_seconds": 0, "micro_tokens": 256}
    settings = EngineSettings(task="classify", **places, **learning, processes=PROCESSES, threads=1)
    children = EngineChildren(run)

    def launch(attempt: Path, changes, resume: bool) -> Launch:
        made = children.launch(attempt, settings, changes)
        hit = {"STRIKE": strike, "STRIKE_RANK": str(rank), "PYTHONPATH": str(STRIKE)}
        more = {**(hit if strike and attempt.name == "01" else {}), **variables}
        return replace(made, environment={**made.environment, **more})

    return RunSpec(kind="lab", words="engine", make_launch=launch, ladder=engine_ladder(settings))


def cases() -> Iterator[object]:
    for name in (*DEATHS, *HANGS):
        for phase in ("load", "step", "evaluate", "save", "export"):
            for rank in range(PROCESSES):
                if phase == "save" and rank:
                    continue  # only the first one saves
                is_quick = (name, phase, rank) == ("SIGKILL", "step", 1)
                yield pytest.param(name, phase, rank, marks=() if is_quick else pytest.mark.full)


@pytest.mark.parametrize(("name", "phase", "rank"), list(cases()))
def test_faulty_rank_is_named_and_weights_are_identical(tmp_path, parts, unbroken, lab_row, name, phase, rank):
    run = tmp_path / "run"
    result = supervise(run, job(run, parts, f"{name}:{phase}:{20 if phase == 'step' else 0}", rank))
    attempt = attempt_folder(run, 1)
    first = read_record(attempt, Outcome)
    same = result.state == "finished" and weights(model_folder(run)) == unbroken
    lab_row(
        fault=f"{name} of rank {rank}",
        phase=phase,
        task="classify",
        noticed_after_seconds=first.noticed_after_seconds,
        named=first.diagnosis or "",
        finished=result.state == "finished",
        identical=same,
    )
    assert result.state == "finished", result
    assert result.attempts == 2
    assert same
    pid = next(pid for pid, found in read_ranks(attempt).items() if found == rank)
    cause = first.cause
    if name in DEATHS:
        assert first.diagnosis == DEATHS[name], outcome_text(first)
        assert (cause.first_exit.rank, cause.first_exit.pid) == (rank, pid)
        assert cause.first_exit.status.signal == name
        return
    assert first.diagnosis == HANGS[name] or (name, first.diagnosis) == ("deadlock", "rank-stuck"), outcome_text(first)
    culprit, other = cause.ranks
    assert (culprit.rank, culprit.pid, culprit.holds_up) == (rank, pid, True)
    assert other.place.file.startswith("holdfast/engine/")
    assert other.collective or phase == "load"  # on a busy machine it may not have come to the collective yet
    assert name != "deadlock" or culprit.call == "strike"


@pytest.mark.full
def test_memory_kills_reduce_to_one_process(tmp_path, parts, small_memory):
    run = tmp_path / "run"
    made = job(run, parts)

    def launch(attempt: Path, changes, resume: bool) -> Launch:
        started = made.make_launch(attempt, changes, resume)
        enter = f'echo $$ > {small_memory}/cgroup.procs; exec "$@"'
        return replace(started, command=("sh", "-c", enter, "sh", *started.command), spare=None)

    result = supervise(run, replace(made, make_launch=launch))
    assert result.state == "finished", result
    assert read_artifact(attempt_folder(run, 1) / DIAGNOSIS)["slug"] == "host-oom"
    assert result.changes["processes"] == 1
    assert read_artifact(attempt_folder(run, result.attempts) / SETTINGS)["processes"] == 1


@pytest.fixture
def small_memory() -> Iterator[Path]:
    """A control group with room for one process of the engine, but not for two with their launcher."""
    group = Path("/sys/fs/cgroup/memory") / f"holdfast-lab-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text("500000000")
    except OSError:
        pytest.skip("a memory control group can be made by root only, where version 1 is mounted")
    yield group
    group.rmdir()
