"""Accessible pages: no serious axe fault, fit for a phone, usable by keyboard, calm live updates."""

import json

import pytest
from django.contrib.auth.models import User
from django.test import Client

from holdfast.service.first_login import make_link
from holdfast.service.jobs.api_tokens import make_token
from holdfast.service.jobs.models import Dataset, Job, TrainedModel, Worker
from holdfast.service.jobs.notices import make_hook
from holdfast.service.jobs.secrets import keep_secret
from tests.service.folders import make_job, write_folder

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True), pytest.mark.timeout(600)]

_LONG = "a text that goes on for a while and then some more of it, " * 5 + "w" * 60
_FACTS = {
    **{"rows": 200, "task": "classify", "form": "one label", "splits": {"train": 160, "test": 40}, "label_count": 2},
    **{"labels": {"a rather long label of two words": 150, "b": 50}, "text_column": "text", "label_column": "label"},
    **{
        "warnings": [_LONG],
        "bad_rows": [{"file": "words.csv", "row": 7, "column": "text", "value": _LONG, "reason": _LONG}],
    },
    **{"choices": {"task": {"value": "classify", "because": "there is a column of labels"}}},
    "lengths": {
        "text": {"median": 9, "mean": 9, "p95": 20, "p99": 30, "longest": 40, "measured": 200, "unit": "words"}
    },
    "histograms": {"text": [[1, 20], [11, 150], [21, 30]]},
}
_PREVIEW = {"columns": ["text", "label"], "rows": [[_LONG, "a rather long label of two words"], ["b", "b"]]}
_PROBLEM = {"what": "there is no model minilmm", "found": _LONG, "try_next": ["did you mean minilm?"]}
_FOLDERS = ("planned", "running", "finished", "failed", "stopped")
_AXE = "axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice']})"


@pytest.fixture
def places(home):
    """One of everything, and the paths of its pages."""
    ada = User.objects.create_superuser("ada", "ada@example.org", "a long enough one")
    data = Dataset.objects.create(
        owner=ada, name="words", file_name="words.csv", state="ready", facts=_FACTS, preview=_PREVIEW
    )
    refused = Dataset.objects.create(owner=ada, name="odd", file_name="odd.csv", state="refused", problem=_PROBLEM)
    finding = {"slug": "openmp-duplicate", "severity": "warning", "seen": _LONG, "remedies": [{"title": "one thread"}]}
    Worker.objects.create(name="studio", host="studio", devices=["cpu"], checkup={"findings": [finding]})
    jobs = {folder: make_job(ada, folder, name=f"{folder} run", dataset=data) for folder in _FOLDERS}
    wrong = make_job(ada, state="failed", name="wrong model", dataset=data, error=_PROBLEM)
    metrics = {"test": {"accuracy": 0.9, "classes": [{"label": _LONG, "precision": 1, "recall": 0.8, "f1": 0.9}]}}
    model = TrainedModel.objects.create(
        owner=ada, job=jobs["finished"], name="words", task="classify", metrics=metrics, base="minilm"
    )
    make_token(ada, "laptop")
    keep_secret(ada, "HF_TOKEN", "hf_" + "Zq3" * 11)
    make_hook(ada, "webhook", "https://example.org/hook")
    paths = ["/", "/runs/new", f"/runs/compare?ids={jobs['finished'].pk},{jobs['failed'].pk}", "/?q=nothing"]
    paths += [f"/runs/compare?ids={wrong.pk}", f"/runs/new?from={wrong.pk}", f"/runs/{jobs['failed'].pk}/delete"]
    paths += [f"/runs/{job.pk}" for job in (*jobs.values(), wrong)]
    paths += ["/datasets/", "/datasets/new", f"/datasets/{data.pk}", f"/datasets/{refused.pk}"]
    paths += ["/models/", f"/models/{model.pk}", f"/models/{model.pk}/delete", "/hazards/openmp-duplicate"]
    paths += ["/machines/", "/account/", "/account/password", make_link(ada)]
    return ada, paths, jobs


