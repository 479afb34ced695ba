"""Lists of runs and live updates: few queries, filters, clean markup."""

import re

import pytest
from django.contrib.auth.models import Group, User
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from holdfast.core import events as ev
from holdfast.service.jobs.models import Job
from tests.service.folders import STATES, log, make_job
from tests.service.markup import faults_of

pytestmark = pytest.mark.django_db


def test_live_updates_stop_when_the_run_ends(home, ada, page):
    job = make_job(ada, "running")
    first = page.get(f"/runs/{job.pk}/live")
    assert "X-Live" not in first
    again = page.get(f"/runs/{job.pk}/live", headers={"If-None-Match": first["ETag"]})
    assert again.status_code == 304
    assert not again.content
    log(job.folder / "attempts" / "01" / "events.jsonl", ev.StepDone(step=41, loss=0.1))
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
def test_list_queries_do_not_grow_with_runs(home, ada, page, data, path):
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


def test_runs_are_filtered_and_paged(home, ada, page, data):
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
    assert b'id="no-match"' in page.get("/?q=zzzz").content


def test_an_empty_list_says_what_to_do_next(home, ada, page):
    assert b'href="/datasets/new"' in page.get("/").content
    assert b'href="/datasets/new"' in page.get("/runs/new").content


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
def test_huge_number_is_a_client_error(home, ada, page, data, number):
    job = make_job(ada, "finished")
    assert page.get(f"/runs/{number}").status_code == 404
    assert page.get(f"/runs/{job.pk}/attempts/{number}/outcome.json").status_code == 404
    for name in ("owner", "q", "page", "state"):
        assert page.get(f"/?{name}={number}").status_code == 200
    assert page.get(f"/runs/new?from={number}&from_model={number}&dataset={number}").status_code == 200
    answer = page.post("/runs/new", {"dataset": data.pk, "team": number, "validation": number})
    assert answer.status_code == 422


def test_run_lists_have_named_controls_and_ordered_headings(home, ada, page, data):
    paths = ["/", "/runs/new", "/runs/compare?ids=1,2,3,4,5,6"]
    paths += [f"/runs/{make_job(ada, folder, dataset=data).pk}" for folder in STATES]
    for path in paths:
        assert faults_of(page.get(path).content.decode()) == [], path
