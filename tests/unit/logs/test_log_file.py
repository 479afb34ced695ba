"""Logs of any size and any bytes. The limits are made small here, so that the tests are quick."""

import gzip
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.evidence import Evidence
from holdfast.core.observations import ExitStatus
from holdfast.logs import log_file
from holdfast.logs.log_file import read_log_file, read_output_file

TROUBLE = b'Traceback (most recent call last):\n  File "a.py", line 3, in f\n    x()\nRuntimeError: in the middle\n'
PIECES_OF_REPORTS = """
  File "|", line 3, in f|{"imageOffset":1,"imageIndex":|2}|"frames":[|"usedImages":[{"base":7}]|"asi":{"a":[1,"x"]}
frame #0: 0x1 a`b|#0 0x1 in f (|│ /a|│ b.py:1 in c|@ 0x1 |1 x (in y)| |RuntimeError: |exit code |1/0 [00:00<|100%|│
>>> torch.__version__|0x1 - 0x2 lib
"""
PIECES = [*PIECES_OF_REPORTS.replace("\n", "|").split("|"), "\n", "\r", "|", "9" * 30, "0x" + "f" * 40]


@pytest.fixture
def small(monkeypatch):
    limits = {
        "_WHOLE_BYTES": 4000,
        "_HEAD_BYTES": 1000,
        "_MIDDLE_BYTES": 8000,
        "_TAIL_BYTES": 1200,
        "_BEFORE_BYTES": 200,
        "_AFTER_BYTES": 400,
        "_CHUNK_BYTES": 3000,
    }
    for name, value in limits.items():
        monkeypatch.setattr(log_file, name, value)


def read(log: bytes) -> Evidence:
    return read_log_file(io.BytesIO(log))


def calm(count: int) -> bytes:
    return b"".join(b"step %d loss %d\n" % (step, step * step) for step in range(count))