def open_page(browser, live_server, user, **how):
    """A page with a logged-in user."""
    client = Client()
    client.force_login(user)
    context = browser.new_context(bypass_csp=True, **how)
    value = client.cookies["sessionid"].value
    context.add_cookies([{"name": "sessionid", "value": value, "url": live_server.url}])
    return context.new_page()


@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        (1280, "light"),
        (390, "dark"),
        pytest.param(1280, "dark", marks=pytest.mark.full),
        pytest.param(390, "light", marks=pytest.mark.full),
    ],
)
def test_pages_are_accessible_and_fit_the_window(browser, live_server, places, width, scheme):
    axe = pytest.importorskip("axe_playwright_python.base", reason="axe is not installed").AXE_FILE_PATH.read_text()
    user, paths, _ = places
    viewport = {"width": width, "height": 900}
    page = open_page(browser, live_server, user, viewport=viewport, color_scheme=scheme)
    faults = []
    for path in (*paths, "/nothing/here", "/once/used"):
        page.goto(live_server.url + path)
        page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        page.evaluate(axe)
        for fault in page.evaluate(_AXE)["violations"]:
            if fault["impact"] in ("serious", "critical"):
                faults.append((path, fault["id"], fault["nodes"][0]["html"][:200]))
        if page.evaluate("document.documentElement.scrollWidth") > width:
            faults.append((path, "wider than the window", ""))
    assert faults == []
    page.context.close()


def test_skip_link_comes_first_and_focus_is_visible(browser, live_server, places):
    user, _, jobs = places
    page = open_page(browser, live_server, user)
    page.goto(f"{live_server.url}/runs/{jobs['planned'].pk}")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    assert page.evaluate("location.hash") == "#content"
    seen = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        seen.add(page.evaluate("document.activeElement.textContent.trim()"))
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none" or page.evaluate("document.activeElement === document.body")
    assert {"Start training", "Change settings", "Delete"} <= seen
    page.context.close()


def test_live_parts_update_without_disturbing_the_reader(browser, live_server, places):
    user, _, jobs = places
    job = jobs["running"]
    page = open_page(browser, live_server, user)
    page.goto(f"{live_server.url}/runs/{job.pk}")
    page.evaluate("window.notReloaded = true")
    page.locator("#files-1 summary").click()
    with (job.folder / "attempts" / "01" / "output.log").open("a") as file:
        file.write("a fresh line of output\n")
    page.get_by_text("a fresh line of output").wait_for(timeout=20_000)
    write_folder(job.folder.with_name("other"), "failed")
    (job.folder.with_name("other") / "attempts" / "01").rename(job.folder / "attempts" / "02")
    page.get_by_role("heading", name="Attempt 2").wait_for(timeout=20_000)
    assert page.locator("#files-1").evaluate("one => one.open")
    Job.objects.filter(pk=job.pk).update(state="stopped", step=30, steps=40)
    page.get_by_role("button", name="Resume").wait_for(timeout=20_000)
    assert page.evaluate("window.notReloaded") is True
    page.context.close()


def test_ticks_of_the_list_outlive_fresh_rows(browser, live_server, places):
    user, _, jobs = places
    page = open_page(browser, live_server, user)
    page.goto(live_server.url)
    page.get_by_role("checkbox", name="Compare failed run").check()
    Job.objects.filter(pk=jobs["running"].pk).update(step=17, steps=99)
    page.get_by_text("17 of 99").wait_for(timeout=20_000)
    assert page.get_by_role("checkbox", name="Compare failed run").is_checked()
    page.context.close()


def test_pages_break_no_rule_of_their_own_policy(browser, live_server, places):
    user, paths, _ = places
    client = Client()
    client.force_login(user)
    context = browser.new_context()
    context.add_cookies([{"name": "sessionid", "value": client.cookies["sessionid"].value, "url": live_server.url}])
    page = context.new_page()
    said = []
    page.on("console", lambda line: said.append(line.text) if line.type in ("error", "warning") else None)
    for path in paths:
        assert page.goto(live_server.url + path).status == 200, path
    assert said == [], json.dumps(said)
    context.close()
