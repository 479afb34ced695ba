"""Responses of the API: pages, filters, run folders, downloads, errors in one shape, and never a secret."""

import asyncio
import io
import json
import os
import subprocess
import sys
import zipfile
from dataclasses import replace

import msgspec
import pytest
from django.test import AsyncClient, Client

from holdfast.core.events import StorageTrouble
from holdfast.core.records import RunPlan, read_record, write_record
from holdfast.runs.support_bundle import pack_run
from holdfast.service.jobs import job_state, limits
from holdfast.service.jobs.models import Dataset, Job
from tests.service.folders import log
from tests.service.test_api_access import ERROR_FIELDS
from tests.service.world import HUB_TOKEN, TRACKER_KEY


@pytest.fixture
def ada(world):
    return world.client("ada")


def post(client, path, body=None):
    return client.post(path, json.dumps(body or {}), content_type="application/json")


def test_pages_give_each_row_once_also_while_rows_come(world, ada):
    for number in range(7):
        Job.objects.create(owner=world.ada, name=f"run {number}")
    seen, cursor = [], ""
    while cursor is not None:
        page = ada.get(f"/api/jobs?limit=3&cursor={cursor}" if cursor else "/api/jobs?limit=3").json()
        seen += [item["name"] for item in page["items"]]
        cursor = page["next"]
        Job.objects.create(owner=world.ada, name="newer")
    assert seen == [f"run {number}" for number in reversed(range(7))] + ["bank"]


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("state=finished", ["bank"]),
        ("state=queued&state=failed", ["news", "mail"]),
        ("task=causal", ["mail"]),
        ("owner=bob", ["mail"]),
        ("contains=AN", ["bank"]),
        ("goal=plan", ["news"]),
        ("dataset=999", []),
    ],
)
def test_lists_are_filtered(world, ada, query, names):
    Job.objects.create(owner=world.bob, team=world.team, name="mail", state="failed", task="causal")
    Job.objects.create(owner=world.ada, name="news", goal="plan")
    assert [item["name"] for item in ada.get(f"/api/jobs?{query}").json()["items"]] == names


def test_long_list_needs_few_queries(world, ada, django_assert_max_num_queries):
    for number in range(30):
        Job.objects.create(owner=world.ada, team=world.team, name=f"run {number}", worker=world.worker)
    with django_assert_max_num_queries(5):
        assert len(ada.get("/api/jobs").json()["items"]) == 31


def test_planned_run_is_submitted_and_finishes(world, ada):
    made = post(ada, "/api/jobs", {"dataset": world.dataset.pk, "settings": {"max_steps": 20, "learning_rate": 1e-4}})
    assert made.status_code == 201
    job = made.json()
    assert (job["state"], job["goal"]) == ("queued", "plan")
    assert job["settings"] == {"max_steps": 20, "lr": 1e-4}
    Job.objects.filter(pk=job["id"]).update(state="planned")
    assert post(ada, f"/api/jobs/{job['id']}/start").json()["goal"] == "model"
    assert post(ada, f"/api/jobs/{job['id']}/stop").json()["state"] == "stopped"
    assert post(ada, f"/api/jobs/{job['id']}/resume").json()["state"] == "queued"
    refused = post(ada, f"/api/jobs/{job['id']}/start")
    assert refused.status_code == 409
    assert ada.get(f"/api/jobs/{job['id']}").json()["state"] == "queued"


def test_all_invalid_settings_come_back_at_once(world, ada):
    settings = {"epochs": 0, "batch_sise": 3, "out": "/etc", "model": "/etc/passwd"}
    refused = post(ada, "/api/jobs", {"dataset": world.dataset.pk, "settings": settings})
    assert refused.status_code == 422
    error = refused.json()["error"]
    assert {one["setting"] for one in error["problems"]} == {"epochs", "", "out", "model"}
    assert error["setting"] in {"epochs", "out", "model"}
    assert "--" not in error["found"]


