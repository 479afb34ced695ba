"""What users may request: every setting of `train` except paths."""

import math

import pytest
from django.contrib.auth.models import Group

from holdfast.core.errors import RequestError
from holdfast.core.settings import OPEN_SETTINGS, SETTINGS
from holdfast.service.jobs.models import Dataset, Job, TrainedModel
from holdfast.service.jobs.requests import check_settings, retry_run, submit_run


def refused(given):
    """The invalid settings of a request, with their texts."""
    with pytest.raises(RequestError) as caught:
        check_settings(given)
    return {one.setting: one.text for one in caught.value.problems}


def test_only_given_settings_are_stored_by_name():
    given = {"learning-rate": "2e-5", "max_steps": 20, "text_column": ["question"], "mining": False, "epochs": None}
    assert check_settings(given) == {"lr": 2e-5, "max_steps": 20, "text_column": ["question"], "mining": False}


@pytest.mark.parametrize(
    "name",
    [
        *("data", "validation", "test", "negatives", "out", "from_run", "chat_template", "report_to", "offline"),
        *("train_file", "output_dir", "from", "--out", "validation-file"),
    ],
)
def test_paths_are_not_for_people_to_give(name):
    [field] = refused({name: "/etc/passwd"})
    assert field in SETTINGS
    assert field not in OPEN_SETTINGS


@pytest.mark.parametrize(
    "model",
    ["/etc", "~/models", "./x", "../x", "a/../b", "a/b/c", "..", "C:\\models", "a\0b", 5, ["minilm"]],
)
def test_a_model_is_named_and_never_found_by_a_path(model):
    assert set(refused({"model": model})) == {"model"}


@pytest.mark.parametrize("name", ["processes", "--processes", "nproc_per_node"])
def test_how_many_processes_share_a_step_can_be_asked_for(name):
    assert check_settings({name: "2"}) == {"processes": 2}
    assert set(refused({name: 0})) == {"processes"}


@pytest.mark.parametrize(
    "model", ["minilm", "smollm2", "sentence-transformers/all-MiniLM-L6-v2", "Qwen/Qwen3-0.6B", "holdfast"]
)
def test_model_names_win_over_local_folders(model):
    assert check_settings({"model": model}) == {"model": model}


def test_all_problems_are_reported_at_once():
    found = refused({"epochs": 0, "batch_sise": 4, "task": "clasify", "out": "/tmp", "lora": True})
    assert set(found) == {"epochs", "", "task", "out"}
    assert "batch_size" in found[""], "the guess for an unknown setting"
    assert "classify" in found["task"]


@pytest.mark.parametrize(
    "value", [math.inf, -math.inf, math.nan, 10**400, "inf", True, {}, [], [1], "x" * 5000, "1" * 5000]
)
@pytest.mark.parametrize("name", ["eval_steps", "min_score", "max_steps", "lr"])
def test_invalid_number_is_refused(name, value):
    assert set(refused({name: value})) == {name}


def test_nul_byte_is_refused_everywhere():
    assert set(refused({"text_column": ["a\0b"], "label_column": "a\0b"})) == {"text_column", "label_column"}


def test_every_setting_is_open_path_or_external():
    assert {"task", "model", "epochs", "device", "prove", "allow_changes"} <= set(OPEN_SETTINGS)
    assert not any(field.kind == "path" for field in OPEN_SETTINGS.values())


@pytest.fixture
def people(django_user_model, db):
    return [django_user_model.objects.create_user(name, password="a long enough one") for name in ("ada", "bob")]


@pytest.fixture
def dataset(people):
    choices = {"task": "classify", "label_column": "intent"}
    return Dataset.objects.create(owner=people[0], name="bank", file_name="bank.csv", state="ready", choices=choices)


def test_dataset_choices_hold_unless_overridden(people, dataset):
    job = submit_run(people[0], {"label_column": "topic", "device": "cpu"}, dataset=dataset)
    assert job.request == {"task": "classify", "label_column": "topic", "device": "cpu"}
    assert (job.name, job.goal, job.state, job.device) == ("bank", "plan", "queued", "cpu")


@pytest.mark.parametrize("state", ["surveying", "refused"])
def test_a_dataset_that_is_not_ready_is_not_trained_on(people, dataset, state):
    dataset.state, dataset.problem = state, {"what": "not a table", "found": "an image", "try_next": ["upload a CSV"]}
    with pytest.raises(RequestError) as caught:
        submit_run(people[0], {}, dataset=dataset)
    assert ("an image" in caught.value.found) == (state == "refused")


def test_only_team_members_can_submit_team_runs(people, dataset):
    team = Group.objects.create(name="lab")
    with pytest.raises(RequestError):
        submit_run(people[0], {}, dataset=dataset, team=team)
    people[0].groups.add(team)
    assert submit_run(people[0], {}, dataset=dataset, team=team).team == team


def test_retry_keeps_unchanged_settings_and_its_origin(people, dataset):
    job = submit_run(people[0], {"epochs": 3, "lr": 1e-4}, dataset=dataset, goal="model")
    dataset.team = Group.objects.create(name="lab")
    dataset.save()
    people[1].groups.add(dataset.team)
    again = retry_run(people[1], job, {"learning_rate": 5e-5, "epochs": None})
    assert again.request == {"task": "classify", "label_column": "intent", "lr": 5e-5}
    assert (again.parent, again.owner, again.goal, again.dataset) == (job, people[1], "model", dataset)


@pytest.mark.parametrize("role", ["dataset", "validation", "from_run"])
def test_seeing_a_run_does_not_grant_its_data(people, dataset, role):
    team = Group.objects.create(name="lab")
    for person in people:
        person.groups.add(team)
    shared = Dataset.objects.create(owner=people[0], team=team, name="open", file_name="a.csv", state="ready")
    job = submit_run(people[0], {}, dataset=dataset if role == "dataset" else shared, team=team)
    if role != "dataset":
        number = dataset.pk if role == "validation" else job.pk
        Job.objects.filter(pk=job.pk).update(request={**job.request, role: number})
        job.refresh_from_db()
    TrainedModel.objects.create(owner=people[0], job=job, name="bank", task="classify")
    with pytest.raises(RequestError) as caught:
        retry_run(people[1], job, {"epochs": 2})
    assert caught.value.setting == ("" if role == "from_run" else role)
    assert retry_run(people[0], job, {"epochs": 2}).parent == job
