"""The pages about data, models, machines and accounts: who sees what, escaping, and the number of queries."""

import json
from datetime import timedelta

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.utils import timezone

from holdfast.core.errors import MachineError, RequestError
from holdfast.service.home import this_home
from holdfast.service.jobs import model_pool, registry
from holdfast.service.jobs.models import ApiToken, Dataset, Job, TrainedModel, Worker
from tests.service.markup import faults_of
from tests.service.surveyed import ROWS, survey_here

EVIL = "<script>alert(1)</script>"


@pytest.fixture
def surveyed(monkeypatch):
    from holdfast.service.jobs import datasets

    monkeypatch.setattr(datasets, "begin", survey_here)


def pages_of(world):
    return [
        "/datasets/",
        "/datasets/new",
        f"/datasets/{world.dataset.pk}",
        f"/datasets/{world.dataset.pk}/live",
        "/machines/",
        "/machines/live",
        "/hazards/openmp-duplicate",
        "/models/",
        f"/models/{world.model.pk}",
        f"/models/{world.model.pk}/delete",
        "/account/",
        "/account/password",
    ]


@pytest.mark.parametrize("name", ["ada", "bob", "root"])
def test_owner_team_and_admin_see_every_page(world, as_person, name):
    for page in pages_of(world):
        answer = as_person(name).get(page)
        assert answer.status_code == 200, page
        assert "unsafe-inline" not in answer["Content-Security-Policy"]


def test_data_pages_need_a_login(world):
    for page in pages_of(world):
        answer = Client().get(page)
        assert answer.status_code == 302, page
        assert answer["Location"].startswith("/login?next=/"), page


def test_unauthorized_user_gets_404_and_changes_nothing(world, as_person):
    eve = as_person("eve")
    dataset, model = world.dataset.pk, world.model.pk
    for page in (f"/datasets/{dataset}", f"/datasets/{dataset}/live", f"/models/{model}", f"/models/{model}/delete"):
        assert eve.get(page).status_code == 404, page
    changes = [f"/datasets/{dataset}/{what}" for what in ("choose", "delete")]
    changes += [f"/models/{model}/{what}" for what in ("try", "promote", "rename", "delete")]
    for page in changes:
        assert eve.post(page, {"name": "mine", "text": "x"}).status_code == 404, page
    for page in (
        f"/account/tokens/{world.token.pk}/revoke",
        f"/account/secrets/{world.secret.pk}/remove",
        f"/account/hooks/{world.hook.pk}/remove",
        f"/account/hooks/{world.hook.pk}/test",
    ):
        assert eve.post(page).status_code == 404, page
        assert as_person("bob").post(page).status_code == 404, page  # a team shares runs, not keys
    assert "bank" not in eve.get("/datasets/").content.decode()
    assert "bank" not in eve.get("/models/").content.decode()
    world.model.refresh_from_db()
    assert (world.model.name, world.model.stage) == ("bank", "candidate")
    assert ApiToken.objects.filter(pk=world.token.pk).exists()


def test_changes_need_a_form_of_ours(world):
    client = Client(enforce_csrf_checks=True)
    client.force_login(world.ada)
    answer = client.post(f"/models/{world.model.pk}/promote")
    assert answer.status_code == 403
    assert 'id="problem-403"' in answer.content.decode()


@pytest.mark.parametrize("page", ["datasets/9999999", "models/9999999", "hazards/no-such", "nowhere"])
def test_missing_features_are_documented(world, as_person, page):
    answer = as_person("ada").get(f"/{page}")
    assert answer.status_code == 404
    assert 'id="problem-404"' in answer.content.decode()


def test_internal_error_hides_the_database(world, monkeypatch):
    from holdfast.service.pages.views import model_views as models

    client = Client(raise_request_exception=False)
    client.force_login(world.ada)
    monkeypatch.setattr(models, "read_list", lambda *_: 1 / 0)
    answer = client.get("/models/")
    assert answer.status_code == 500
    assert 'id="problem-500"' in answer.content.decode()