@pytest.mark.usefixtures("small")
class TestBigLogs:
    def test_errors_in_the_middle_keep_their_line_numbers(self):
        log = calm(5000) + TROUBLE + calm(5000) + b"OSError: at the end\n"
        found = {passage.text: passage.line for passage in read(log).errors}
        assert found == {"RuntimeError: in the middle": 5004, "OSError: at the end": 10005}

    def test_kept_lines_keep_their_order_and_are_bounded(self):
        log = calm(2000) + TROUBLE + calm(3000) + TROUBLE.replace(b"Runtime", b"Value") + calm(2000)
        lines = log.decode().split("\n")
        kept = list(read(log).log)
        assert all(passage.text in lines[passage.line - 1] for passage in kept)
        assert sum(len(passage.text) for passage in kept) < 12_000
        assert kept[0].text == lines[0]
        assert kept[-2].text == lines[-2]

    def test_similar_lines_are_kept_only_a_few_times(self):
        log = b"".join(b"step %d: Error count %d\n" % (step, step) for step in range(20_000)) + calm(300)
        assert len(list(read(log).log)) < 600

    def test_many_small_errors_do_not_hide_the_traceback(self):
        names = ("".join(chr(97 + (step * prime) % 26) for prime in (3, 5, 7, 11, 17)) for step in range(30_000))
        noise = [f"file {name}: error while reading\n".encode() for name in names]
        log = b"".join(noise[:15_000]) + TROUBLE + b"".join(noise[15_000:])
        assert "RuntimeError: in the middle" in read(log).errors.joined

    def test_one_line_without_an_end(self):
        log = b"x" * 50_000 + b" RuntimeError: somewhere " + b"y" * 50_000
        evidence = read(log)
        assert "RuntimeError: somewhere" in evidence.log.joined
        assert {passage.line for passage in evidence.log} == {1}

    def test_a_line_redrawn_without_end_keeps_an_error_in_it(self):
        bars = b"\r".join(b"%3d%%|###| %d/90000 [00:01<00:02]" % (step // 900, step) for step in range(9000))
        evidence = read(bars + b"\rRuntimeError: boom\r" + bars)
        assert evidence.errors.joined == "RuntimeError: boom"
        assert evidence.progress[-1].done == 8999

    def test_slow_pipe_is_read_completely(self):
        log = calm(5000) + TROUBLE + calm(5000)
        assert read_log_file(Pipe(log)).errors.joined == read(log).errors.joined == "RuntimeError: in the middle"

    def test_gzip_whole_and_cut_off(self):
        packed = gzip.compress(calm(5000) + TROUBLE) + gzip.compress(calm(5000) + b"OSError: second member\n")
        assert read(packed).errors.joined == "RuntimeError: in the middle\nOSError: second member"
        assert "step 0 loss 0" in read(packed[: len(packed) // 3]).log.joined

    @given(st.binary(max_size=9000))
    @settings(max_examples=60, deadline=None)
    def test_any_bytes_give_evidence(self, log):
        assert isinstance(read(log + TROUBLE + log), Evidence)

    @given(st.lists(st.sampled_from([b"\n", b"\r", b"Error: x\n", b"Traceback", b"a" * 700, calm(30), b"\x00\xff\n"])))
    @settings(max_examples=80, deadline=None)
    def test_line_numbers_are_true_whatever_the_log_is_made_of(self, parts):
        log = b"".join(parts)
        lines = [line.replace("\x00", "") for line in log.decode("cp1252").split("\n")]
        for passage in read(log).log:
            assert passage.text.strip() in lines[passage.line - 1]


class TestEncodings:
    @pytest.mark.parametrize(
        "encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "cp1252", "latin-1"]
    )
    def test_every_usual_encoding_is_read(self, encoding):
        text = "Start\nOSError: Das angegebene Modul wurde nicht gefunden: für\n"
        assert read(text.encode(encoding)).errors.joined.endswith("gefunden: für")

    def test_non_text_bytes_are_ignored(self):
        assert read(b"\xff\xfe\x00\x00\x80RuntimeError").stacks == ()
        assert read(b"RuntimeError: \x00bo\xffom").errors.joined == "RuntimeError: boÿom"

    def test_an_empty_log_is_empty_evidence(self):
        evidence = read(b"")
        assert not evidence.errors
        assert evidence.log.joined == ""

    def test_a_path_is_read_as_well_as_a_stream(self, tmp_path):
        (tmp_path / "run.log").write_bytes(TROUBLE)
        assert read_log_file(tmp_path / "run.log", "1").exits == (ExitStatus(code=1),)

    @given(st.binary(max_size=400) | st.text(max_size=400).map(lambda text: text.encode("utf-8", "replace")))
    @settings(max_examples=150, deadline=None)
    def test_any_small_file_gives_evidence(self, log):
        assert isinstance(read(log), Evidence)

    @given(st.lists(st.sampled_from(PIECES)))
    @settings(max_examples=200, deadline=None)
    def test_pieces_of_reports_in_any_order_give_evidence(self, parts):
        assert isinstance(read("".join(parts).encode()), Evidence)


class Pipe(io.RawIOBase):
    """A stream that cannot seek and gives a few bytes at a time."""

    def __init__(self, content: bytes):
        self._content = io.BytesIO(content)

    def read(self, size: int = -1) -> bytes:
        return self._content.read(min(size, 700))


@pytest.mark.parametrize("start", [b"\xff\xfe", b"\xfe\xff", b"\x1f\x8b\x08", b"\xff\xfe\x00"])
def test_output_is_read_as_written_whatever_its_first_bytes(tmp_path, start):
    output = tmp_path / "output.log"
    output.write_bytes(start + b"\n" + TROUBLE)
    assert [passage.text for passage in read_output_file(output).errors] == ["RuntimeError: in the middle"]


def test_byte_order_mark_before_plain_text_is_not_believed():
    assert [passage.text for passage in read(b"\xff\xfe\n" + TROUBLE).errors] == ["RuntimeError: in the middle"]
