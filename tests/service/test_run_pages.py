"""The pages of runs: who may see and do what, every state of row and folder, nothing in the data becomes markup."""

import json
import re
from datetime import timedelta

import pytest
from django.contrib.auth.models import Group, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from holdfast.core.env import cache_folder
from holdfast.service.jobs import leases
from holdfast.service.jobs.models import Dataset, Job, TrainedModel, Worker
from tests.service.folders import EVIL, STATES, make_job
from tests.service.markup import faults_of

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("folder", STATES)
def test_a_run_in_any_state_has_a_page_and_live_parts(home, ada, page, folder):
    job = make_job(ada, folder)
    for path in (f"/runs/{job.pk}", f"/runs/{job.pk}/live"):
        answer = page.get(path)
        assert answer.status_code == 200
        assert b"Traceback" not in answer.content


@pytest.mark.parametrize("state", Job.State.values)
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


def test_nothing_in_names_labels_data_and_logs_becomes_markup(home, ada, page):
    data = Dataset.objects.create(owner=ada, name=EVIL, file_name="a.csv", state="ready", facts={"rows": 2})
    worker = Worker.objects.create(name=EVIL, host="h")
    for folder in STATES:
        job = make_job(ada, folder, name=EVIL, dataset=data, sentence=EVIL, phase=EVIL[:40], worker=worker)
        Job.objects.filter(pk=job.pk).update(error={"what": EVIL, "seen": EVIL, "try_next": [EVIL]})
        for path in (f"/runs/{job.pk}", f"/runs/{job.pk}/live", f"/runs/{job.pk}/delete", f"/runs/new?from={job.pk}"):
            assert b"<script>alert" not in page.get(path).content
    for path in ("/", "/runs/live", "/runs/new", f"/?q={EVIL}", "/runs/compare?ids=1,2,3,4,5,6"):
        assert b"<script>alert" not in page.get(path).content


def test_a_log_is_shown_without_secrets_and_terminal_codes(home, ada, page):
    job = make_job(ada, "failed")
    for path in (f"/runs/{job.pk}", f"/runs/{job.pk}/attempts/1/output.log"):
        shown = page.get(path).content.decode()
        assert "loading" in shown
        assert "hf_abcdefghijklmnopqrstuvwxyz123456" not in shown
    assert "\x1b" not in page.get(f"/runs/{job.pk}").content.decode()


def test_a_page_does_not_say_where_the_server_keeps_things(home, ada, page):
    job = make_job(ada, "finished")
    settings = {
        "task": "classify",
        "model": str(cache_folder() / "models" / "minilm"),
        "data": f"{home}/datasets/3/a",
    }
    (job.folder / "attempts" / "01" / "settings.json").write_text(json.dumps(settings))
    shown = page.get(f"/runs/{job.pk}").content.decode()
    assert "models/minilm" in shown
    assert str(cache_folder()) not in shown
    assert str(home) not in shown


def test_other_peoples_runs_do_not_exist(home, ada, page):
    other = User.objects.create_user("bo")
    job = make_job(other, "finished")
    paths = ("", "/live", "/delete", "/retry", "/report", "/model.zip", "/attempts/1/output.log")
    assert {page.get(f"/runs/{job.pk}{path}").status_code for path in paths} == {404}
    assert {page.post(f"/runs/{job.pk}/{act}").status_code for act in ("start", "stop", "resume", "delete")} == {404}
    assert "first run" not in page.get("/").content.decode()
    assert "first run" not in page.get(f"/runs/compare?ids={job.pk}").content.decode()
    assert "first run" not in page.get(f"/runs/new?from={job.pk}").content.decode()


def test_a_team_sees_and_changes_its_runs_and_an_admin_all(home, ada, page):
    team = Group.objects.create(name="lab")
    other = User.objects.create_user("bo")
    job = make_job(other, state="queued", team=team)
    assert page.get(f"/runs/{job.pk}").status_code == 404
    ada.groups.add(team)
    assert page.get(f"/runs/{job.pk}").status_code == 200
    assert page.post(f"/runs/{job.pk}/stop").status_code == 302
    job.refresh_from_db()
    assert job.state == "stopped"
    ada.groups.clear()
    User.objects.filter(pk=ada.pk).update(is_superuser=True)
    assert page.get(f"/runs/{job.pk}").status_code == 200


