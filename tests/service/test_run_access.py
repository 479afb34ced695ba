"""Who may see and change runs, and which data, logs and paths never reach a page."""

import json

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client

from holdfast.core.env import cache_folder
from holdfast.service.jobs import leases
from holdfast.service.jobs.models import Dataset, Job, TrainedModel, Worker
from tests.service.folders import EVIL, STATES, make_job

pytestmark = pytest.mark.django_db


def test_nothing_in_names_labels_data_and_logs_becomes_markup(home, ada, page):
    data = Dataset.objects.create(owner=ada, name=EVIL, file_name="a.csv", state="ready", facts={"rows": 2})
    worker = Worker.objects.create(name=EVIL, host="h")
    for folder in STATES:
        job = make_job(ada, folder, name=EVIL, dataset=data, sentence=EVIL, phase=EVIL[:40], worker=worker)
        Job.objects.filter(pk=job.pk).update(error={"what": EVIL, "found": EVIL, "try_next": [EVIL]})
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


def test_page_hides_server_paths(home, ada, page):
    job = make_job(ada, "finished")
    settings = {
        "task": "classify",
        "model": str(cache_folder() / "models" / "minilm"),
        "data": f"{home}/datasets/3/a",
        "prepared": str(job.folder / "prepared"),
        "run": str(job.folder),
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


def test_team_manages_its_runs_and_admin_all(home, ada, page):
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


def test_runs_need_a_login(home, ada):
    job = make_job(ada, "finished")
    paths = ("/", "/runs/live", "/runs/new", "/runs/compare", f"/runs/{job.pk}", f"/runs/{job.pk}/live")
    for path in (*paths, f"/runs/{job.pk}/report", f"/runs/{job.pk}/model.zip", f"/runs/{job.pk}/delete"):
        answer = Client().get(path)
        assert answer.status_code == 302, path
        assert "/login" in answer["Location"]


def test_change_needs_csrf_token_and_post(home, ada):
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


def test_stale_click_on_a_changed_run_is_reported(home, ada, page):
    job = make_job(ada, "finished")
    answer = page.post(f"/runs/{job.pk}/start", follow=True)
    assert 'class="notice warn" role="status" data-flash' in answer.content.decode()
    job.refresh_from_db()
    assert job.state == "finished"


def test_deleting_asks_first_and_takes_the_folder_along(home, ada, page, django_capture_on_commit_callbacks):
    job = make_job(ada, "failed")
    folder = job.folder
    assert b"cannot be undone" in page.get(f"/runs/{job.pk}/delete").content
    with django_capture_on_commit_callbacks(execute=True):
        assert page.post(f"/runs/{job.pk}/delete").status_code == 302
    assert not Job.objects.filter(pk=job.pk).exists()
    assert not folder.exists()


def test_running_run_and_run_with_model_are_not_deleted(home, ada, page):
    running, finished = make_job(ada, "running"), make_job(ada, "finished")
    TrainedModel.objects.create(owner=ada, job=finished, name="m", task="classify")
    for job in (running, finished):
        page.post(f"/runs/{job.pk}/delete")
        assert Job.objects.filter(pk=job.pk).exists()


def test_a_run_that_finishes_while_it_is_deleted_stays(home, ada, page, monkeypatch):
    job = make_job(ada, "stopped")
    really = leases.delete

    def finish_first(found):
        TrainedModel.objects.create(owner=ada, job=job, name="first", task="classify")
        return really(found)

    monkeypatch.setattr(leases, "delete", finish_first)
    answer = page.post(f"/runs/{job.pk}/delete", follow=True)
    assert answer.status_code == 200
    assert 'class="notice warn"' in answer.content.decode()
    assert Job.objects.filter(pk=job.pk).exists()
    assert job.folder.is_dir()


@pytest.mark.parametrize("part", ["dataset", "validation", "data of the run before"])
def test_shared_model_does_not_open_its_unshared_data(world, part):
    first = world.job
    if part == "data of the run before":
        first = leases.submit(owner=world.ada, name="second", request={"from_run": world.job.pk}, team=world.team)
        Job.objects.filter(pk=first.pk).update(state="finished")
    elif part == "validation":
        apart = Dataset.objects.create(owner=world.ada, name="apart", file_name="a.csv", state="ready")
        Job.objects.filter(pk=first.pk).update(request={"task": "classify", "validation": apart.pk})
    if part != "validation":
        Dataset.objects.filter(pk=world.dataset.pk).update(team=None)
    TrainedModel.objects.filter(pk=world.model.pk).update(job=first)
    asked = {"from_model": world.model.pk, "goal": "model", "settings": {"max_steps": 1}}
    answers = {
        name: world.client(name).post("/api/jobs", asked, content_type="application/json").status_code
        for name in ("bob", "ada", "root")
    }
    assert answers == {"bob": 422, "ada": 201, "root": 201}