def test_an_upload_by_the_plain_form_and_by_the_script(world, as_person, surveyed):
    ada = as_person("ada")
    answer = ada.post("/datasets/new", {"file": SimpleUploadedFile("a.csv", ROWS.encode()), "team": str(world.team.pk)})
    made = Dataset.objects.latest("pk")
    assert answer["Location"] == f"/datasets/{made.pk}"
    assert (made.team, made.file_name) == (world.team, "a.csv")
    answer = ada.post(
        "/datasets/new", {"file": SimpleUploadedFile("b.csv", ROWS.encode())}, headers={"X-Requested-With": "upload"}
    )
    assert answer.json() == {"url": f"/datasets/{Dataset.objects.latest('pk').pk}"}
    shown = ada.get(answer.json()["url"]).content.decode()
    assert "the meal number 1 was good" in shown
    assert 'id="twins"' in shown
    assert "<svg" in shown
    assert list(this_home().incoming.glob("*")) == []


def test_an_upload_that_is_refused_says_why_both_ways(world, as_person, settings):
    settings.UPLOAD_BYTES = 500
    ada = as_person("ada")
    for headers in ({}, {"X-Requested-With": "upload"}):
        file = SimpleUploadedFile("a.csv", b"x" * 2_000_000)
        answer = ada.post("/datasets/new", {"file": file}, headers=headers)
        assert answer.status_code == 400
        assert "500 bytes" in answer.content.decode()
    assert ada.post("/datasets/new", {}).status_code == 400
    assert list(this_home().incoming.glob("*")) == []
    assert Dataset.objects.count() == 1


def test_a_file_sent_elsewhere_is_not_kept(world, as_person):
    as_person("ada").post("/account/tokens", {"file": SimpleUploadedFile("a.csv", b"x" * 1000), "name": ""})
    assert list(this_home().incoming.glob("*")) == []


def test_data_is_shown_as_text(world, as_person, surveyed):
    rows = f'text,"{EVIL}"\n' + "".join(f'"{EVIL} =HYPERLINK(""x"") {at}","{EVIL}{at % 2}"\n' for at in range(40))
    ada = as_person("ada")
    ada.post("/datasets/new", {"file": SimpleUploadedFile(f"{EVIL}.csv", rows.encode()), "name": EVIL})
    made = Dataset.objects.latest("pk")
    TrainedModel.objects.filter(pk=world.model.pk).update(name=EVIL, base=EVIL)
    Job.objects.filter(pk=world.job.pk).update(name=EVIL, state="running")
    Worker.objects.update(name=EVIL, checkup={"findings": [{"slug": EVIL, "title": EVIL, "seen": EVIL}]})
    for page in (*pages_of(world), f"/datasets/{made.pk}"):
        assert EVIL not in ada.get(page).content.decode(), page
    assert "&lt;script&gt;alert(1)&lt;/script&gt; =HYPERLINK" in ada.get(f"/datasets/{made.pk}").content.decode()


def test_choosing_columns_surveys_again(world, as_person, surveyed):
    ada = as_person("ada")
    content = "title,body,kind\n" + "".join(f"t{at},a longer body of text {at},{'ab'[at % 2]}\n" for at in range(50))
    ada.post("/datasets/new", {"file": SimpleUploadedFile("a.csv", content.encode())})
    made = Dataset.objects.latest("pk")
    ada.post(f"/datasets/{made.pk}/choose", {"task": "classify", "text_column": ["title"], "label_column": "kind"})
    made.refresh_from_db()
    assert made.facts["text_column"] == "title"
    answer = ada.post(f"/datasets/{made.pk}/choose", {"encoding": "rot13", "min_score": "many"}, follow=True)
    assert "rot13" in answer.content.decode()
    made.refresh_from_db()
    assert made.choices["text_column"] == ["title"]
    assert ada.post(f"/datasets/{made.pk}/delete")["Location"] == "/datasets/"
    assert not Dataset.objects.filter(pk=made.pk).exists()


def test_a_dataset_in_use_is_not_deleted_from_its_page(world, as_person):
    answer = as_person("ada").post(f"/datasets/{world.dataset.pk}/delete", follow=True)
    assert 'class="notice bad"' in answer.content.decode()
    assert world.dataset.path.is_file()


