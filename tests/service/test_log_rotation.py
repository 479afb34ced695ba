"""Logs of processes that run for months."""

import os

from holdfast.service.local_service import open_log, rotate_log


def test_full_log_is_rotated_while_in_use(tmp_path):
    path = tmp_path / "web.log"
    log = open_log(path)
    for round_number in range(4):
        os.write(log, f"round {round_number}\n".encode() * 20)
        assert rotate_log(path, most_bytes=100)
        assert path.stat().st_size == 0
    os.write(log, b"and on\n")
    os.close(log)
    assert not rotate_log(path, most_bytes=100)
    assert path.read_text() == "and on\n"
    assert {file.name: file.read_text().split("\n")[0] for file in tmp_path.iterdir()} == {
        "web.log": "and on",
        "web.log.1": "round 3",
        "web.log.2": "round 2",
    }
    assert all(file.stat().st_mode & 0o077 == 0 for file in tmp_path.iterdir())


def test_missing_log_does_not_stop_the_service(tmp_path):
    assert not rotate_log(tmp_path / "none.log")
    path = tmp_path / "web.log"
    path.write_text("x" * 200)
    (tmp_path / "web.log.1").mkdir()
    (tmp_path / "web.log.2").touch()
    assert not rotate_log(path, most_bytes=100)
    assert path.stat().st_size == 200
