"""The examples of docs/api.md are run as written and return what the page shows."""

import json
import re
import shlex
from pathlib import Path

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile

from holdfast.service.jobs.notices import WAITS_SECONDS

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^\$ curl -s (.*)\n(.*)$", PAGE, re.MULTILINE)


def asked(command):
    """What a curl command asks for: method, path, body, form."""
    words = shlex.split(command)
    given = {"-H": [], "-F": [], "-d": [], "-X": []}
    path = ""
    while words:
        word = words.pop(0)
        if word in given:
            given[word].append(words.pop(0))
        else:
            path = word.removeprefix("$HOLDFAST_SERVER")
    assert "Authorization: Bearer $HOLDFAST_TOKEN" in given["-H"]
    method = given["-X"][0] if given["-X"] else "POST" if given["-d"] or given["-F"] else "GET"
    return method.lower(), path, given["-d"], given["-F"]


def agrees(shown, found):
    """Whether what the page shows is what came; three dots stand for anything more."""
    if isinstance(shown, dict):
        return all(key == "..." or agrees(value, found[key]) for key, value in shown.items())
    if isinstance(shown, list):
        wanted = [one for one in shown if one != "..."]
        return len(found) >= len(wanted) and all(map(agrees, wanted, found))
    return shown == found


def shown_json(text):
    text = re.sub(r",? \.\.\.(?=[}\]])", "", text).replace("[...]", '["..."]')
    return json.loads(text)


@pytest.mark.parametrize(("command", "answer"), EXAMPLES, ids=[asked(command)[1] for command, _ in EXAMPLES])
@pytest.mark.django_db(reset_sequences=True, transaction=True)
def test_api_example_returns_what_the_page_shows(world, command, answer):
    method, path, bodies, fields = asked(command)
    client = world.client("ada")
    if fields:
        form = dict(field.split("=", 1) for field in fields)
        form["file"] = SimpleUploadedFile(form["file"].removeprefix("@"), b"question,intent\nwhy,card\n")
        response = client.post(path, form)
    else:
        response = getattr(client, method)(path, bodies[0] if bodies else None, content_type="application/json")
    shown = shown_json(answer)
    assert agrees(shown, response.json()), response.json()
    assert (response.status_code >= 400) == ("error" in shown)


def test_healthy_examples_use_the_documented_limits():
    assert len(EXAMPLES) >= 6
    assert WAITS_SECONDS == (10, 60, 300, 1800, 7200, 21_600)