def test_nobody_sees_anything_without_a_login(home, ada):
    job = make_job(ada, "finished")
    paths = ("/", "/runs/live", "/runs/new", "/runs/compare", f"/runs/{job.pk}", f"/runs/{job.pk}/live")
    for path in (*paths, f"/runs/{job.pk}/report", f"/runs/{job.pk}/model.zip", f"/runs/{job.pk}/delete"):
        answer = Client().get(path)
        assert answer.status_code == 302, path
        assert "/login" in answer["Location"]


def test_a_change_needs_a_token_of_the_page_and_a_post(home, ada):
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(ada)
    job = make_job(ada, "planned")
    for action in ("start", "stop", "resume", "delete"):
        assert strict.post(f"/runs/{job.pk}/{action}").status_code == 403
    assert strict.post("/runs/new", {}).status_code == 403
    for action in ("start", "stop", "resume"):
        assert strict.get(f"/runs/{job.pk}/{action}").status_code == 405
    job.refresh_from_db()
    assert job.state == "planned"


def test_a_run_that_has_moved_on_is_left_as_it_is_and_that_is_said(home, ada, page):
    job = make_job(ada, "finished")
    answer = page.post(f"/runs/{job.pk}/start", follow=True)
    assert b"Nothing was changed: the run is finished" in answer.content


def test_deleting_asks_first_and_takes_the_folder_along(home, ada, page, django_capture_on_commit_callbacks):
    job = make_job(ada, "failed")
    folder = job.folder
    assert b"cannot be undone" in page.get(f"/runs/{job.pk}/delete").content
    with django_capture_on_commit_callbacks(execute=True):
        assert page.post(f"/runs/{job.pk}/delete").status_code == 302
    assert not Job.objects.filter(pk=job.pk).exists()
    assert not folder.exists()


def test_a_running_run_and_one_with_a_model_are_not_deleted(home, ada, page):
    running, finished = make_job(ada, "running"), make_job(ada, "finished")
    TrainedModel.objects.create(owner=ada, job=finished, name="m", task="classify")
    for job in (running, finished):
        page.post(f"/runs/{job.pk}/delete")
        assert Job.objects.filter(pk=job.pk).exists()


def test_live_parts_come_once_and_stop_when_the_run_has_ended(home, ada, page):
    job = make_job(ada, "running")
    first = page.get(f"/runs/{job.pk}/live")
    assert "X-Live" not in first
    again = page.get(f"/runs/{job.pk}/live", headers={"If-None-Match": first["ETag"]})
    assert again.status_code == 304
    assert not again.content
    with (job.folder / "attempts" / "01" / "events.jsonl").open("a") as file:
        file.write('{"event": "step", "time": 1.0, "step": 41, "loss": 0.1}\n')
    changed = page.get(f"/runs/{job.pk}/live", headers={"If-None-Match": first["ETag"]})
    assert changed.status_code == 200
    Job.objects.filter(pk=job.pk).update(state="finished", ended=timezone.now())
    assert page.get(f"/runs/{job.pk}/live", headers={"If-None-Match": changed["ETag"]})["X-Live"] == "done"


def test_live_rows_come_only_when_one_changed(home, ada, page):
    job = make_job(ada, "running")
    first = page.get("/runs/live")
    assert page.get("/runs/live", headers={"If-None-Match": first["ETag"]}).status_code == 304
    Job.objects.filter(pk=job.pk).update(step=7, steps=9)
    assert b"7 of 9" in page.get("/runs/live", headers={"If-None-Match": first["ETag"]}).content


