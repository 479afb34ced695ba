"""What a wait in the kernel is for."""

import pytest

from holdfast.supervisor.devices import waits_for_server


@pytest.mark.parametrize("wchan", ["fuse_get_req", "request_wait_answer", "rpc_wait_bit_killable", "wait_for_response"])
def test_other_writes_do_not_excuse_a_dead_mount(wchan):
    assert waits_for_server(f"waits in the kernel ({wchan})")


@pytest.mark.parametrize(
    "wchan", ["folio_wait_bit_common", "balance_dirty_pages", "jbd2_log_wait_commit", "io_schedule"]
)
def test_slow_writing_disk_is_not_a_hang(wchan):
    assert not waits_for_server(f"waits in the kernel ({wchan})")
