"""Who may do what through the API: every operation of the OpenAPI document is tried by every kind of user.

An operation that nobody described here fails the test, so that none is forgotten.
"""

import json

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from holdfast.service.jobs.api import api
from tests.service.world import PASSWORD

SCHEMA = api.get_openapi_schema()
ERROR_FIELDS = set(SCHEMA["components"]["schemas"]["ErrorOut"]["properties"])
OPERATIONS = [
    pytest.param(path, method, about, id=f"{method} {path}")
    for path, methods in SCHEMA["paths"].items()
    for method, about in methods.items()
]
# Whose row a part of the path names: the team's, or one person's.
OF_TEAM = {"job_id": "job", "dataset_id": "dataset", "model_id": "model"}
OF_PERSON = {"token_id": "token", "hook_id": "hook"}
# What to send with each operation that wants something.
BODIES = {
    "submit_job": lambda world: {"dataset": world.dataset.pk, "settings": {"epochs": 1}},
    "retry_job": lambda world: {"settings": {"epochs": 2}},
    "choose": lambda world: {"choices": {"task": "classify"}},
    "rename_model": lambda world: {"name": "better"},
    "predict": lambda world: {"texts": ["where is my card?"]},
    "new_token": lambda world: {"name": "another"},
    "set_secret": lambda world: {"name": "HF_TOKEN", "value": "hf_somethingnew"},
    "new_hook": lambda world: {"kind": "email", "target": "ada@example.org"},
}
QUERIES = {"compare_jobs": lambda world: f"?ids={world.job.pk}"}
# Refused here for every user: the state of the world does not fit.
CONFLICTS = {"start_job", "stop_job", "resume_job", "delete_job", "delete_dataset"}


def send(client, world, path, method, about, **headers):
    for part, kind in {**OF_TEAM, **OF_PERSON}.items():
        path = path.replace("{" + part + "}", str(getattr(world, kind).pk))
    path = path.replace("secrets/{name}", "secrets/HF_TOKEN").replace("{number}", "1").replace("{name}", "outcome.json")
    name = about["operationId"]
    content = next(iter(about.get("requestBody", {}).get("content", {})), "")
    if content == "multipart/form-data":
        file = SimpleUploadedFile("bank.csv", b"a,b\n1,2\n")
        return getattr(client, method)(path, {"file": file}, headers=headers)
    query = QUERIES[name](world) if name in QUERIES else ""
    body = json.dumps(BODIES[name](world)) if content else ""
    return getattr(client, method)(path + query, body or None, content_type="application/json", headers=headers)


def is_one_rows(path):
    return any("{" + part + "}" in path for part in {**OF_TEAM, **OF_PERSON}) or "secrets/{name}" in path


def is_personal(path):
    return any("{" + part + "}" in path for part in OF_PERSON) or "secrets/{name}" in path


def is_shaped(response):
    error = response.json()["error"]
    return set(error) == ERROR_FIELDS and bool(error["what"])


@pytest.mark.parametrize(("path", "method", "about"), OPERATIONS)
class TestEveryOperation:
    def test_strangers_are_refused(self, world, path, method, about):
        for client in (Client(), Client(headers={"Authorization": "Bearer hfk_" + "a" * 40})):
            response = send(client, world, path, method, about)
            assert response.status_code == 401
            assert is_shaped(response)
            assert response["WWW-Authenticate"].startswith("Bearer")

    @pytest.mark.parametrize("scope", ["read", "predict", "submit"])
    def test_a_token_does_no_more_than_its_scope(self, world, path, method, about, scope):
        response = send(world.client("ada", scope=scope), world, path, method, about)
        asks = about["operationId"] == "predict"  # a model, which changes nothing
        allowed = {"read": method == "get", "predict": method == "get" or asks}
        allowed["submit"] = method == "get" or not path.startswith(("/api/tokens", "/api/secrets", "/api/hooks"))
        assert (response.status_code == 403) != allowed[scope]
        assert response.status_code < 400 or is_shaped(response)

    def test_another_persons_things_are_not_there(self, world, path, method, about):
        response = send(world.client("eve"), world, path, method, about)
        names_a_row = is_one_rows(path) or about["operationId"] in ("compare_jobs", "submit_job")
        assert (response.status_code == 404) == names_a_row
        if method == "get" and response.status_code == 200:
            assert "bank" not in response.content.decode()

    @pytest.mark.parametrize("name", ["ada", "bob", "root"])
    def test_owner_team_and_admin_may(self, world, path, method, about, name):
        response = send(world.client(name), world, path, method, about)
        if is_personal(path) and name != "ada":
            assert response.status_code == 404
        elif about["operationId"] in CONFLICTS:
            assert response.status_code == 409
            assert is_shaped(response)
        else:
            assert response.status_code in (200, 201, 204), response.content

    def test_a_browser_must_show_its_csrf_token_to_change_something(self, world, path, method, about):
        client = Client(enforce_csrf_checks=True)
        assert client.login(request=None, username="ada", password=PASSWORD)
        response = send(client, world, path, method, about)
        assert (response.status_code == 403) == (method != "get")
        client.cookies["csrftoken"] = "a" * 32
        response = send(client, world, path, method, about, **{"X-CSRFToken": "a" * 32})
        assert response.status_code in (200, 201, 204, 409), response.content


def test_the_document_needs_no_login_and_names_every_error():
    document = Client().get("/api/openapi.json").json()
    for methods in document["paths"].values():
        for about in methods.values():
            assert {"401", "404", "422"} <= set(about["responses"])
