"""The form of a new run, the form of a retry, and the comparison of runs."""

import re

import pytest
from django.contrib.auth.models import User

from holdfast.core.settings import OPEN_SETTINGS, SETTINGS
from holdfast.service.jobs.compare import MOST_RUNS
from holdfast.service.jobs.models import Dataset, Job, TrainedModel
from tests.service.folders import make_job

pytestmark = pytest.mark.django_db


def test_form_has_exactly_the_allowed_settings(home, ada, page, data):
    shown = page.get("/runs/new").content.decode()
    named = set(re.findall(r'<(?:input|select)[^>]* name="([a-z0-9_]+)"', shown))
    assert set(OPEN_SETTINGS) <= named
    closed = {"data", "out", "from_run", "report_to", "chat_template", "offline"}
    assert not (named & closed)
    assert named <= set(SETTINGS) | {"csrfmiddlewaretoken", "dataset", "name", "team", "from"}


def test_a_new_run_is_planned_first(home, ada, page, data):
    given = {"dataset": data.pk, "name": "mine", "epochs": "3", "lr": "1e-4", "text_column": "title, body", "model": ""}
    answer = page.post("/runs/new", given)
    job = Job.objects.get()
    assert answer["Location"] == f"/runs/{job.pk}"
    assert (job.goal, job.state, job.name, job.dataset_id) == ("plan", "queued", "mine", data.pk)
    assert job.request == {"epochs": 3, "lr": 1e-4, "text_column": ["title", "body"]}


def marked_fields(shown):
    """The controls that are marked as invalid; each must have its message, and a link to it from the summary."""
    found = re.findall(r'<(?:input|select) id="field-(\w+)"[^>]*aria-invalid="true"', shown)
    for name in found:
        assert f'id="error-{name}"' in shown
        assert f'<a href="#field-{name}">' in shown
        assert re.search(rf'id="field-{name}"[^>]*aria-describedby="help-{name} error-{name}"', shown)
    return set(found)


def test_invalid_settings_are_marked_all_at_once(home, ada, page, data):
    answer = page.post("/runs/new", {"dataset": data.pk, "epochs": "0", "lr": "fast", "model": "/etc/passwd"})
    shown = answer.content.decode()
    assert answer.status_code == 422
    assert marked_fields(shown) == {"epochs", "lr", "model"}
    assert "--" not in re.sub(r"<!--.*?-->", "", shown), "options are for the command line"
    assert 'value="fast"' in shown
    assert not Job.objects.exists()


def test_a_missing_dataset_is_marked_with_everything_else(home, page, data):
    answer = page.post("/runs/new", {"epochs": "0"})
    assert answer.status_code == 422
    assert marked_fields(answer.content.decode()) == {"dataset", "epochs"}


def test_unknown_columns_are_marked_with_those_that_exist(home, page, data):
    Dataset.objects.filter(pk=data.pk).update(facts={"rows": 200, "columns": ["title", "body", "intent"]})
    asked = {"dataset": data.pk, "text_column": "titel, body", "label_column": "topic"}
    answer = page.post("/runs/new", asked)
    shown = answer.content.decode()
    assert answer.status_code == 422
    assert marked_fields(shown) == {"text_column", "label_column"}
    assert "title, body, intent" in shown
    assert page.post("/runs/new", {**asked, "text_column": "title", "label_column": "intent"}).status_code == 302
    otherwise = {**asked, "delimiter": ";"}  # it may have other columns then; the plan will tell
    assert page.post("/runs/new", otherwise).status_code == 302


@pytest.mark.parametrize("role", ["dataset", "validation", "test", "negatives"])
def test_missing_data_of_a_retry_can_be_replaced(home, ada, page, data, role):
    lost = Dataset.objects.create(owner=ada, name="held out", file_name="x.csv", state="ready")
    first = make_job(ada, "finished", dataset=lost if role == "dataset" else data)
    beside = {} if role == "dataset" else {role: lost.pk}
    Job.objects.filter(pk=first.pk).update(request={"epochs": 2, **beside})
    path = f"/runs/new?from={first.pk}"
    assert marked_fields(page.get(path).content.decode()) == set()
    form = {"from": first.pk, "dataset": data.pk, "name": "again", "epochs": "2", role: lost.pk}

    Dataset.objects.filter(pk=lost.pk).update(state="refused")
    answer = page.get(path)
    assert answer.status_code == 200
    assert marked_fields(answer.content.decode()) == {role}
    refused = page.post("/runs/new", form)
    assert refused.status_code == 422
    assert marked_fields(refused.content.decode()) == {role}
    assert page.post("/runs/new", {**form, role: data.pk}).status_code == 302, "another one was chosen"
    again = Job.objects.get(name="again")
    assert (again.dataset if role == "dataset" else again.request[role]) in (data, data.pk)


