"""How an agent handles the ends of its supervisors, which are stand-ins that leave files."""

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from django.contrib.auth.models import User

from holdfast.core.artifacts import read_artifact, write_artifact
from holdfast.core.errors import RequestError
from holdfast.core.event_log import EventLog
from holdfast.core.events import TreeSampled
from holdfast.core.heartbeat import BeatWriter
from holdfast.core.records import Outcome, Proof, Result, write_record
from holdfast.core.runfolder import BEAT, OUTCOME, REFUSED, RESULT, SAMPLES, SUPERVISOR_LOG, attempt_folder
from holdfast.runs.lease import HELD_BY_OTHER
from holdfast.runs.state import read_state
from holdfast.runs.wording import headline
from holdfast.service import agent as agents
from holdfast.service.agent import ANSWERS, Agent, LeaseWatchdog
from holdfast.service.jobs import leases
from holdfast.service.jobs.job_state import read_run, row_fields
from holdfast.service.jobs.models import Job, Notice, TrainedModel, Worker
from holdfast.service.jobs.notices import make_hook
from holdfast.service.object_store import StoreError
from holdfast.service.replicator import FENCE
from tests.service.folders import write_folder, write_plan

pytestmark = pytest.mark.django_db(transaction=True)


class Stage:
    """A claimed job with a folder, and a script of what each of its supervisors does."""

    def __init__(self, folder: Path, goal: str = "model"):
        owner, _ = User.objects.get_or_create(username="ada")
        self.worker, _ = Worker.objects.get_or_create(name="box", host="box", devices=["cpu"])
        self.job = leases.submit(owner=owner, name="run", request={"data": "x.csv"}, goal=goal)
        self.claim = leases.claim(self.job.pk, self.worker)
        self.folder, self.acts, self.played = folder, [], 0
        folder.mkdir(exist_ok=True)
        write_artifact(folder, "request.json", {"kind": "train", "data": "x.csv"})
        (folder / SUPERVISOR_LOG).write_text("Traceback\nKeyError: 'x'\n")

    def run(self) -> Job:
        agent = Agent(self.job.pk, self.claim)
        agent._run = self.folder
        agent._run_child = lambda job: self._play(agent)
        agent.work()
        return Job.objects.get(pk=self.job.pk)

    def _play(self, agent):
        act = self.acts[min(self.played, len(self.acts) - 1)]
        self.played += 1
        return act(agent)

    def ends(self, state: str, code: int = 0, **more):
        def act(agent):
            result = Result(state=state, exit_code=code, attempts=1, seconds=61.0, **more)
            write_record(self.folder, result)
            return code

        return act


@pytest.fixture
def stage(tmp_path, monkeypatch, settings):
    settings.LEASE_SECONDS = 60.0
    monkeypatch.setattr(agents, "make_folder", lambda job: tmp_path / "run")
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    (tmp_path / "agents").mkdir()
    monkeypatch.setattr(agents, "this_home", lambda: type("Home", (), {"agents": tmp_path / "agents"}))
    return Stage(tmp_path / "run")


def test_a_finished_run_is_written_down_with_its_model(stage):
    stage.acts = [stage.ends("finished")]
    job = stage.run()
    assert (job.state, job.claim, job.lease_until) == ("finished", None, None)
    assert job.sentence == headline(read_state(stage.folder, is_supervised=False))
    assert TrainedModel.objects.get(job=job).version == 1


def test_unwritten_end_is_found_in_the_folder(stage):
    stage.ends("finished")(None)
    assert stage.run().state == "finished"
    assert stage.played == 0


@pytest.mark.parametrize(("clock_seconds", "code"), [(-3600, 3), (3600, 4)])
def test_stale_result_is_detected_without_clocks(stage, clock_seconds, code):
    stage.ends("failed", code)(None)
    os.utime(stage.folder / RESULT, (time.time() + clock_seconds,) * 2)  # written where clocks go wrong
    queued = Job.objects.get(pk=stage.job.pk).queued
    write_artifact(stage.folder, ANSWERS, {"queued": queued.isoformat()})
    assert stage.run().state == "failed"
    assert stage.played == 0, "the agent before could not write it down"

    assert leases.resume(stage.job)
    stage.claim = leases.claim(stage.job.pk, stage.worker)
    stage.acts = [stage.ends("finished")]
    assert stage.run().state == "finished"
    assert stage.played == 1, "a failure before the resume is not its result"


