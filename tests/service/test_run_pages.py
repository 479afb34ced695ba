"""The page of a run: every state of row and folder, its plan, its attempts, its model, runs compared."""

import json
import re
from datetime import timedelta

import pytest
from django.conf import settings
from django.utils import timezone

from holdfast.service.jobs.models import Job, JobState, TrainedModel
from tests.service.folders import STATES, make_job

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("folder", STATES)
def test_a_run_in_any_state_has_a_page_and_live_parts(home, ada, page, folder):
    job = make_job(ada, folder)
    for path in (f"/runs/{job.pk}", f"/runs/{job.pk}/live"):
        answer = page.get(path)
        assert answer.status_code == 200
        assert b"Traceback" not in answer.content


@pytest.mark.parametrize("state", JobState.values)
def test_a_row_of_any_state_without_a_folder_has_a_page(home, ada, page, state):
    job = make_job(ada, state=state)
    assert page.get(f"/runs/{job.pk}").status_code == 200
    assert page.get("/").status_code == 200


def badge_and_sentence(page, job):
    shown = page.get(f"/runs/{job.pk}").content.decode()
    return re.search(r'class="state \w+">([^<]*)<', shown)[1], re.search(r'id="run-sentence"[^>]*>([^<]*)<', shown)[1]


def test_the_badge_says_what_the_sentence_says(home, ada, page):
    job = make_job(ada, "running", phase="save")
    assert badge_and_sentence(page, job) == ("reads the data", "It reads the data.")
    Job.objects.filter(pk=job.pk).update(started=timezone.now(), phase="")  # claimed again; the folder is as it was
    assert badge_and_sentence(page, job) == ("running", "It begins.")


def test_a_run_whose_machine_is_silent_says_since_when_and_not_that_it_trains(home, ada, page):
    heard = timezone.now() - timedelta(seconds=40)
    lease = heard + timedelta(seconds=settings.LEASE_SECONDS)
    job = make_job(ada, "running", phase="step", lease_until=lease)
    said = f"No word since {heard:%H:%M:%S} UTC; if none comes, the run goes on from what it saved last."
    assert badge_and_sentence(page, job) == ("no word from it", said)
    assert "no word from it" in page.get("/").content.decode()
    seen = page.get(f"/runs/{job.pk}/live")["ETag"]
    Job.objects.filter(pk=job.pk).update(lease_until=timezone.now() + timedelta(seconds=settings.LEASE_SECONDS))
    assert page.get(f"/runs/{job.pk}/live")["ETag"] != seen
    assert "No word" not in badge_and_sentence(page, job)[1]


def test_tile_sentence_and_compare_name_the_same_time(home, ada, page):
    job = make_job(ada, "finished", started=timezone.now() - timedelta(hours=2))
    other = make_job(ada, "stopped", started=timezone.now() - timedelta(seconds=95))
    shown = page.get(f"/runs/{job.pk}").content.decode()
    assert "<b>1 min 1 s</b> <span>of training</span>" in shown
    assert "Finished in 1 min 1 s" in shown
    compared = page.get(f"/runs/compare?ids={job.pk}&ids={other.pk}").content.decode()
    assert "1 min 1 s" in compared
    assert "1 min 35 s" in compared


def test_compare_says_how_far_each_run_came_and_wants_two(home, ada, page):
    metrics = {"step": 3, "steps": 40, "test": {"accuracy": 0.5}}
    done, half = (
        make_job(ada, "stopped", name=name, step=step, steps=40, metrics=metrics)
        for name, step in (("all", 40), ("half", 7))
    )
    compared = page.get(f"/runs/compare?ids={done.pk},{half.pk}").content.decode()
    assert compared.count('scope="row">step') == 1, "where it was measured is no figure of how good it is"
    assert re.search(r'scope="row">steps</th><td class="n">40</td><td class="n">7 of 40</td>', compared)
    alone = page.get(f"/runs/compare?ids={half.pk}").content.decode()
    assert "Choose at least two runs" in alone
    assert f'<a href="/runs/{half.pk}">half</a> alone has nothing' in alone
    assert "What they took" not in alone