def test_other_peoples_datasets_cannot_be_trained_on(home, ada, page, data):
    other = Dataset.objects.create(owner=User.objects.create_user("bo"), name="x", file_name="x.csv", state="ready")
    assert page.post("/runs/new", {"dataset": other.pk}).status_code == 422
    assert page.post("/runs/new", {"dataset": "1; drop"}).status_code == 422
    assert not Job.objects.exists()


def test_a_retry_starts_from_the_settings_of_its_run(home, ada, page, data):
    first = make_job(ada, "failed", dataset=data)
    Job.objects.filter(pk=first.pk).update(request={"model": "minilm", "epochs": 4})
    shown = page.get(f"/runs/{first.pk}/retry", follow=True).content.decode()
    assert re.search(r'name="epochs" value="4"', shown)
    page.post("/runs/new", {"from": first.pk, "dataset": data.pk, "epochs": "5", "model": "minilm", "name": "again"})
    second = Job.objects.exclude(pk=first.pk).get()
    assert (second.parent_id, second.request["epochs"], second.goal) == (first.pk, 5, "plan")


def test_a_retry_whose_earlier_model_is_gone_warns_first(home, ada, page, data):
    base = make_job(ada, "finished")
    model = TrainedModel.objects.create(owner=ada, job=base, name="base", task="classify")
    first = make_job(ada, "finished", name="second", dataset=data)
    Job.objects.filter(pk=first.pk).update(request={"from_run": base.pk, "epochs": 2})
    path = f"/runs/new?from={first.pk}"
    continues, is_lost = 'name="from_model"', 'id="lost-model"'
    shown = page.get(path).content.decode()
    assert continues in shown
    assert is_lost not in shown

    form = {"from": first.pk, "from_model": model.pk, "dataset": data.pk, "name": "third", "epochs": "2"}
    model.delete()  # while somebody fills in the form
    refused = page.post("/runs/new", form)
    assert refused.status_code == 422
    for shown in (refused.content.decode(), page.get(path).content.decode()):
        assert is_lost in shown
        assert continues not in shown
    assert page.post("/runs/new", {**form, "from_model": ""}).status_code == 302, "the user was warned"
    assert "from_run" not in Job.objects.get(name="third").request


def test_runs_are_compared_by_settings_metrics_curves_and_times(home, ada, page, data):
    first = make_job(ada, "finished", dataset=data, metrics={"test": {"accuracy": 0.5, "loss": 1.0}})
    second = make_job(ada, "finished", name="second", metrics={"test": {"accuracy": 0.7, "loss": 2.0}})
    Job.objects.filter(pk=second.pk).update(request={"model": "minilm", "epochs": 9})
    shown = page.get(f"/runs/compare?ids={first.pk},{second.pk}").content.decode()
    assert "accuracy, test" in shown
    assert shown.count("★") == 2
    assert "epochs" in shown
    assert shown.count('class="line ') == 2
    assert "ends at" in shown
    for ids in ("", "x", f"{first.pk}", "1,2,3,4,5,6,7,8,9", "99999999999999999999999", f"{first.pk},{first.pk}"):
        assert page.get(f"/runs/compare?ids={ids}").status_code == 200


def test_page_and_api_compare_the_same_number_of_runs(home, ada, page):
    made = [str(make_job(ada, "finished", name=f"run {at}").pk) for at in range(MOST_RUNS + 1)]
    for count, is_taken in ((MOST_RUNS, True), (MOST_RUNS + 1, False)):
        ids = ",".join(made[:count])
        shown = page.get(f"/runs/compare?ids={ids}").content.decode()
        assert (shown.count('<li class="card">'), 'id="missing"' in shown) == (MOST_RUNS, not is_taken)
        assert page.get(f"/api/jobs/compare?ids={ids}").status_code == (200 if is_taken else 422)


def test_chosen_rows_of_the_list_can_be_compared(home, ada, page):
    first, second = make_job(ada, "finished"), make_job(ada, "failed", name="second")
    shown = page.get(f"/runs/compare?ids={first.pk}&ids={second.pk}").content.decode()
    assert "second" in shown
    assert 'id="too-few"' not in shown


def test_number_too_large_for_a_row_is_handled(home, ada, page):
    assert page.get("/runs/99999999999999999999999").status_code == 404
    assert page.get("/runs/new?from=99999999999999999999999&dataset=x").status_code == 200
