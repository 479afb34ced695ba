"""What a wait in the kernel is for."""

import pytest

from holdfast.supervisor.devices import waits_for_server


@pytest.mark.parametrize("wchan", ["fuse_get_req", "request_wait_answer", "rpc_wait_bit_killable", "wait_for_response"])
def test_a_mount_that_does_not_answer_is_not_excused_by_other_writing_on_this_machine(wchan):
    assert waits_for_server(f"waits in the kernel ({wchan})")


@pytest.mark.parametrize(
    "wchan", ["folio_wait_bit_common", "balance_dirty_pages", "jbd2_log_wait_commit", "io_schedule"]
)
def test_a_slow_disk_of_this_machine_is_given_its_time_while_it_writes(wchan):
    assert not waits_for_server(f"waits in the kernel ({wchan})")