def test_what_a_click_did_and_a_server_that_is_gone_are_told_at_the_top(home, ada, page):
    job = make_job(ada, "planned", goal="plan")
    shown = page.post(f"/runs/{job.pk}/start", follow=True).content.decode()
    assert re.search(r'role="status" data-flash><p>The training is in the queue', shown)  # live.js takes it away
    assert 'data-state="waits for a machine"' in shown
    assert shown.index("</h1>") < shown.index("data-live-note") < shown.index('id="run-state"')
    listed = page.get("/").content.decode()
    assert listed.index("</h1>") < listed.index("data-live-note") < listed.index('id="rows"')


def change_plan(job, **parts):
    plan = json.loads((job.folder / "plan.json").read_text())
    (job.folder / "plan.json").write_text(json.dumps({**plan, **parts}))


def test_a_plan_without_a_proof_says_what_its_time_rests_on_and_does_not_tick_the_proof(home, ada, page):
    job = make_job(ada, "planned", goal="plan")
    proof = {"state": "skipped", "because": "the proof would take longer"}
    reckoned = {"seconds": None, "because": "reckoned from the model's size; nothing was measured yet"}
    change_plan(job, proof=proof, forecast={**reckoned, "rough_seconds": 24.0})
    shown = page.get(f"/runs/{job.pk}").content.decode()
    assert "<b>~ 24 s</b> <span>of training, a rough guess</span>" in shown
    assert "The time is reckoned from the model&#x27;s size" in shown
    assert '<li class="skipped">Proof<span class="hidden-words">, skipped</span></li>' in shown
    change_plan(job, forecast=reckoned)
    assert "There is no forecast of the time: the proof was skipped" in page.get(f"/runs/{job.pk}").content.decode()
    change_plan(job, proof={"state": "done"}, forecast={"seconds": 90.0, "because": "measured over 9 steps"})
    shown = page.get(f"/runs/{job.pk}").content.decode()
    assert "<b>1 min 30 s</b> <span>of training, forecast</span>" in shown
    assert "Forecast: measured over 9 steps." in shown
    assert '<li class="done">Proof' in shown


def test_a_plan_that_ends_after_so_many_steps_does_not_speak_of_epochs(home, ada, page):
    job = make_job(ada, "planned", goal="plan")
    assert "<b>2</b> <span>epochs</span>" in page.get(f"/runs/{job.pk}").content.decode()
    epochs = {"value": 3, "because": "not used: max_steps says where the run ends"}
    change_plan(job, choices={"epochs": epochs, "max_steps": {"value": 40, "because": "as asked"}})
    shown = page.get(f"/runs/{job.pk}").content.decode()
    assert "<b>40</b> <span>steps, as asked</span>" in shown
    assert "<span>epochs</span>" not in shown


def test_between_two_attempts_no_phase_is_shown(home, ada, page):
    job = make_job(ada, "running", phase="save")
    with (job.folder / "events.jsonl").open("a") as events:
        events.write('{"event": "ended", "time": 1.0, "number": 1, "outcome": "died"}\n')
    assert badge_and_sentence(page, job) == ("running", "It begins.")


def test_a_failed_run_shows_its_cause_its_proof_and_its_evidence(home, ada, page):
    job = make_job(ada, "failed", sentence="failed after 1 attempt")
    shown = page.get(f"/runs/{job.pk}").content.decode()
    for words in ("the main memory ran out", "Cause, proven", "oom_kill +1", "fewer at once", "Stacks", "Memory in GB"):
        assert words in shown
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


def test_a_planned_run_shows_plan_forecast_findings_and_proof_and_can_be_started(home, ada, page):
    job = make_job(ada, "planned", goal="plan")
    shown = page.get(f"/runs/{job.pk}").content.decode()
    for words in (
        "3 min 34 s",
        "1.3 GB",
        "little memory",
        "bit-exact",
        "Start training",
        "Change settings",
        "as asked",
    ):
        assert words in shown
    answer = page.post(f"/runs/{job.pk}/start")
    assert answer.status_code == 302
    job.refresh_from_db()
    assert (job.state, job.goal) == ("queued", "model")


def test_a_finished_run_gives_its_model_and_its_report(home, ada, page):
    job = make_job(ada, "finished")
    model = TrainedModel.objects.create(owner=ada, job=job, name="first run", task="classify")
    shown = page.get(f"/runs/{job.pk}").content.decode()
    assert f"/models/{model.pk}" in shown
    assert "90.0 %" in shown
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
