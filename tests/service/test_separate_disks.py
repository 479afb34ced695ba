"""Machines with separate disks and one store: another machine continues what one leaves behind."""

import contextlib
import hashlib
import uuid
from pathlib import Path

import psutil
import pytest

from tests.service.parts import fresh_database, postgres, redis, s3, s3_variables
from tests.service.place import Place, kill, place
from tests.tiny import tiny_bert

pytestmark = [pytest.mark.service, pytest.mark.full, pytest.mark.timeout(1800)]

# In a process without the run's folder, as the page's may be.
USE = """
import asyncio, hashlib, io, zipfile
from holdfast.service.jobs import registry, model_pool
from holdfast.service.jobs.downloads import model_zip
from holdfast.service.jobs.models import Job

job = Job.objects.get(pk={})
assert not job.folder.exists()
name, chunks = model_zip(job)

async def whole():
    return b"".join([chunk async for chunk in chunks])

packed = zipfile.ZipFile(io.BytesIO(asyncio.run(whole())))
assert (job.folder / "report.html").is_file()
print(hashlib.sha256(packed.read("model.safetensors")).hexdigest())
print(registry.predict(job.trained_model, ["w1 w2 w3"])[0]["predicted"])
model_pool.forget(job.folder)
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_bert(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def parts():
    with postgres() as database, redis() as broker:
        yield database, broker


@pytest.fixture(params=["file", "s3"])
def machines(request, tmp_path, model, parts):
    """Makes a machine with a home of its own; database, broker and store are the same for all."""
    database, broker = parts
    url = fresh_database(database, f"test_{uuid.uuid4().hex[:12]}")
    with contextlib.ExitStack() as stack:
        variables, store = {}, f"file://{tmp_path}/store"
        if request.param == "s3":
            server = stack.enter_context(s3())
            variables, store = s3_variables(server), server.url

        def make(name: str) -> Place:
            folder = tmp_path / name
            given = {
                "database_url": url,
                "broker_url": broker.url,
                "STORE": store,
                "SECRET_KEY": "the same key on every machine, 0123456789",
            }
            made = stack.enter_context(place(folder, model, **given))
            made.environment.update(variables)
            return made

        yield make


def weights(run: Path) -> str:
    return hashlib.sha256((run / "model" / "model.safetensors").read_bytes()).hexdigest()


def test_another_machine_continues_to_identical_weights(machines):
    one = machines("one")
    one.worker("one")
    undisturbed, job_id = one.submit(2, max_steps=800, save_seconds=1)
    one.wait(undisturbed, "finished")
    keeper_log = one.home / f"agents/{job_id}.log"
    one.until(lambda: "sent to the store; skipped: nothing" in keeper_log.read_text(), 150, lambda: one.told(job_id))
    for process in one.find():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            kill(process)
    assert one.row(job_id)["state"] == "running"

    two = machines("two")
    two.worker("two")
    two.wait(job_id, "finished", seconds=900)
    assert "fetched from the store" in (two.home / f"agents/{job_id}.log").read_text()
    assert min(two.first_steps(job_id)[1:]) > 0, two.told(job_id)
    assert weights(two.run_folder(job_id)) == weights(one.run_folder(undisturbed))

    page = machines("page")
    packed, answer = page.run_code(USE.format(job_id)).splitlines()
    assert packed == weights(two.run_folder(job_id))
    assert answer in ("a", "b", "c")