def test_supervisor_starts_in_a_clean_folder_without_keys(stage, monkeypatch):
    begun = {}

    def start(command, log, environment, folder):
        begun.update(environment=environment, folder=folder, asked=read_artifact(stage.folder / ANSWERS))
        return subprocess.Popen(["true"])

    monkeypatch.setattr(agents, "start_apart", start)
    monkeypatch.setenv("HOLDFAST_DATABASE_URL", "postgresql://a:b@c/d")
    agent = Agent(stage.job.pk, stage.claim)
    agent._run = stage.folder
    job = Job.objects.get(pk=stage.job.pk)
    stage.ends("failed", 4)(None)
    assert agent._run_child(job) == 0
    assert not (stage.folder / RESULT).exists()
    assert begun["asked"] == {"queued": job.queued.isoformat()}
    assert not any(one.is_dir() for one in begun["folder"].iterdir())
    assert "HOLDFAST_DATABASE_URL" not in begun["environment"]


def test_second_model_with_same_name_is_the_next_version(stage, tmp_path):
    stage.acts = [stage.ends("finished")]
    stage.run()
    second = Stage(stage.folder)
    second.acts = [second.ends("finished")]
    assert TrainedModel.objects.get(job=second.run()).version == 2


def test_dead_supervisor_is_replaced(stage):
    stage.acts = [lambda agent: -9, lambda agent: 1, stage.ends("finished")]
    assert stage.run().state == "finished"
    assert stage.played == 3


def test_dying_supervisors_are_given_up_with_their_output(stage):
    stage.acts = [lambda agent: 1]
    job = stage.run()
    assert job.state == "failed"
    assert "KeyError: 'x'" in job.sentence


def test_failed_run_shows_the_cause(stage):
    stage.acts = [stage.ends("failed", 4)]
    job = stage.run()
    assert job.state == "failed"
    assert job.sentence == headline(read_state(stage.folder, is_supervised=False))
    assert not TrainedModel.objects.exists()


def test_a_refused_request_is_shown_with_its_four_parts(stage):
    def refuse(agent):
        write_artifact(
            stage.folder, REFUSED, {"what": "no text column", "found": "a, b", "try_next": ["--text-column a"]}
        )
        return 2

    stage.acts = [refuse]
    job = stage.run()
    assert (job.state, job.error["found"], job.sentence) == ("failed", "a, b", "no text column")


def test_a_plan_waits_for_a_person(tmp_path, stage):
    planned = Stage(stage.folder, goal="plan")

    def plan(agent):
        write_plan(stage.folder)
        write_record(stage.folder, Proof(state="skipped"))
        return 0

    planned.acts = [plan]
    job = planned.run()
    assert (job.state, job.task, job.phase) == ("planned", "classify", "")


def test_only_the_phase_of_a_running_attempt_is_copied(stage):
    def row(is_supervised=True):
        return row_fields(read_run(stage.folder, is_supervised=is_supervised))

    assert row()["phase"] == "", "no attempt yet"
    attempt = attempt_folder(stage.folder, 1)
    attempt.mkdir(parents=True)
    BeatWriter(attempt / BEAT).enter("save", 2, 9)
    EventLog(attempt / SAMPLES).write(TreeSampled(phase="save", step=2, resident_bytes=7))
    assert (row()["phase"], row()["step"], row()["steps"]) == ("save", 2, 9)
    assert read_run(stage.folder, is_supervised=True).attempt.resident_bytes == 7
    assert row(is_supervised=False)["phase"] == ""
    write_artifact(attempt, OUTCOME, Outcome(number=1, outcome="died", step_reached=2))
    assert (row()["phase"], row()["step"]) == ("", 2)


def test_stop_request_ends_in_stopped(stage):
    def stop(agent):
        agent._stop("stop")
        return stage.ends("stopped", 143)(agent)

    stage.acts = [stop]
    assert stage.run().state == "stopped"


def test_stop_before_the_start_is_honored(stage):
    leases.ask_stop(stage.job)
    assert stage.run().state == "stopped"
    assert stage.played == 0


def test_a_job_that_is_handed_back_waits_again(stage):
    def hand_back(agent):
        agent._stop("hand back")
        return stage.ends("stopped", 143)(agent)

    stage.acts = [hand_back]
    job = stage.run()
    assert (job.state, job.claim, job.claims) == ("queued", None, 0)


def test_run_finishing_during_handback_is_finished(stage):
    def hand_back(agent):
        agent._stop("hand back")
        return stage.ends("finished")(agent)

    stage.acts = [hand_back]
    assert stage.run().state == "finished"


