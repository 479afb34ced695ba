"""One walk over every hazard, so a new one brings no test code."""

import dataclasses
import re

import pytest

from holdfast.cli import COMMANDS
from holdfast.core.evidence import Diagnosis, Evidence
from holdfast.core.settings import CHANGEABLE
from holdfast.hazards import Case, all_hazards
from holdfast.hazards.diagnose import diagnose
from holdfast.hazards.harmless import set_aside
from holdfast.logs.log_text import read_evidence


def evidence_of(case: str | Case) -> Evidence:
    if isinstance(case, str):
        return read_evidence(case)
    return dataclasses.replace(read_evidence(case.log, case.exit), observations=case.observations)


def diagnosis_of(case: str | Case) -> Diagnosis:
    return diagnose(evidence_of(case))


@pytest.mark.parametrize("hazard", all_hazards(), ids=lambda hazard: hazard.slug)
class TestEveryHazard:
    def test_knows_its_own_cases(self, hazard):
        assert hazard.matches
        for case in hazard.matches:
            assert diagnosis_of(case).slug == hazard.slug, case

    def test_every_sign_is_shown_by_a_case(self, hazard):
        shown = [set_aside(evidence_of(case))[0] for case in hazard.matches]
        unseen = [number for number, sign in enumerate(hazard.signs) if not any(map(sign.find, shown))]
        assert not unseen, "add a case for each of these signs, counted from 0, or remove the sign"

    def test_near_misses_are_not_named(self, hazard):
        assert hazard.near_misses
        for case in hazard.near_misses:
            assert diagnosis_of(case).slug != hazard.slug, case

    def test_offers_a_remedy_that_can_be_applied_or_typed(self, hazard):
        assert hazard.remedies
        for remedy in hazard.remedies:
            assert remedy.change or remedy.command, remedy.title
            for named in re.findall(r"\bholdfast (\w+)", remedy.command):
                assert named in COMMANDS, remedy.command
            for setting in remedy.change or {}:
                assert setting in CHANGEABLE or setting.isupper(), setting

    def test_has_a_complete_story_and_sources(self, hazard):
        for heading in ("What you see:", "Why:", "What we do:"):
            assert heading in hazard.story
        assert hazard.sources
        assert hazard.title[0].islower()
        assert not hazard.title.endswith(".")

    def test_outranks_only_hazards_that_exist(self, hazard):
        assert set(hazard.over) <= {known.slug for known in all_hazards()}

    def test_file_is_named_after_the_slug(self, hazard):
        assert __import__(f"holdfast.hazards.{hazard.slug.replace('-', '_')}")
