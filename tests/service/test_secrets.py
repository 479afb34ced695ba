"""Secrets: only the agent of a run of their owner can read them."""

from pathlib import Path

import pytest
from django.test import override_settings

from holdfast.core.errors import RequestError
from holdfast.core.redact import is_secret_name
from holdfast.service.jobs.models import Secret
from holdfast.service.jobs.run_environment import run_environment
from holdfast.service.jobs.secrets import keep_secret, open_secrets, without_secrets

pytestmark = pytest.mark.django_db
VALUE = "wandb-0123456789-abcdef"


@pytest.fixture
def people(django_user_model):
    return [django_user_model.objects.create_user(name, password="a long enough one") for name in ("ada", "bob")]


def test_secret_is_encrypted_and_opens_for_its_owner(people):
    keep_secret(people[0], "WANDB_API_KEY", f" {VALUE}\n")
    assert VALUE.encode() not in bytes(Secret.objects.get().sealed)
    assert open_secrets(people[0]) == {"WANDB_API_KEY": VALUE}
    assert open_secrets(people[1]) == {}


def test_secret_copied_to_another_user_does_not_open(people):
    kept = keep_secret(people[0], "WANDB_API_KEY", VALUE)
    Secret.objects.create(owner=people[1], name="WANDB_API_KEY", sealed=kept.sealed)
    Secret.objects.create(owner=people[0], name="HF_TOKEN", sealed=kept.sealed)
    assert open_secrets(people[1]) == {}
    assert open_secrets(people[0]) == {"WANDB_API_KEY": VALUE}


def test_a_second_value_replaces_the_first(people):
    keep_secret(people[0], "HF_TOKEN", "first-value")
    keep_secret(people[0], "HF_TOKEN", "second-value")
    assert open_secrets(people[0]) == {"HF_TOKEN": "second-value"}


def test_old_service_key_opens_lost_key_does_not(people):
    keep_secret(people[0], "HF_TOKEN", VALUE)
    from django.conf import settings

    old = settings.SECRET_KEY
    with override_settings(SECRET_KEY="a new key", SECRET_KEY_FALLBACKS=[old]):
        assert open_secrets(people[0]) == {"HF_TOKEN": VALUE}
    with override_settings(SECRET_KEY="a new key", SECRET_KEY_FALLBACKS=[]):
        assert open_secrets(people[0]) == {}


@pytest.mark.parametrize(
    "name",
    ["PATH", "LD_PRELOAD", "PYTHONPATH", "HOLDFAST_TOKEN", "DJANGO_API_KEY", "hf_token", "HF_TOKEN\n=x", "_TOKEN", ""],
)
def test_a_variable_that_changes_what_is_run_is_refused(people, name):
    with pytest.raises(RequestError):
        keep_secret(people[0], name, VALUE)
    assert not Secret.objects.exists()


@pytest.mark.parametrize("value", ["", "short", "two\nlines-of-it", "nul\0nul-nul", "x" * 5000])
def test_invalid_secret_is_refused_and_not_echoed(people, value):
    with pytest.raises(RequestError) as caught:
        keep_secret(people[0], "HF_TOKEN", value)
    assert not value or value not in caught.value.found


def test_run_gets_only_secrets_and_needed_variables(people):
    keep_secret(people[0], "HF_TOKEN", VALUE)
    own = dict.fromkeys(
        (
            "HOLDFAST_SECRET_KEY", "HOLDFAST_DATABASE_URL", "HOLDFAST_BROKER_URL", "HOLDFAST_EMAIL_PASSWORD",
            "HOLDFAST_STORE", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "FSSPEC_S3_KEY", "PGPASSWORD", "KUBECONFIG",
            "SSH_AUTH_SOCK", "GITHUB_TOKEN", "HF_HUB_TOKEN", "PIP_PASSWORD", "WANDB_API_KEY", "DJANGO_SETTINGS_MODULE",
        ),
        "x",
    )  # fmt: skip
    needed = {
        "PATH": "/bin", "HOLDFAST_HOME": "/h", "LD_LIBRARY_PATH": "/cuda", "CUDA_VISIBLE_DEVICES": "1",
        "OMP_NUM_THREADS": "2", "HF_HOME": "/cache", "HTTPS_PROXY": "http://p", "XDG_CACHE_HOME": "/c", "LC_ALL": "C",
        "PYTHONPATH": "/x", "PIP_INDEX_URL": "https://mirror",
    }  # fmt: skip
    given = {**needed, "HF_TOKEN": "of the machine", **own}
    hub = ("HF_HUB_CACHE", "HF_TOKEN_PATH", "HOLDFAST_PRIVATE_MODELS")
    found = run_environment(people[0], given)
    assert {name: value for name, value in found.items() if name not in hub} == {**needed, "HF_TOKEN": VALUE}
    assert "HF_TOKEN" not in run_environment(people[1], given), "the machine's own token is no other person's"


def test_runs_share_public_hub_models_and_nothing_private(people):
    ours, theirs = (run_environment(one, {"HF_HUB_CACHE": "/of/the/machine"}) for one in people[:2])
    assert ours["HF_HUB_CACHE"] == theirs["HF_HUB_CACHE"] != "/of/the/machine"
    assert ours["HOLDFAST_PRIVATE_MODELS"] != theirs["HOLDFAST_PRIVATE_MODELS"]
    assert not Path(ours["HF_TOKEN_PATH"]).exists(), "the machine's own hub login must not serve its users"


def test_every_allowed_name_is_one_that_bundles_keep_back():
    for name in ("HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "MLFLOW_TRACKING_PASSWORD"):
        assert is_secret_name(name)


def test_a_log_is_shown_without_tokens():
    shown = without_secrets("using hf_abcdefghijklmnopqrstuv\nWANDB_API_KEY=0123456789abcdef0123\nstep 5 loss 0.3")
    assert "abcdefghij" not in shown
    assert "0123456789abcdef" not in shown
    assert "step 5 loss 0.3" in shown
