"""The small values everything else is made of."""

import json
from pathlib import Path

import pytest

from holdfast.core.artifacts import to_plain, write_artifact
from holdfast.core.errors import FallbacksFailed, MachineError, RequestError, render_error
from holdfast.core.event_log import EventLog, read_events
from holdfast.core.events import StepDone
from holdfast.core.facts import MachineFacts, release
from holdfast.core.heartbeat import BeatWriter, read_beat
from holdfast.core.plan import Remedy
from holdfast.core.text import closest, human_bytes, human_seconds, plural


def test_an_error_reads_state_first_and_advice_after():
    error = RequestError("the batch is empty", found="0 rows", try_next=("holdfast survey DATA",), slug="dataset-parse")
    assert render_error(error).splitlines() == [
        "error: the batch is empty   [dataset-parse]",
        "  found  0 rows",
        "  try    holdfast survey DATA",
        "  more   holdfast explain dataset-parse",
    ]


def test_exit_codes_say_who_can_act():
    assert [kind("x").exit_code for kind in (RequestError, MachineError, FallbacksFailed)] == [2, 3, 4]


def test_an_artifact_is_whole_and_leaves_no_draft(tmp_path):
    write_artifact(tmp_path, "plan.json", {"folder": Path("a"), "remedy": Remedy("t", change={"threads": 1})})
    found = json.loads((tmp_path / "plan.json").read_text())
    assert found["remedy"]["change"] == {"threads": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


def test_a_failed_write_keeps_the_old_artifact(tmp_path):
    write_artifact(tmp_path, "plan.json", {"a": 1})
    with pytest.raises(TypeError):
        write_artifact(tmp_path, "plan.json", {"a": object()})
    assert json.loads((tmp_path / "plan.json").read_text()) == {"a": 1}


def test_plain_values_go_into_tuples_and_mappings():
    assert to_plain({"x": (1, {"y": {2}})}) == {"x": [1, {"y": [2]}]}


@pytest.mark.parametrize(
    ("version", "numbers"), [("2.8.0+cpu", (2, 8)), ("2.13.0rc1", (2, 13)), ("0.2.1", (0, 2, 1)), ("", ()), ("x", ())]
)
def test_versions_compare_by_their_release_numbers(version, numbers):
    assert release(version) == numbers


def test_facts_have_installed_versions():
    facts = MachineFacts(distributions={"torch": "2.8.0"})
    assert facts.has_below("torch", "2.9")
    assert facts.has_at_least("torch", "2.8")
    assert not facts.has_below("faiss-cpu", "9")


@pytest.mark.parametrize("version", ["", "unknown"])
def test_an_unknown_version_is_neither_old_nor_new(version):
    facts = MachineFacts(distributions={"torch": version})
    assert not facts.has_below("torch", "2.3")
    assert not facts.has_at_least("torch", "2.3")


def test_numbers_and_names_are_written_for_people():
    assert [human_bytes(n) for n in (512, 64_000_000, 2.5e12)] == ["512 bytes", "64.0 MB", "2.5 TB"]
    assert (plural(1, "note"), plural(3, "note")) == ("1 note", "3 notes")
    assert closest("docter", ["doctor", "explain"]) == "doctor"
    assert closest("zzz", ["doctor"]) is None


def test_events_of_killed_writer_end_with_a_complete_one(tmp_path):
    path = tmp_path / "events.jsonl"
    events = EventLog(path)
    events.write(StepDone(step=1))
    events.write(StepDone(step=2))
    with path.open("ab") as file:
        file.write(b'{"event":"st')
    assert [event.step for event in read_events(path)] == [1, 2]
    EventLog(path).write(StepDone(step=3))
    assert [event.step for event in read_events(path)] == [1, 2, 3]


def test_another_process_reads_the_written_heartbeat(tmp_path):
    path = tmp_path / "beat"
    assert read_beat(path) is None
    writer = BeatWriter(path)
    assert read_beat(path) is None
    writer.enter("step", 7, 90)
    writer.beat(8)
    beat = read_beat(path)
    assert (beat.phase, beat.step, beat.steps, beat.count) == ("step", 8, 90, 2)


@pytest.mark.parametrize(
    ("seconds", "words"), [(4.24, "4.2 s"), (59, "59 s"), (190, "3 min 10 s"), (7500, "2 h 5 min"), (90_000, "1 d 1 h")]
)
def test_lengths_of_time_read_well(seconds, words):
    assert human_seconds(seconds) == words
