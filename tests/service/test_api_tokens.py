"""API tokens: shown once, stored as a hash, refused after they expire."""

import json
from datetime import timedelta

import pytest
from click.testing import CliRunner
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.test import Client
from django.utils import timezone

from holdfast.cli.jobs import jobs
from holdfast.core.errors import RequestError
from holdfast.core.redact import Redactor
from holdfast.service.home import this_home
from holdfast.service.jobs.api_tokens import find_token, make_token, make_token_for
from holdfast.service.jobs.models import ApiToken, Job

pytestmark = pytest.mark.django_db


@pytest.fixture
def ada(django_user_model):
    return django_user_model.objects.create_user("ada", password="a long enough one")


def test_only_the_token_hash_is_stored(ada):
    token, text = make_token(ada, "laptop")
    assert find_token(text) == token
    assert not any(text in str(value) or text[12:] in str(value) for value in ApiToken.objects.values_list().get())


def test_a_wrong_letter_is_a_wrong_token(ada):
    _, text = make_token(ada, "laptop")
    for wrong in (text[:-1] + ("a" if text[-1] != "a" else "b"), text[:-1], text + "a", "", "hfk_", "\ud800" * 44):
        assert find_token(wrong) is None


def test_expired_or_disabled_token_is_refused(ada):
    token, text = make_token(ada, "laptop", expires=timezone.now() + timedelta(hours=1))
    assert find_token(text)
    ApiToken.objects.filter(pk=token.pk).update(expires=timezone.now() - timedelta(seconds=1))
    assert find_token(text) is None
    ApiToken.objects.filter(pk=token.pk).update(expires=None)
    ada.is_active = False
    ada.save()
    assert find_token(text) is None


def test_the_last_use_is_noted_once_a_minute(ada, django_assert_num_queries):
    _, text = make_token(ada, "laptop")
    find_token(text)
    assert ApiToken.objects.get().used is not None
    with django_assert_num_queries(1):
        find_token(text)


def test_token_needs_a_name_and_future_expiry(ada):
    with pytest.raises(RequestError) as caught:
        make_token(ada, "  ", expires=timezone.now() - timedelta(days=1))
    assert "name" in caught.value.found
    assert "expiry" in caught.value.found
    assert not ApiToken.objects.exists()


def test_revoking_a_token_revokes_what_it_created(ada):
    _, text = make_token(ada, "parent", scope="admin")
    child, grandchild = text, ""
    for name, days in (("child", 5), ("grandchild", 4)):
        made = call(child, "post", "/api/tokens", {"name": name, "days": days, "scope": "admin"})
        assert made.status_code == 201, made.content
        child = grandchild = made.json()["token"]
    _, other = make_token(ada, "another", scope="admin")
    assert call(other, "delete", f"/api/tokens/{find_token(text).pk}").status_code == 204
    assert call(grandchild, "get", "/api/me").status_code == 401


def call(token, method, path, content=None):
    client = Client(headers={"Authorization": f"Bearer {token}"})
    return getattr(client, method)(path, content, content_type="application/json")


def test_token_in_text_is_redacted_by_shape(ada):
    _, text = make_token(ada, "laptop")
    assert text not in Redactor()(f"curl -H 'Authorization: {text}'")


def test_local_token_is_made_for_the_only_user(ada, django_user_model):
    assert find_token(make_token_for(None, "laptop", scope="read", days=3)).scope == "read"
    django_user_model.objects.create_user("bob", password="a long enough one")
    with pytest.raises(RequestError):
        make_token_for(None, "laptop", scope="submit", days=None)
    with pytest.raises(RequestError) as caught:
        make_token_for("eve", "laptop", scope="submit", days=None)
    assert "ada, bob" in caught.value.found
    assert find_token(make_token_for("bob", "laptop", scope="submit", days=None)).owner.username == "bob"


@pytest.fixture
def served(home):
    """A home that a service was started in; the rows themselves are in the tests' own database."""
    this_home().make()
    this_home().database.touch()


@pytest.mark.usefixtures("served")
def test_the_command_line_prints_it_once(ada):
    result = CliRunner().invoke(jobs, ["token", "laptop", "--json"])
    assert find_token(json.loads(result.output)["token"]).owner == ada


@pytest.mark.usefixtures("served")
def test_manual_cleanup_requeues_lost_runs(ada):
    lost = Job.objects.create(owner=ada, name="lost", state="running", lease_until=timezone.now() - timedelta(hours=1))
    result = CliRunner().invoke(jobs, ["cleanup"])
    assert result.exit_code == 0, result.exception
    assert f"job {lost.pk}: " in result.output
    assert Job.objects.get(pk=lost.pk).state == "queued"
    assert json.loads(CliRunner().invoke(jobs, ["cleanup", "--json"]).output) == {"done": []}


@pytest.mark.parametrize("name", ["", " ", "a\0b", "a\u202eb", "x" * 101])
def test_a_name_that_cannot_be_kept_or_shown_is_refused(django_user_model, name):
    with pytest.raises(RequestError):
        make_token(django_user_model.objects.create_user("ada"), name)


@pytest.mark.django_db(transaction=True)
def test_existing_tokens_keep_their_rights_in_the_upgrade(django_user_model):
    executor = MigrationExecutor(connection)
    executor.migrate([("jobs", "0001_initial")])
    try:
        before = executor.loader.project_state([("jobs", "0001_initial")]).apps
        owner = django_user_model.objects.create_user("ada").pk
        for name, may_write in (("writes", True), ("reads", False)):
            old = {"owner_id": owner, "name": name, "prefix": name, "sha256": name, "may_write": may_write}
            before.get_model("jobs", "ApiToken").objects.create(**old)
    finally:
        executor = MigrationExecutor(connection)
        executor.migrate(executor.loader.graph.leaf_nodes())
    assert dict(ApiToken.objects.values_list("name", "scope")) == {"writes": "admin", "reads": "read"}