@pytest.mark.parametrize("path", ["/", "/runs/live", "/?q=run&state=finished"])
def test_a_list_takes_as_many_queries_for_two_hundred_runs_as_for_one(home, ada, page, data, path):
    team = Group.objects.create(name="lab")
    ada.groups.add(team)
    make_job(ada, state="finished", dataset=data, team=team)
    few = _queries(page, path)
    for number in range(199):
        owner = User.objects.create_user(f"user-{number}")
        make_job(owner, state="finished", dataset=data, team=team, name=f"run {number}")
    assert _queries(page, path) == few
    assert few <= 10


def test_a_run_page_takes_few_queries(home, ada, page, data):
    job = make_job(ada, "finished", dataset=data)
    assert _queries(page, f"/runs/{job.pk}") <= 6
    assert _queries(page, f"/runs/{job.pk}/live") <= 6


def test_runs_are_found_by_state_owner_and_text_page_by_page(home, ada, page, data):
    for number in range(60):
        make_job(ada, state="finished", name=f"sweep {number}", dataset=data)
    make_job(ada, state="failed", name="odd one", sentence="out of memory")
    assert b"odd one" in page.get("/?state=failed").content
    assert b"sweep 3" not in page.get("/?state=failed").content
    assert b"odd one" in page.get("/?q=out of mem").content
    assert b"odd one" not in page.get("/?q=sweep").content
    assert b"51\xe2\x80\x9361 of 61" in page.get("/?page=2").content
    for odd in ("?page=99999999999999999999", "?page=x", "?owner=99999999999999999999", "?state=nope", "?q=%00"):
        assert page.get(f"/{odd}").status_code == 200
    assert b"Nothing matches" in page.get("/?q=zzzz").content


def test_an_empty_list_says_what_to_do_next(home, ada, page):
    assert b"Upload a dataset" in page.get("/").content
    assert b"Upload a dataset" in page.get("/runs/new").content


def test_pages_hold_no_inline_script_or_style(home, ada, page, data):
    paths = ["/", "/runs/new", "/runs/compare?ids=1,2,3,4,5,6"]
    paths += [f"/runs/{make_job(ada, folder, dataset=data).pk}" for folder in STATES]
    for path in paths:
        shown = page.get(path).content.decode()
        assert " style=" not in shown
        assert "<style" not in shown
        assert not re.search(r"<script(?![^>]* src=)", shown)
        assert not re.search(r"\son[a-z]+=", shown)


def _queries(page, path):
    with CaptureQueriesContext(connection) as seen:
        assert page.get(path).status_code == 200
    return len(seen)


@pytest.mark.parametrize("number", ["9" * 12, "9" * 300, "9" * 5000])
def test_a_number_beyond_all_numbers_is_no_fault_of_the_server(home, ada, page, data, number):
    job = make_job(ada, "finished")
    assert page.get(f"/runs/{number}").status_code == 404
    assert page.get(f"/runs/{job.pk}/attempts/{number}/outcome.json").status_code == 404
    for name in ("owner", "q", "page", "state"):
        assert page.get(f"/?{name}={number}").status_code == 200
    assert page.get(f"/runs/new?from={number}&from_model={number}&dataset={number}").status_code == 200
    answer = page.post("/runs/new", {"dataset": data.pk, "team": number, "validation": number})
    assert answer.status_code == 422


def test_a_run_that_finishes_while_it_is_deleted_stays(home, ada, page, monkeypatch):
    job = make_job(ada, "stopped")
    really = leases.delete

    def finish_first(found):
        TrainedModel.objects.create(owner=ada, job=job, name="first", task="classify")
        return really(found)

    monkeypatch.setattr(leases, "delete", finish_first)
    answer = page.post(f"/runs/{job.pk}/delete", follow=True)
    assert answer.status_code == 200
    assert "Delete the model first" in answer.content.decode()
    assert Job.objects.filter(pk=job.pk).exists()
    assert job.folder.is_dir()


def test_every_control_has_a_name_and_headings_come_in_order(home, ada, page, data):
    paths = ["/", "/runs/new", "/runs/compare?ids=1,2,3,4,5,6"]
    paths += [f"/runs/{make_job(ada, folder, dataset=data).pk}" for folder in STATES]
    for path in paths:
        assert faults_of(page.get(path).content.decode()) == [], path
