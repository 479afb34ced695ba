"""Creates the run folder of a job: the request of the user, with the paths that only the service knows.

Reads the row; writes HOME/runs/ID/request.json.
"""

import shutil
from pathlib import Path

from holdfast.core.errors import RequestError
from holdfast.core.runfolder import REQUEST
from holdfast.core.setting_values import make_request
from holdfast.service.jobs.models import Dataset, Job

ROLES = ("validation", "test", "negatives")  # in a request: the number of another dataset


def make_folder(job: Job) -> Path:
    """The run folder of a job, created at its first claim."""
    folder = job.folder
    if (folder / REQUEST).is_file():
        return folder
    if folder.exists():  # interrupted while it was created
        shutil.rmtree(folder)
    settings: dict[str, object] = dict(job.request)
    for name in ROLES:
        if settings.get(name):
            settings[name] = str(_dataset(settings[name]).path)
    if settings.get("from_run"):
        settings["from_run"] = str(Job(pk=int(str(settings["from_run"]))).folder)
    if job.dataset:
        settings["data"] = str(job.dataset.path)
    from holdfast.runs.new_train import start_train  # slow to import, and usually the folder exists

    return start_train(make_request({**settings, "out": str(folder)}))


def _dataset(pk: object) -> Dataset:
    found: Dataset | None = Dataset.objects.filter(pk=int(str(pk))).first()
    if found is None:
        raise RequestError(f"dataset {pk} was deleted", try_next=("choose another dataset",), setting="dataset")
    return found
