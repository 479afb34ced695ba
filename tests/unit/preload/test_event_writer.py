"""What the preload writes is what the structs of `holdfast.core.events` read."""

import ast
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from holdfast_preload import event_writer
from holdfast_preload.loss_check import numbers_of

import holdfast
from holdfast.core.event_log import find_last, read_events
from holdfast.core.events import ChangeApplied, ChangeRefused, Event, NotObserved, UnknownEvent, all_events

PRELOAD = Path(holdfast.__file__).parent / "preload" / "holdfast_preload"
STRUCTS = {kind.event_name(): kind for kind in all_events()}
OWN_FIELDS = {"time", "pid"}  # added by the writer


def written_events() -> Iterator[tuple[str, str, frozenset[str]]]:
    """File, event name and fields of every call that writes an event."""
    for path in sorted(PRELOAD.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not node.args or not isinstance(node.args[0], ast.Constant):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in ("write", "write_once") and isinstance(node.args[0].value, str):
                yield path.name, node.args[0].value, frozenset(word.arg for word in node.keywords if word.arg)


WRITTEN = sorted(set(written_events()), key=str)


def test_calls_are_found():
    assert len({name for _, name, _ in WRITTEN}) > 15


@pytest.mark.parametrize(("file", "name", "fields"), WRITTEN)
def test_every_event_has_a_struct_with_its_fields(file, name, fields):
    known = {field.encode_name: field for field in msgspec.structs.fields(STRUCTS[name])}
    assert fields <= known.keys()
    if name != "program_ended":  # its fields are in a dict
        assert {field for field, about in known.items() if about.required} <= fields | OWN_FIELDS


def test_events_are_read_back_as_structs(attempt):
    event_writer.applied("device", "cpu", "MPS hidden")
    event_writer.refused("micro_batch", 2, "because")
    event_writer.write_once("not_observed", module="some.library", name="gone")
    event_writer.write_once("not_observed", module="some.library", name="gone")
    found: list[Event] = list(read_events(attempt / "events.jsonl"))
    assert [type(event) for event in found] == [ChangeApplied, ChangeRefused, NotObserved]
    assert all(event.pid for event in found)
    assert not any(isinstance(event, UnknownEvent) for event in found)
    assert find_last(attempt / "events.jsonl", ChangeApplied) == found[0]


def test_metrics_are_numbers_that_json_has():
    assert numbers_of({"loss": float("nan"), "accuracy": 0.5, "name": "x", "steps": 3}) == {
        "loss": None,
        "accuracy": 0.5,
        "steps": 3,
    }