def test_one_model_of_a_name_is_promoted(world, as_person):
    ada = as_person("ada")
    job = Job.objects.create(owner=world.ada, name="bank", state="finished")
    second = TrainedModel.objects.create(owner=world.ada, job=job, name="bank", version=2, task="classify")
    ada.post(f"/models/{world.model.pk}/promote")
    ada.post(f"/models/{second.pk}/promote")
    assert list(TrainedModel.objects.filter(stage="promoted")) == [second]
    ada.post(f"/models/{second.pk}/promote", {"stage": "candidate"})
    assert not TrainedModel.objects.filter(stage="promoted").exists()


def test_renaming_to_a_taken_name_adds_a_version(world, as_person):
    job = Job.objects.create(owner=world.ada, name="till", state="finished")
    other = TrainedModel.objects.create(
        owner=world.ada, job=job, name="till", version=3, task="classify", stage="promoted"
    )
    as_person("bob").post(f"/models/{world.model.pk}/rename", {"name": " till "})
    world.model.refresh_from_db()
    assert (world.model.name, world.model.version, world.model.stage) == ("till", 4, "candidate")
    with pytest.raises(RequestError):
        registry.rename(other, "\x00  ")


def test_deleting_a_model_removes_its_files_and_keeps_the_record(world, as_person):
    ada, folder = as_person("ada"), world.job.folder
    assert "Delete bank v1?" in ada.get(f"/models/{world.model.pk}/delete").content.decode()
    assert (folder / "model").is_dir()
    ada.post(f"/models/{world.model.pk}/delete")
    assert not TrainedModel.objects.exists()
    assert not (folder / "model").exists()
    assert (folder / "metrics.json").is_file()
    assert Job.objects.filter(pk=world.job.pk, state="finished").exists()
    assert [path.name for path in folder.iterdir() if path.name.startswith(".gone")] == []


def test_model_used_by_a_run_is_kept(world):
    Job.objects.create(owner=world.ada, name="more", state="queued", request={"from_run": world.job.pk})
    with pytest.raises(RequestError):
        registry.remove(world.model)
    assert TrainedModel.objects.filter(pk=world.model.pk).exists()


def test_trying_a_model_shows_probabilities_answers_passages_or_words(world, as_person, monkeypatch):
    ada, page = as_person("ada"), f"/models/{world.model.pk}/try"
    said = {"predicted": EVIL, "probabilities": {EVIL: 0.75, "cash": 0.25}}
    monkeypatch.setattr(registry, "predict", lambda model, texts: [said])
    shown = ada.post(page, {"text": "how much"}, headers={"X-Requested-With": "try"}).content.decode()
    assert "75.0%" in shown
    assert EVIL not in shown
    assert "<html" not in shown
    monkeypatch.setattr(registry, "predict", lambda model, texts: [{"answer": EVIL, "ended": False}])
    assert "cut off" in ada.post(page, {"text": "how"}).content.decode()
    monkeypatch.setattr(registry, "predict", lambda model, texts: [{"found": [{"score": 0.5, "text": EVIL}]}])
    shown = ada.post(page, {"text": EVIL}).content.decode()
    assert "0.500" in shown
    assert EVIL not in shown

    def crash(model, texts):
        raise MachineError("the process that runs the model ended with signal SIGSEGV", found=EVIL)

    monkeypatch.setattr(registry, "predict", crash)
    shown = ada.post(page, {"text": "x"}).content.decode()
    assert "SIGSEGV" in shown
    assert EVIL not in shown


def test_candidates_are_bounded(tmp_path):
    for text in ("", "  ", "x" * (model_pool.LONGEST_TEXT + 1)):
        with pytest.raises(RequestError):
            model_pool.ask(tmp_path, text)


@pytest.mark.parametrize("page", ["/datasets/", "/models/", "/machines/", "/account/"])
def test_more_rows_take_no_more_queries(world, as_person, page, django_assert_max_num_queries):
    for at in range(20):
        Dataset.objects.create(owner=world.ada, team=world.team, name=f"d{at}", file_name="a.csv", state="ready")
        job = Job.objects.create(owner=world.bob, team=world.team, name=f"j{at}", state="running", worker=world.worker)
        TrainedModel.objects.create(owner=world.bob, team=world.team, job=job, name=f"m{at}", task="classify")
        Worker.objects.create(name=f"w{at}", host="w")
    ada = as_person("ada")
    with django_assert_max_num_queries(9):
        assert ada.get(page).status_code == 200


