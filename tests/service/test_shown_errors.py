"""Errors on the pages and in the API: settings by label or key, and only advice that can be followed there."""

import pytest

from holdfast.core.errors import (
    Problem,
    RequestError,
    error_record,
    install,
    invalid_settings,
    leave_out,
    set_to,
    type_command,
)
from holdfast.models import from_hub
from holdfast.service.jobs.shown_errors import api_error, page_error
from tests.service.folders import make_job


def advice(*given, show=page_error):
    shown = show(RequestError("no", try_next=given))
    return list(shown.try_next) if show is page_error else shown["try_next"]


def test_pages_name_settings_by_label_and_the_api_by_key():
    error = invalid_settings([Problem("lr", "out of range", "5"), Problem("lora_r", "needs another setting")])
    assert [one.setting for one in page_error(error).problems] == ["lr", "lora_r"]
    assert page_error(error).problems[0].text == f"learning rate 5: {error.problems[0].text}"
    answered = api_error(error)
    assert answered["setting"] == "lr"
    assert answered["problems"][0] == {"setting": "lr", "text": error.problems[0].text, "value": "5"}
    assert answered["found"].startswith("lr 5: ")


def test_advice_names_settings_like_the_place_it_is_shown_in():
    assert advice(set_to("batch_size", 8)) == ["set batch size to 8"]
    assert advice(set_to("batch_size", 8), show=api_error) == ["set batch_size to 8"]
    assert advice(set_to("lora", False), leave_out("lora_r"), "add rows") == [
        "set LoRA to no", "leave LoRA rank empty", "add rows",
    ]  # fmt: skip


def test_actions_of_the_api_are_values():
    actions = api_error(RequestError("no", try_next=[set_to("device", "cpu"), "free some memory"]))["actions"]
    assert [(one["kind"], one["setting"], one["value"]) for one in actions] == [("set", "device", "cpu")]


@pytest.mark.parametrize(
    "needless",
    [
        set_to("out", placeholder="FOLDER"),
        set_to("chat_template"),
        set_to("model", placeholder="FOLDER"),
        type_command("holdfast resume /x/runs/3"),
    ],
)
def test_terminal_only_advice_is_omitted(needless):
    assert advice(needless) == advice(needless, show=api_error) == []


def test_a_command_is_for_the_machine_that_trains():
    [text] = advice(install("train"))
    assert text.endswith("pip install 'holdfast[train]'")
    [text] = advice(type_command("hf auth login"))
    assert "HF_TOKEN" in text, "a login on the machine would be every user's"


@pytest.mark.django_db
@pytest.mark.parametrize("kind", ["missing", "unreachable"])
def test_unknown_model_gets_a_suggestion(home, ada, page, kind):
    refused = from_hub._error("minilmm", {"error": kind, "text": "404"})
    job = make_job(ada, state="failed", error=error_record(refused))
    answered = page.get(f"/api/jobs/{job.pk}").json()["error"]
    assert ("set", "model", "minilm") in [(one["kind"], one["setting"], one["value"]) for one in answered["actions"]]
    shown = page.get(f"/runs/{job.pk}").content.decode()
    assert "set model to minilm" in shown.casefold()
    assert "--model" not in shown
    assert "FOLDER" not in shown
