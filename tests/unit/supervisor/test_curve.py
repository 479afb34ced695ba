"""How memory went, in one line."""

import json

from holdfast.supervisor.curve import last_resident_bytes, resident_lines


def write(folder, sizes):
    rows = [{"event": "sample", "step": 10 * at, "resident_bytes": size} for at, size in enumerate(sizes)]
    (folder / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"half a li')


def test_steady_run_reports_its_memory(tmp_path):
    write(tmp_path, [2_000_000_000] * 10)
    assert resident_lines(tmp_path) == ["resident 2.0 GB at the last look, 2.0 GB at most"]


def test_memory_leak_is_reported_with_its_growth(tmp_path):
    write(tmp_path, [1_000_000_000 * (1 + at) for at in range(12)])
    assert "growing by 100.0 MB a step since step 60" in resident_lines(tmp_path)[0]


def test_no_samples_give_no_line(tmp_path):
    assert resident_lines(tmp_path) == []
    assert last_resident_bytes(tmp_path) is None