def test_retry_without_data_needs_a_replacement(world, ada):
    lost = Dataset.objects.create(owner=world.bob, name="held out", file_name="x.csv", state="ready")
    Job.objects.filter(pk=world.job.pk).update(request={"epochs": 1, "validation": lost.pk})
    path = f"/api/jobs/{world.job.pk}/retry"
    refused = post(ada, path)
    assert refused.status_code == 422
    [problem] = refused.json()["error"]["problems"]
    assert (problem["setting"], problem["value"]) == ("validation", str(lost.pk))
    assert post(ada, path, {"validation": lost.pk}).status_code == 404
    other = post(ada, path, {"validation": world.dataset.pk})
    assert other.json()["settings"] == {"epochs": 1, "validation": world.dataset.pk}
    assert post(ada, path, {"validation": None}).json()["settings"] == {"epochs": 1}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b'{"dataset": NaN}', 400),
        (b'{"name": "\\u0000"}', 400),
        (b'{"name": "\\ud800"}', 400),
        (b"[" * 100_000, 400),
        (b"\xff\xfe", 400),
        (b'{"dataset": 99999999999999999999999}', 422),
        (b'{"dateset": 1}', 422),
        (b"[]", 422),
        (b"{}", 422),
    ],
)
def test_invalid_body_is_refused_with_the_error_shape(ada, body, status):
    response = ada.post("/api/jobs", body, content_type="application/json")
    assert response.status_code == status, response.content
    assert set(response.json()["error"]) == ERROR_FIELDS


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("get", "/api/nothing", 404),
        ("get", "/api/jobs/0", 422),
        ("get", "/api/jobs/99999999999999999999", 422),
        ("get", "/api/jobs/one", 422),
        ("get", "/api/jobs?limit=100000", 422),
        ("get", "/api/jobs?contains=%00", 422),
        ("get", "/api/jobs/compare?ids=1,x", 422),
        ("patch", "/api/jobs", 405),
        ("get", "/api/jobs/1/attempts/1/files/../../../request.json", 404),
        ("get", "/api/jobs/1/attempts/1/files/settings.json", 404),
    ],
)
def test_wrong_addresses_return_the_common_error_shape(ada, method, path, status):
    response = getattr(ada, method)(path)
    assert response.status_code == status, response.content
    assert response.json()["error"]["what"]


def test_attempts_come_with_their_causes_and_what_was_tried(world, ada):
    first, second = ada.get(f"/api/jobs/{world.job.pk}/attempts").json()["items"]
    assert (first["outcome"], first["slug"]) == ("died", "openmp-duplicate")
    assert first["diagnosis"]["confidence"] == "proven"
    assert [one["title"] for one in first["diagnosis"]["remedies"]] == ["one thread"]
    assert first["diagnosis"]["because"][0]["source"] == "log"
    assert "stacks/python-77.txt" in first["files"]
    assert (second["outcome"], second["fallback"], second["step"]) == ("finished", "one thread", 4)
    stack = ada.get(f"/api/jobs/{world.job.pk}/attempts/1/files/stacks/python-77.txt").json()
    assert "loop.py" in stack["text"]


def test_events_continue_from_the_last_response(world, ada):
    path = f"/api/jobs/{world.job.pk}/events?attempt=2"
    first = ada.get(path).json()
    assert [event["event"] for event in first["items"]] == ["step_done"] * 4 + ["evaluated"]
    file = world.job.folder / "attempts" / "02" / "events.jsonl"
    with file.open("a") as events:
        events.write('{"event": "unheard_of", "time": 10}\n{"event": "ha')
    later = ada.get(f"{path}&since={first['next']}").json()
    assert [event["was"] for event in later["items"]] == ["unheard_of"]
    assert ada.get(f"{path}&since={later['next']}").json()["items"] == []


def test_curves_and_figures_have_no_nan(world, ada):
    found = ada.get(f"/api/jobs/{world.job.pk}/metrics").json()
    assert found["losses"][0] == [1, 1.0]
    assert found["evaluations"] == {"2": {"f1": 0.5}, "4": {"f1": 0.5}}
    assert found["metrics"]["validation"] == {}


def test_no_answer_says_where_the_server_keeps_things(world, ada, home):
    run = world.job.folder
    plan = read_record(run, RunPlan)
    settings = replace(plan.settings, run=str(run), prepared=f"{run}/prepared", options={"delimiter": "/"})
    model = replace(plan.model, folder="/home/worker/.cache/holdfast/models/minilm")
    write_record(run, msgspec.structs.replace(plan, settings=settings, model=model))
    log(run / "events.jsonl", StorageTrouble(error=f"reading {world.dataset.path}"))
    shown = ada.get(f"/api/jobs/{world.job.pk}/plan").json()
    assert (shown["settings"]["run"], shown["settings"]["prepared"]) == ("runs/1", "runs/1/prepared")
    assert shown["settings"]["options"] == {"delimiter": "/"}
    assert shown["model"]["folder"] == "minilm"
    events = ada.get(f"/api/jobs/{world.job.pk}/events").json()["items"]
    assert events[-1]["error"] == f"reading datasets/{world.dataset.pk}/bank.csv"
    for path in ("", "/plan", "/events", "/attempts", "/log", "/metrics"):
        assert str(home) not in ada.get(f"/api/jobs/{world.job.pk}{path}").content.decode()


