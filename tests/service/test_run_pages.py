"""The page of a run in every state of row and folder: plan, attempts, model; and compared runs."""

import html
import re
from datetime import timedelta

import pytest
from django.conf import settings
from django.utils import timezone

from holdfast.core import events as ev
from holdfast.core.records import Forecast, Proof, SkippedProof, write_record
from holdfast.runs.proof_wording import forecast_basis
from holdfast.runs.wording import state_text
from holdfast.service.jobs.job_state import read_job
from holdfast.service.jobs.models import Job, JobState, TrainedModel
from tests.service.folders import STATES, log, make_job, write_plan

pytestmark = pytest.mark.django_db
SKIPPED = SkippedProof(reason="run too short", run_seconds=60.0, budget_seconds=1.0)


@pytest.mark.parametrize("folder", STATES)
def test_every_run_state_has_a_page_and_live_parts(home, ada, page, folder):
    job = make_job(ada, folder)
    for path in (f"/runs/{job.pk}", f"/runs/{job.pk}/live"):
        answer = page.get(path)
        assert answer.status_code == 200
        assert b"Traceback" not in answer.content


@pytest.mark.parametrize("state", JobState.values)
def test_every_row_without_a_folder_has_a_page(home, ada, page, state):
    job = make_job(ada, state=state)
    assert page.get(f"/runs/{job.pk}").status_code == 200
    assert page.get("/").status_code == 200


def badge_and_headline(page, job):
    shown = page.get(f"/runs/{job.pk}").content.decode()
    return re.search(r'class="state \w+">([^<]*)<', shown)[1], re.search(r'id="run-sentence"[^>]*>([^<]*)<', shown)[1]


def tiles(page, job):
    """The figures on the page of a run."""
    return dict(re.findall(r"<li><b>([^<]*)</b> <span>([^<]*)</span>", page.get(f"/runs/{job.pk}").content.decode()))


def test_badge_and_headline_show_the_state_of_the_run(home, ada, page):
    job = make_job(ada, "running")
    now = state_text(read_job(job))
    badge, headline = badge_and_headline(page, job)
    assert badge == now
    assert headline.casefold().startswith(now)
    log(job.folder / "events.jsonl", ev.AttemptEnded(number=1, outcome="died"))
    assert badge_and_headline(page, job)[0] == state_text(read_job(job)), "between two attempts"


def test_silent_machine_shows_its_last_report(home, ada, page):
    heard = timezone.now() - timedelta(seconds=40)
    lease = heard + timedelta(seconds=settings.LEASE_SECONDS)
    job = make_job(ada, "running", phase="step", lease_until=lease)
    badge, headline = badge_and_headline(page, job)
    assert f"{heard:%H:%M:%S} UTC" in headline
    assert badge in page.get("/").content.decode()
    seen = page.get(f"/runs/{job.pk}/live")["ETag"]
    Job.objects.filter(pk=job.pk).update(lease_until=timezone.now() + timedelta(seconds=settings.LEASE_SECONDS))
    assert page.get(f"/runs/{job.pk}/live")["ETag"] != seen
    assert badge_and_headline(page, job)[0] != badge


def test_tile_headline_and_comparison_show_the_same_time(home, ada, page):
    job = make_job(ada, "finished", started=timezone.now() - timedelta(hours=2))
    other = make_job(ada, "stopped", started=timezone.now() - timedelta(hours=3))
    assert "1 min 1 s" in tiles(page, job)
    assert "1 min 1 s" in badge_and_headline(page, job)[1]
    assert page.get(f"/runs/compare?ids={job.pk}&ids={other.pk}").content.decode().count("1 min 1 s") == 2


def test_comparison_shows_how_far_each_run_came(home, ada, page):
    metrics = {"step": 3, "steps": 40, "test": {"accuracy": 0.5}}
    done, half = (
        make_job(ada, state="stopped", name=name, step=step, steps=40, metrics=metrics)
        for name, step in (("all", 40), ("half", 7))
    )
    compared = page.get(f"/runs/compare?ids={done.pk},{half.pk}").content.decode()
    assert compared.count('scope="row">step') == 1, "the step of the measurement is not a metric"
    assert re.search(r'scope="row">steps</th><td class="n">40</td><td class="n">7 of 40</td>', compared)
    alone = page.get(f"/runs/compare?ids={half.pk}").content.decode()
    assert 'id="too-few"' in alone
    assert f'<a href="/runs/{half.pk}">half</a>' in alone
    assert 'id="times-title"' not in alone


