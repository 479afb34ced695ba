"""What the command line says, in the words of the place where it is shown."""

import pytest

from holdfast.core.errors import RequestError, error_record
from holdfast.models import from_hub
from holdfast.service.jobs.words import key_of, label_of, problem_in, said_in
from tests.service.folders import make_job


def advice(*lines, name=label_of):
    return said_in(name, "", "", lines).try_next


def test_settings_are_called_as_the_place_calls_them():
    seen = "--lr 5: is out of range\n--lora-r needs --lora; python --version says 3"
    assert said_in(label_of, "", seen, ()).seen == (
        "learning rate 5: is out of range\nLoRA rank needs LoRA; python --version says 3"
    )
    assert said_in(key_of, "", seen, ()).seen.startswith("lr 5: is out of range\nlora_r needs lora;")


def test_advice_is_something_that_can_be_done_there():
    assert advice("--batch-size 8, which changes what is learned") == (
        "set batch size to 8, which changes what is learned",
    )
    assert advice("--batch-size 8", name=key_of) == ("set batch_size to 8",)
    assert advice("leave --lora out", "add rows to the file") == ("leave LoRA out", "add rows to the file")
    assert advice("--model minilm, smollm2, a folder, or a name such as a/b") == (
        "set model to minilm, smollm2, or a name such as a/b",
    )
    assert advice("pip install 'holdfast[train]'") == ("on the machine that trains: pip install 'holdfast[train]'",)


@pytest.mark.parametrize(
    "line",
    [
        *("--model FOLDER", "--chat-template FILE", "--out FOLDER, on another disk", "holdfast resume /home/x/runs/3"),
        *("where there is a network: hf download a/b --local-dir FOLDER; then here: --model FOLDER", "--offline"),
    ],
)
def test_what_needs_a_path_or_a_terminal_is_left_out(line):
    assert advice(line) == ()


def test_a_kept_refusal_keeps_its_other_fields():
    problem = {"what": "--device cuda is not there", "seen": "", "try_next": ["--device cpu"], "slug": "no-card"}
    assert problem_in(key_of, problem) == {
        "what": "device cuda is not there", "seen": "", "try_next": ["set device to cpu"], "slug": "no-card",
    }  # fmt: skip


@pytest.mark.django_db
@pytest.mark.parametrize("kind", ["missing", "unreachable"])
def test_a_model_that_is_not_known_is_told_on_page_and_api_with_a_guess_and_no_options(home, ada, page, kind):
    refused = from_hub._error("minilmm", {"error": kind, "text": "404"})
    assert isinstance(refused, RequestError) or kind == "unreachable"
    error = error_record(refused)
    job = make_job(ada, state="failed", error=error)
    shown = page.get(f"/runs/{job.pk}").content.decode()
    answered = page.get(f"/api/jobs/{job.pk}").json()["error"]["try_next"]
    for said in (shown, "\n".join(answered)):
        assert "set model to minilm" in said
        assert "--model" not in said
        assert "FOLDER" not in said