def test_runs_are_compared_by_what_differs(world, ada):
    other = Job.objects.create(
        owner=world.ada, name="b", request={"task": "classify", "epochs": 3}, dataset=world.dataset
    )
    found = ada.get(f"/api/jobs/compare?ids={world.job.pk},{other.pk}").json()
    assert found["settings"] == {"epochs": [1, 3], "lr": [1e-4, None]}
    assert found["metrics"] == {"test accuracy": [0.9, None]}


def test_the_model_comes_as_a_whole_zip_without_links(world, ada):
    (world.job.folder / "model" / "link").symlink_to("/etc/passwd")
    response = ada.get(f"/api/jobs/{world.job.pk}/model")
    assert response["Content-Disposition"] == f'attachment; filename="bank-{world.job.pk}.zip"'
    with zipfile.ZipFile(io.BytesIO(b"".join(response))) as packed:
        assert packed.testzip() is None
        assert packed.namelist() == ["config.json", "model.safetensors"]
        assert packed.read("model.safetensors") == bytes(range(256)) * 8000


def test_run_without_model_or_plan_is_reported(world, ada):
    bare = Job.objects.create(owner=world.ada, name="new")
    for part in ("model", "plan", "report"):
        response = ada.get(f"/api/jobs/{bare.pk}/{part}")
        assert response.status_code == 404
        assert "queued" in response.json()["error"]["found"]
    assert ada.get(f"/api/jobs/{bare.pk}/log").json() == {"attempt": 0, "text": ""}
    assert ada.get(f"/api/jobs/{bare.pk}/attempts").json() == {"items": []}
    assert ada.get(f"/api/jobs/{bare.pk}").json()["run"] is None


def test_an_upload_becomes_a_dataset_and_one_in_use_stays(world, ada):
    made = ada.post("/api/datasets", {"file": io.BytesIO(b"a,b\n1,2\n"), "name": "mine", "team": "lab"})
    assert made.status_code == 201, made.content
    assert (made.json()["name"], made.json()["team"], made.json()["state"]) == ("mine", "lab", "surveying")
    assert ada.delete(f"/api/datasets/{made.json()['id']}").status_code == 204
    assert ada.delete(f"/api/datasets/{world.dataset.pk}").status_code == 409


def test_too_large_upload_is_refused_without_leftovers(world, ada, settings, home):
    settings.UPLOAD_BYTES = 1000
    response = ada.post("/api/datasets", {"file": io.BytesIO(b"x" * 5000)})
    assert response.status_code == 413
    assert "larger" in response.json()["error"]["what"]
    assert Dataset.objects.count() == 1


def test_a_token_made_by_a_token_does_not_outlive_it(world, ada):
    made = post(ada, "/api/tokens", {"name": "short", "days": 1, "scope": "admin"}).json()
    short = Client(headers={"Authorization": f"Bearer {made['token']}"})
    assert post(short, "/api/tokens", {"name": "longer"}).status_code == 403
    assert post(short, "/api/tokens", {"name": "longer", "days": 30}).status_code == 403
    assert short.delete(f"/api/tokens/{made['id']}").status_code == 204
    assert short.get("/api/me").status_code == 401


def test_token_guessing_is_rate_limited(world, ada):
    guesser = Client(headers={"Authorization": "Bearer " + world.texts["ada"][:12] + "x" * 32})
    codes = [guesser.get("/api/me").status_code for _ in range(limits.TRIES + 1)]
    assert codes == [401] * limits.TRIES + [429]
    assert int(guesser.get("/api/me")["Retry-After"]) > 0
    unknown = Client(headers={"Authorization": "Bearer hfk_" + "x" * 40})
    codes = [unknown.get("/api/me").status_code for _ in range(limits.TRIES_OF_ADDRESS + 1)]
    assert codes[-2:] == [401, 429]
    assert world.client("bob").get("/api/me").status_code == 200


