from holdfast.core.errors import (
    Advice,
    MachineError,
    Problem,
    RequestError,
    advice_text,
    error_record,
    install,
    invalid_settings,
    leave_out,
    printed_error,
    read_error,
    render_error,
    set_to,
    type_command,
)


def test_error_survives_a_round_trip_through_its_record() -> None:
    advice: list[Advice] = ["c", set_to("lr", 0.1, note="d")]
    before = MachineError("a", found="b", try_next=advice, slug="e", setting="lr", problems=[Problem("f", "g", "h")])
    after = read_error(error_record(before))
    assert type(after) is MachineError
    assert error_record(after) == error_record(before)
    assert after.try_next == before.try_next


def test_advice_is_written_as_options_and_commands() -> None:
    advice = [
        set_to("label_column", "my label"),
        set_to("max_bad_rows", 0.2),
        set_to("lora", True),
        set_to("lora", False),
        set_to("out", placeholder="FOLDER", note="on another disk"),
        leave_out("nodes_wait"),
        type_command("git lfs pull"),
        install("train"),
        set_to("from_run", "r1"),
    ]
    assert [advice_text(one) for one in advice] == [
        "--label-column 'my label'",
        "--max-bad-rows 0.2",
        "--lora",
        "--no-lora",
        "--out FOLDER  (on another disk)",
        "leave out --nodes-wait",
        "git lfs pull",
        "pip install 'holdfast[train]'",
        "--from r1",
    ]


def test_printed_error_has_texts_and_values() -> None:
    printed = printed_error(RequestError("a", try_next=["b", set_to("device", "cpu")], setting="device"))
    assert (printed["try_next"], printed["setting"]) == (["b", "--device cpu"], "device")
    assert [action["value"] for action in printed["actions"]] == ["cpu"]  # type: ignore[attr-defined]


def test_every_line_of_what_was_found_is_indented() -> None:
    error = invalid_settings([Problem("lr", "large", "5"), Problem("data", "missing")])
    assert error.setting == "lr"
    assert render_error(error).splitlines()[1:] == ["  found  --lr 5: large", "         DATA: missing"]


def test_action_is_the_first_one_a_program_can_offer() -> None:
    assert RequestError("a", try_next=["b", leave_out("lora")]).action == leave_out("lora")
    assert RequestError("a", try_next=["b"]).action is None
