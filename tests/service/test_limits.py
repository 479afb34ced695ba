"""Rate limits of logins and tokens hold across processes."""

from datetime import timedelta

import pytest
from django.contrib.auth import authenticate
from django.test import RequestFactory
from django.utils import timezone

from holdfast.service.first_login import make_link
from holdfast.service.jobs import limits
from holdfast.service.jobs.models import LoginFailure

pytestmark = pytest.mark.django_db
RIGHT = "a long enough one"


@pytest.fixture
def ada(django_user_model):
    return django_user_model.objects.create_user("ada", password=RIGHT)


def tries(name, password, address="192.0.2.1"):
    return authenticate(RequestFactory(REMOTE_ADDR=address).post("/login"), username=name, password=password)


def test_correct_password_waits_after_too_many_failures(ada):
    for _ in range(limits.TRIES):
        assert tries("ada", "wrong") is None
    assert tries("ada", RIGHT) is None
    assert 0 < limits.login_wait_seconds("ada", "192.0.2.1") <= limits.WINDOW_SECONDS
    assert limits.login_wait_seconds("Ada ", "192.0.2.1") > 0


def test_another_address_is_not_kept_out(ada):
    for _ in range(limits.TRIES + 3):
        tries("ada", "wrong")
    assert tries("ada", RIGHT, "198.51.100.7") == ada


def test_a_right_password_takes_the_wrong_tries_away(ada):
    for _ in range(limits.TRIES - 1):
        tries("ada", "wrong")
    assert tries("ada", RIGHT) == ada
    assert limits.login_wait_seconds("ada", "192.0.2.1") == 0
    assert tries("ada", "wrong") is None
    assert tries("ada", RIGHT) == ada


def test_waiting_helps_and_tries_while_waiting_do_not_lengthen_it(ada):
    for _ in range(limits.TRIES):
        tries("ada", "wrong")
    LoginFailure.objects.update(at=timezone.now() - timedelta(seconds=limits.WINDOW_SECONDS - 30))
    tries("ada", "wrong")
    assert limits.login_wait_seconds("ada", "192.0.2.1") <= 30
    LoginFailure.objects.update(at=timezone.now() - timedelta(seconds=limits.WINDOW_SECONDS + 1))
    assert tries("ada", RIGHT) == ada


def test_password_spraying_is_rate_limited(ada):
    for number in range(limits.TRIES_OF_ADDRESS):
        tries(f"name{number}", "spring2026")
        if number % 5 == 0:
            tries("ada", RIGHT)
    assert tries("ada", RIGHT) is None


def test_login_guessing_from_many_addresses_is_limited(ada, client):
    for number in range(limits.TRIES_OF_NAME):
        assert tries("ada", "wrong", f"192.0.2.{number}") is None
        tries("bob", "wrong", f"192.0.2.{number}")
    assert tries("ada", RIGHT, "198.51.100.7") is None
    assert limits.login_wait_seconds("ADA", "198.51.100.7") > 0
    assert limits.login_wait_seconds("eve", "198.51.100.7") == 0
    client.post(make_link(ada))
    assert client.session["_auth_user_id"] == str(ada.pk), "a one-time link is the way in meanwhile"


def test_the_login_page_of_the_admin_is_limited_as_well(ada, client):
    ada.is_staff = ada.is_superuser = True
    ada.save()
    for _ in range(limits.TRIES):
        client.post("/admin/login/", {"username": "ada", "password": "wrong"})
    client.post("/admin/login/", {"username": "ada", "password": RIGHT})
    assert "_auth_user_id" not in client.session


def test_ipv6_prefix_counts_as_one_client():
    requests = [RequestFactory(REMOTE_ADDR=f"2001:db8:1:2::{number}").get("/") for number in (1, 99)]
    assert limits.address_of(requests[0]) == limits.address_of(requests[1]) == "2001:db8:1:2::/64"


def test_finished_run_is_forgotten(ada):
    tries("ada", "wrong")
    LoginFailure.objects.update(at=timezone.now() - timedelta(seconds=limits.WINDOW_SECONDS + 1))
    assert limits.forget_old() == 3  # by name and address, by name, by address
    assert not LoginFailure.objects.exists()
