"""Secrets of users, such as a hub token: encrypted at rest, and decrypted only by the agent of a run.

The key is derived from the secret key of the service. An encrypted value contains its owner and its name, so that a row
copied to another user cannot be decrypted there.
"""

import base64
import json
import re
from collections.abc import Callable
from typing import Any

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings
from django.contrib.auth.models import User
from django.utils.encoding import force_bytes

from holdfast.core.env import cache_folder, service_home
from holdfast.core.errors import RequestError
from holdfast.core.redact import Redactor
from holdfast.service.jobs.models import Secret

# Variables that only hold a secret: none of them changes what is executed, as PATH or LD_PRELOAD would.
_NAME = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*_(?:TOKEN|API_KEY|ACCESS_KEY|ACCESS_KEY_ID|PASSWORD)")
_OURS = ("HOLDFAST_", "DJANGO_")
ALLOWED_NAMES = "names such as HF_TOKEN, WANDB_API_KEY, AWS_SECRET_ACCESS_KEY, MLFLOW_TRACKING_PASSWORD"
_by_shape = Redactor()
_LONGEST_NAME, _LONGEST_VALUE, _MOST_SECRETS = 60, 4096, 50


def keep_secret(owner: User, name: str, value: str) -> Secret:
    """Encrypt and save a value under a variable's name; an existing one is replaced."""
    name, value = name.strip(), value.strip()
    problems = []
    if not _NAME.fullmatch(name) or len(name) > _LONGEST_NAME or name.startswith(_OURS):
        problems.append(f"the name {name[:_LONGEST_NAME]!r} is not allowed; use {ALLOWED_NAMES}")
    if not 6 <= len(value) <= _LONGEST_VALUE or not value.isprintable():
        problems.append(f"the value must have 6 to {_LONGEST_VALUE:,} printable characters on one line")
    others = Secret.objects.filter(owner=owner).exclude(name=name)
    if others.count() >= _MOST_SECRETS:
        problems.append(f"you already have {_MOST_SECRETS} secrets, the maximum")
    if problems:
        raise RequestError("the secret cannot be saved", found="; ".join(problems))
    plain = json.dumps({"owner": owner.pk, "name": name, "value": value}).encode()
    secret, _ = Secret.objects.update_or_create(owner=owner, name=name, defaults={"sealed": _box().encrypt(plain)})
    return secret


def open_secrets(owner: User) -> dict[str, str]:
    """A user's secrets as variables for a run. Only for the agent; those that cannot be decrypted are left out."""
    return {
        secret.name: value
        for secret in Secret.objects.filter(owner=owner)
        if (value := _open(secret, owner.pk)) is not None
    }


def without_secrets(text: str) -> str:
    """A text for pages and responses: without the service's paths and anything like a token, key or password."""
    return _by_shape(without_places(text))


def without_places(text: str) -> str:
    """A text without the service's own folders: paths below them start there."""
    for place in (service_home(), cache_folder()):
        text = text.replace(f"{place}/", "")
    return text


def redacted(value: Any) -> Any:
    """A JSON value without secrets in any of its texts."""
    return each_text(value, without_secrets)


def each_text(value: Any, change: Callable[[str], str]) -> Any:
    """A JSON value with every text changed; keys stay."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {key: each_text(item, change) for key, item in value.items()}
    return [each_text(item, change) for item in value] if isinstance(value, list) else value


def _open(secret: Secret, owner_id: int) -> str | None:
    try:
        found = json.loads(_box().decrypt(bytes(secret.sealed)))
    except (InvalidToken, ValueError):
        return None  # the service's key has changed
    is_its_own = found.get("owner") == owner_id and found.get("name") == secret.name
    return str(found["value"]) if is_its_own else None


def _box() -> MultiFernet:
    """The newest key encrypts; older ones still decrypt."""
    return MultiFernet([Fernet(_derived(key)) for key in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)])


def _derived(key: str | bytes) -> bytes:
    derived = HKDF(algorithm=SHA256(), length=32, salt=None, info=b"holdfast kept secrets 1").derive(force_bytes(key))
    return base64.urlsafe_b64encode(derived)