def test_agent_without_claim_writes_nothing(stage):
    other = uuid.uuid4()

    def lose(agent):
        Job.objects.filter(pk=stage.job.pk).update(claim=other)
        agent._renewed_at = float("-inf")
        agent._poll()
        return stage.ends("finished")(agent)

    stage.acts = [lose]
    job = stage.run()
    assert (job.state, job.claim, job.sentence) == ("running", other, "")
    assert not TrainedModel.objects.exists()


def test_run_stopped_by_the_watchdog_continues(stage):
    def pulled(agent):
        agent._watchdog.has_fired = True
        return stage.ends("stopped", 143)(agent)

    def finish(agent):
        agent._watchdog.has_fired = False
        return stage.ends("finished")(agent)

    stage.acts = [pulled, finish]
    assert stage.run().state == "finished"
    assert stage.played == 2


def test_run_held_by_another_is_retried(stage):
    stage.acts = [lambda agent: HELD_BY_OTHER] * 8 + [stage.ends("finished")]
    assert stage.run().state == "finished"


@pytest.mark.service
def test_watchdog_asks_at_half_and_kills_at_three_quarters(tmp_path):
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE)
    child.stdout.readline()
    watchdog = LeaseWatchdog(tmp_path, lease_seconds=4.0)
    watchdog.watch(child)
    begun = time.monotonic()
    assert child.wait(10) == -signal.SIGKILL
    assert watchdog.has_fired
    assert 2.5 < time.monotonic() - begun < 4.5


class NoReplicator:
    """Sends nothing, and says whether it was closed."""

    is_closed = False

    def __init__(self, *_):
        pass

    def send_last(self):
        pass

    def close(self):
        NoReplicator.is_closed = True


@pytest.fixture
def away(stage, monkeypatch):
    """The store is away; gives how often it was asked."""
    asked = []

    def fetch_job(*_):
        asked.append(1)
        if len(asked) == 3:
            write_artifact(stage.folder, FENCE, {"turn": "earlier"})
        raise StoreError("the store is away")

    for name, value in {"fetch_job": fetch_job, "Replicator": NoReplicator, "open_store": object}.items():
        monkeypatch.setattr(agents, name, value)
    monkeypatch.setattr(agents, "_STORE_SECONDS", 0.0)
    monkeypatch.setattr(agents, "_STORE_RETRY_SECONDS", 0.0)
    return asked


def test_page_copy_is_not_resumed_while_the_store_is_down(stage, away):
    stage.acts = [stage.ends("finished")]
    assert stage.run().state == "finished"
    assert len(away) == 3, "only what an agent worked on here is"


def test_agent_without_claim_uploads_nothing(stage, away):
    def lose(agent):
        agent._stop("lost")
        return 0

    stage.acts = [lose]
    stage.run()
    assert NoReplicator.is_closed


def test_claim_is_held_after_a_fault(stage, monkeypatch):
    def full(job):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(agents, "make_folder", full)
    monkeypatch.setattr(agents, "_BACK_OFF_SECONDS", 0.5)
    begun = time.monotonic()
    with pytest.raises(SystemExit):
        agents.main(str(stage.job.pk), str(stage.claim))
    assert time.monotonic() - begun >= 0.5
    assert leases.stop_asked(stage.job.pk, stage.claim) is False, "still held, for the dispatcher to put back"


def test_a_log_that_cannot_be_written_ends_nothing(stage, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("builtins.print", full)
    stage.acts = [lambda agent: 1, stage.ends("finished")]
    assert stage.run().state == "finished"


def test_refusal_hides_server_paths(stage, tmp_path, monkeypatch):
    def refuse(job):
        raise RequestError(f"there is no {tmp_path}/data.csv", found=str(tmp_path), try_next=(f"look at {tmp_path}/x",))

    monkeypatch.setattr(agents, "make_folder", refuse)
    job = stage.run()
    assert job.sentence == f"there is no {tmp_path.name}/data.csv"
    assert str(tmp_path.parent) + "/" not in str(job.error)
    assert job.error["try_next"] == [f"look at {tmp_path.name}/x"]


def test_notice_of_a_failed_attempt_has_its_cause(stage):
    hook = make_hook(stage.job.owner, "email", "ada@example.org")
    write_folder(stage.folder / "run", "failed")
    agent = Agent(stage.job.pk, stage.claim)
    agent._notify_trouble(read_state(stage.folder / "run", is_supervised=True))
    assert not Notice.objects.exists(), "the first attempt still counts"
    (stage.folder / "run" / "attempts" / "02").mkdir()
    agent._notify_trouble(read_state(stage.folder / "run", is_supervised=True))
    body = Notice.objects.get(hook=hook, event="trouble").body
    assert "main memory ran out" in body["run"]["sentence"]