def test_no_answer_and_no_bundle_holds_a_secret(world, ada, tmp_path):
    number = world.job.pk
    paths = [
        *("/api/me", "/api/tokens", "/api/secrets", "/api/hooks", "/api/workers", "/api/jobs", "/api/models"),
        *(f"/api/jobs/{number}{part}" for part in ("", "/plan", "/attempts", "/log", "/log?attempt=1", "/events")),
        *(f"/api/jobs/{number}{part}" for part in ("/metrics", "/events?attempt=1", "/attempts/1/files/output.log")),
        *(f"/api/jobs/{number}/attempts/1/files/{name}" for name in ("diagnosis.json", "outcome.json", "events.jsonl")),
        *(f"/api/jobs/compare?ids={number}", f"/api/datasets/{world.dataset.pk}/survey", "/api/openapi.json"),
    ]
    for path in paths:
        response = ada.get(path)
        assert response.status_code == 200, path
        for secret in (HUB_TOKEN, TRACKER_KEY, world.hook.key, world.texts["ada"], world.token.sha256):
            assert secret not in response.content.decode(), path
    refused = post(ada, "/api/secrets", {"name": "PATH", "value": HUB_TOKEN})
    assert HUB_TOKEN not in refused.content.decode()
    refused = ada.put("/api/secrets", json.dumps({"name": "PATH", "value": HUB_TOKEN}), content_type="application/json")
    assert refused.status_code == 422
    assert HUB_TOKEN not in refused.content.decode()
    # The bundle is packed by somebody who does not have the secrets in their environment.
    bundle = pack_run(world.job.folder, tmp_path / "bundle.zip", variables={})
    with zipfile.ZipFile(bundle.file) as packed:
        for name in packed.namelist():
            assert HUB_TOKEN.encode() not in packed.read(name), name
            assert TRACKER_KEY.encode() not in packed.read(name), name


@pytest.mark.django_db
@pytest.mark.parametrize("path", ["/api/openapi.json", "/api/docs", "/api/jobs", "/nothing-here", "/admin/login/"])
def test_every_answer_carries_its_policies(client, path):
    headers = client.get(path).headers
    assert "default-src 'self'" in headers["Content-Security-Policy"]
    assert "unsafe-inline" not in headers["Content-Security-Policy"] or path == "/api/docs"
    assert "script-src" not in headers["Content-Security-Policy"]
    assert "camera=()" in headers["Permissions-Policy"]
    assert "no-store" in headers["Cache-Control"] or "no-cache" in headers["Cache-Control"]
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-Frame-Options"] == "DENY"


@pytest.mark.django_db
def test_the_page_of_the_documents_asks_no_other_server(client):
    page = client.get("/api/docs").content.decode()
    assert "swagger-ui-bundle.js" in page
    assert "http" not in page.replace("http-equiv", "")


@pytest.mark.parametrize("part", ["attempts", "metrics", "log", "report"])
def test_long_run_is_read_incrementally(world, ada, monkeypatch, part):
    assert ada.get(f"/api/jobs/{world.job.pk}/{part}").status_code == 200
    monkeypatch.setattr(job_state, "RunReader", lambda run: pytest.fail(f"{run} is read from its beginning"))
    assert ada.get(f"/api/jobs/{world.job.pk}/{part}").status_code == 200


def test_a_report_may_do_nothing(world, ada):
    response = ada.get(f"/api/jobs/{world.job.pk}/report")
    assert "sandbox" in response["Content-Security-Policy"]
    assert b"<!doctype html>" in response.content[:20]


@pytest.mark.django_db(transaction=True)
def test_async_server_streams_the_model(world):
    async def fetch():
        shown = {"Authorization": f"Bearer {world.texts['ada']}"}
        response = await AsyncClient().get(f"/api/jobs/{world.job.pk}/model", headers=shown)
        return [len(chunk) async for chunk in response.streaming_content]

    sizes = asyncio.run(fetch())
    assert len(sizes) > 2
    assert max(sizes) < 1.1 * 2**20


@pytest.mark.parametrize("tls", ["0", "1"])
def test_djangos_own_check_for_a_deployment_has_nothing_to_say(tls, tmp_path):
    environment = {**os.environ, "HOLDFAST_TLS": tls, "HOLDFAST_HOME": str(tmp_path)}
    environment["DJANGO_SETTINGS_MODULE"] = "holdfast.service.settings"
    command = [sys.executable, "-m", "holdfast.service", "check", "--deploy", "--fail-level", "INFO"]
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stderr