@pytest.mark.parametrize("place", ["dataset", "model"])
def test_one_row_takes_few_queries(world, as_person, place, django_assert_max_num_queries):
    ada = as_person("ada")
    with django_assert_max_num_queries(9):
        ada.get(f"/{place}s/{getattr(world, place).pk}")


def test_machine_shows_findings_and_hides_foreign_jobs(world, as_person):
    finding = {"slug": "openmp-duplicate", "severity": "blocker", "title": "two copies", "seen": "libomp twice"}
    Worker.objects.update(checkup={"findings": [finding], "facts": {"chip": "M2"}}, checked=timezone.now())
    Job.objects.filter(pk=world.job.pk).update(state="running")
    shown = as_person("eve").get("/machines/").content.decode()
    assert "libomp twice" in shown
    assert "1 blocker" in shown
    assert "/hazards/openmp-duplicate" in shown
    assert 'class="soft others">1 ' in shown
    assert f"/runs/{world.job.pk}" not in shown
    Worker.objects.update(beat=timezone.now() - timedelta(minutes=5), checkup={"error": "doctor did not answer"})
    shown = as_person("ada").get("/machines/").content.decode()
    assert 'class="state bad">offline<' in shown
    assert "doctor did not answer" in shown


def test_odd_queries_break_no_list(world, as_person):
    for query in (
        "q=%00",
        "page=-1",
        "page=x",
        "page=99999999999999999999",
        "stage=x&q=%F0%9F%98%80",
        "q=" + "x" * 3000,
    ):
        for page in ("/datasets/", "/models/"):
            assert as_person("ada").get(f"{page}?{query}").status_code == 200, (page, query)


def test_the_survey_is_followed_until_it_is_done(world, as_person):
    ada = as_person("ada")
    ada.post("/datasets/new", {"file": SimpleUploadedFile("a.csv", ROWS.encode())})
    made = Dataset.objects.latest("pk")
    answer = ada.get(f"/datasets/{made.pk}/live")
    assert "X-Live" not in answer
    assert 'id="survey-progress"' in answer.content.decode()
    assert ada.get(f"/datasets/{made.pk}/live", headers={"If-None-Match": answer["ETag"]}).status_code == 304
    job = next((made.path.parent / ".survey").glob("*.job.json"))
    survey_here(made.path.parent, job.name.partition(".")[0])
    answer = ada.get(f"/datasets/{made.pk}/live")
    assert answer["X-Live"] == "done"
    assert json.loads(job.read_text())["limits"]["rows"] == 5_000_000


def test_shared_names_are_consistent(world, as_person):
    private = Job.objects.create(owner=world.ada, name="a quiet plan", dataset=world.dataset, state="finished")
    twin = Dataset.objects.create(
        owner=world.ada, name="a quiet copy", file_name="b.csv", state="ready", sha256="a" * 64
    )
    Dataset.objects.filter(pk=world.dataset.pk).update(sha256=twin.sha256)
    TrainedModel.objects.create(
        owner=world.ada, job=private, name=world.model.name, version=77, task="classify", stage="promoted"
    )
    pages = f"/datasets/{world.dataset.pk}", f"/datasets/{world.dataset.pk}/live", f"/models/{world.model.pk}"
    own = "".join(as_person("ada").get(path).content.decode() for path in pages)
    assert own.count("a quiet plan") == 2
    assert own.count("a quiet copy") == 2
    assert "77" in own
    shared = "".join(as_person("bob").get(path).content.decode() for path in pages)
    assert "a quiet" not in shared
    assert "v77" not in shared
    assert shared.count('id="others">1 ') == 2


def test_data_pages_have_named_controls_and_ordered_headings(world, as_person):
    pages = [page for page in pages_of(world) if not page.endswith("/live")]
    for page in [*pages, "/login"]:
        client = Client() if page == "/login" else as_person("ada")
        assert faults_of(client.get(page).content.decode()) == [], page
