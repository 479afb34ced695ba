"""Runs surveys in this process, so that quick tests need no other."""

import msgspec
import pytest

from holdfast.core.artifacts import read_artifact, write_artifact
from holdfast.service import survey_child
from holdfast.service.jobs import datasets
from holdfast.service.survey_watch import PLACE

ROWS = "text,label\n" + "".join(
    f"the meal number {at} was good,food\n" if at % 2 else f"the room number {at} was cold,stay\n" for at in range(60)
)


class Ended:
    """A process that is done."""

    def poll(self) -> int:
        return 0


def survey_here(folder, key):
    """Do at once what the child would do."""
    job = msgspec.convert(read_artifact(folder / PLACE / f"{key}.job.json"), survey_child.SurveyJob)
    found = survey_child.survey_upload(
        job, lambda what, done, whole, unit="": survey_child.check_amount(done, unit, job.limits)
    )
    write_artifact(folder / PLACE, f"{key}.json", found)
    return Ended()


@pytest.fixture
def surveys(monkeypatch):
    """Surveys are done as soon as they are begun."""
    monkeypatch.setattr(datasets, "begin", survey_here)
