"""Login and account: links, passwords, tokens, secrets, hooks, the admin."""

import hashlib
import re
from datetime import timedelta

from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from holdfast.service.first_login import make_link
from holdfast.service.jobs.models import ApiToken, Hook, OneTimeLink, Secret
from tests.service.world import HUB_TOKEN, PASSWORD


def test_login_link_works_once_and_asks_for_a_password(world):
    link, client = make_link(world.bob), Client(enforce_csrf_checks=True)
    for _ in range(2):  # a preview of the link, then its owner
        shown = client.get(link)
        assert "Log in as bob" in shown.content.decode()
        assert Client().head(link).status_code == 200
        assert client.get("/account/")["Location"].startswith("/login")
    assert client.post(link).status_code == 403, "no other page logs anybody in by it"
    answer = client.post(link, {"csrfmiddlewaretoken": client.cookies["csrftoken"].value}, follow=True)
    assert answer.redirect_chain == [("/account/password", 302)]
    client.handler.enforce_csrf_checks = False
    assert 'name="new_password1"' in answer.content.decode()
    new = {"new_password1": "correct horse 9", "new_password2": "correct horse 9"}
    assert client.post("/account/password", new)["Location"] == "/"
    assert client.get("/account/").status_code == 200
    assert Client().post(link).status_code == 410
    again = Client().get(link)
    assert again.status_code == 410
    assert 'id="link-used"' in again.content.decode()
    entered = Client().post("/login", {"username": "bob", "password": "correct horse 9"})
    assert entered["Location"] == "/"
    # The old password is asked for from now on.
    other = {"new_password1": "another one 77", "new_password2": "another one 77"}
    assert 'name="old_password"' in client.post("/account/password", other).content.decode()


def test_invalid_login_link_is_refused(world):
    link = make_link(world.bob)
    OneTimeLink.objects.update(expires=timezone.now() - timedelta(seconds=1))
    for path in (link, "/once/guess"):
        assert [Client().get(path).status_code, Client().post(path).status_code] == [410, 410]
    link = make_link(world.bob)
    User.objects.filter(pk=world.bob.pk).update(is_active=False)
    assert [Client().get(link).status_code, Client().post(link).status_code] == [410, 410]
    assert OneTimeLink.objects.filter(sha256=hashlib.sha256(link.removeprefix("/once/").encode()).hexdigest()).exists()


def test_login_goes_where_one_came_from_and_nowhere_else(world):
    answer = Client().post("/login", {"username": "ada", "password": PASSWORD, "next": "/models/"})
    assert answer["Location"] == "/models/"
    answer = Client().post("/login", {"username": "ada", "password": PASSWORD, "next": "https://evil.example/"})
    assert answer["Location"] == "/"
    wrong = Client().post("/login", {"username": "ada", "password": "wrong"}).content.decode()
    assert 'id="login-problem"' in wrong


def test_login_says_how_long_to_wait(world):
    client = Client()
    for _ in range(9):
        answer = client.post("/login", {"username": "ada", "password": "wrong"})
    assert 'id="login-wait"' in answer.content.decode()
    assert client.get("/logout").status_code == 405


def test_a_token_is_shown_once(world, as_person):
    ada = as_person("ada")
    answer = ada.post("/account/tokens", {"name": "script", "scope": "read", "days": "30"})
    assert (answer.status_code, answer.url) == (302, "/account/"), "a reload makes no second one"
    stolen = answer.cookies["holdfast_token"]
    assert (stolen["httponly"], stolen["samesite"], stolen["path"]) == (True, "Strict", "/account/")
    shown = ada.get("/account/")
    text = re.search(r"hfk_\w{40}", shown.content.decode())[0]
    assert "no-store" in shown["Cache-Control"]
    assert text not in ada.get("/account/").content.decode()
    eve = as_person("eve")
    eve.cookies["holdfast_token"] = stolen.value
    assert text not in eve.get("/account/").content.decode(), "it is for the person who made it"
    made = ApiToken.objects.latest("pk")
    assert (made.owner, made.scope, made.expires is not None) == (world.ada, "read", True)
    ada.post(f"/account/tokens/{made.pk}/revoke")
    assert not ApiToken.objects.filter(pk=made.pk).exists()
    assert ada.post("/account/tokens", {"name": " "}).status_code == 400


def test_secrets_are_never_shown(world, as_person):
    ada = as_person("ada")
    ada.post("/account/secrets", {"name": "HUB_TOKEN", "value": "hub-value-123"})
    shown = ada.get("/account/").content.decode()
    assert "HUB_TOKEN" in shown
    assert "hub-value-123" not in shown
    assert HUB_TOKEN not in shown
    refused = ada.post("/account/secrets", {"name": "LD_PRELOAD", "value": "hub-value-123"})
    assert refused.status_code == 400
    assert "hub-value-123" not in refused.content.decode()
    ada.post(f"/account/secrets/{world.secret.pk}/remove")
    assert not Secret.objects.filter(pk=world.secret.pk).exists()


def test_hooks_are_added_and_removed(world, as_person):
    ada = as_person("ada")
    asked = {"kind": "webhook", "target": "https://example.org/x", "on_finish": "on"}
    made = ada.post("/account/hooks", asked, follow=True)
    hook = Hook.objects.latest("pk")
    assert hook.key in made.content.decode()
    assert (hook.on_finish, hook.on_trouble) == (True, False)
    assert hook.key not in ada.get("/account/").content.decode()
    assert ada.post("/account/hooks", {"kind": "webhook", "target": "file:///etc/passwd"}).status_code == 400
    ada.post(f"/account/hooks/{hook.pk}/remove")
    assert not Hook.objects.filter(pk=hook.pk).exists()


def test_the_admin_pages_show_no_secret(world, as_person):
    root = as_person("root")
    for name in ("user", "group"):
        assert root.get(f"/admin/auth/{name}/").status_code == 200
    for name in ("job", "dataset", "trainedmodel", "worker", "apitoken", "secret", "hook", "notice"):
        assert root.get(f"/admin/jobs/{name}/").status_code == 200, name
    for page in (
        f"secret/{world.secret.pk}/change/", f"apitoken/{world.token.pk}/change/", f"hook/{world.hook.pk}/change/",
    ):  # fmt: skip
        shown = root.get(f"/admin/jobs/{page}").content.decode()
        for hidden in (HUB_TOKEN, bytes(world.secret.sealed).decode(), world.token.sha256, world.hook.key):
            assert hidden not in shown
    answer = root.post("/admin/auth/user/", {"action": "let_in", "_selected_action": [str(world.bob.pk)]}, follow=True)
    link = re.search(r"/once/[\w-]+", answer.content.decode())[0]
    assert Client().post(link)["Location"] == "/account/password"
    assert as_person("ada").get("/admin/").status_code == 302