def test_click_results_and_lost_server_show_at_top(home, ada, page):
    job = make_job(ada, "planned", goal="plan")
    shown = page.post(f"/runs/{job.pk}/start", follow=True).content.decode()
    assert 'role="status" data-flash><p>' in shown  # live.js takes it away
    assert f'data-state="{badge_and_headline(page, job)[0]}"' in shown
    assert shown.index("</h1>") < shown.index("data-live-note") < shown.index('id="run-state"')
    listed = page.get("/").content.decode()
    assert listed.index("</h1>") < listed.index("data-live-note") < listed.index('id="rows"')


def station(page, job, name):
    return re.search(rf'<li class="(\w+)"[^>]*>{name}<span', page.get(f"/runs/{job.pk}").content.decode())[1]


def test_a_skipped_proof_is_not_shown_as_done(home, ada, page):
    job = make_job(ada, "planned", goal="plan")
    assert station(page, job, "Proof") == "done"
    log(job.folder / "events.jsonl", ev.ProofReported(result=SKIPPED))
    assert station(page, job, "Proof") == "skipped"


@pytest.mark.parametrize(
    ("forecast", "value"),
    [
        (Forecast(basis="model size", rough_seconds=24.0), "~ 24 s"),
        (Forecast(basis="model size"), None),
        (Forecast(basis="measured steps", seconds=90.0, steps=9, step_seconds=0.5), "1 min 30 s"),
    ],
)
def test_a_plan_shows_its_forecast_and_the_basis(home, ada, page, forecast, value):
    job = make_job(ada, "planned", goal="plan")
    write_record(job.folder, Proof(state="skipped", reason="run too short"))
    write_record(job.folder, forecast)
    times = [one for one in tiles(page, job) if one.endswith(" s")]
    assert times == ([value] if value else [])
    if value:
        assert forecast_basis(forecast) in html.unescape(page.get(f"/runs/{job.pk}").content.decode())


def test_a_plan_with_a_number_of_steps_shows_no_epochs(home, ada, page):
    job = make_job(ada, "planned", goal="plan")
    assert tiles(page, job)["2"] == "epochs"
    write_plan(job.folder, max_steps=40)
    assert tiles(page, job)["40"] == "steps"
    assert "epochs" not in tiles(page, job).values()


def test_failed_run_shows_cause_proof_and_evidence(home, ada, page):
    job = make_job(ada, "failed", sentence="failed after 1 attempt")
    shown = page.get(f"/runs/{job.pk}").content.decode()
    assert 'id="attempt-1" data-outcome="died"' in shown
    for text in ("the main memory ran out", "/hazards/host-oom", "oom_kill +1", "fewer at once"):
        assert text in shown
    for fold in ("remedies", "stack", "memory", "tail", "files"):
        assert f'<details id="{fold}-1">' in shown
    for name in ("stacks/python-7.txt", "output.log", "evidence.json", "diagnosis.json"):
        there = name != "evidence.json"
        answer = page.get(f"/runs/{job.pk}/attempts/1/{name}")
        assert answer.status_code == (200 if there else 404)
        if there:
            assert answer["Content-Type"].startswith("text/plain")
            assert "sandbox" in answer["Content-Security-Policy"]


@pytest.mark.parametrize(
    "name", ["settings.json", "../../request.json", "stacks/../output.log", "stacks/x", "..%2f..%2fplan.json", "beat"]
)
def test_only_named_files_of_an_attempt_are_shown(home, ada, page, name):
    job = make_job(ada, "failed")
    assert page.get(f"/runs/{job.pk}/attempts/1/{name}").status_code == 404


def test_planned_run_shows_everything_and_can_start(home, ada, page):
    job = make_job(ada, "planned", goal="plan")
    shown = page.get(f"/runs/{job.pk}").content.decode()
    for text in ("3 min 34 s", "1.3 GB", "little memory", 'id="do-start"', f"/runs/new?from={job.pk}", "as requested"):
        assert text in shown
    answer = page.post(f"/runs/{job.pk}/start")
    assert answer.status_code == 302
    job.refresh_from_db()
    assert (job.state, job.goal) == ("queued", "model")


def test_a_finished_run_gives_its_model_and_its_report(home, ada, page):
    job = make_job(ada, "finished")
    model = TrainedModel.objects.create(owner=ada, job=job, name="first run", task="classify")
    shown = page.get(f"/runs/{job.pk}").content.decode()
    assert f"/models/{model.pk}" in shown
    assert "90.0%" in shown
    packed = page.get(f"/runs/{job.pk}/model.zip")
    assert packed["Content-Disposition"].startswith("attachment")
    assert b"".join(packed).startswith(b"PK")
    report = page.get(f"/runs/{job.pk}/report")
    assert report.status_code == 200
    assert "sandbox" in report["Content-Security-Policy"]


def test_a_run_without_model_or_report_says_404(home, ada, page):
    job = make_job(ada, "failed")
    assert page.get(f"/runs/{job.pk}/model.zip").status_code == 404
    assert page.get(f"/runs/{job.pk}/report").status_code == 404
