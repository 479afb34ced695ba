"""Files of every kind are read, and every bad one is refused by name, with advice."""

import contextlib
import errno
import gzip
import json
import os
import shutil
import sys
import tempfile
import zipfile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.core.errors import MachineError, RequestError, install
from holdfast.data import frames
from holdfast.data.badrows import BadRows, describe
from holdfast.data.data_request import DataRequest
from holdfast.data.rawfile import look_at
from holdfast.data.read import open_rows
from tests.unit.data.conftest import csv_text, labelled

ROWS = labelled(12)


def read(path, **given):
    bad = BadRows(1.0)
    source = open_rows(path, DataRequest(path=path, **given))
    return source, list(source.rows(bad)), bad


def pairs(rows):
    return [(row["text"], row["label"]) for _, row in rows]


def json_lines(rows):
    return "".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in rows)


def make_xlsx(path, sheets):
    """The least that is a spreadsheet: cells with their texts in place."""
    main = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    office = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    package = "http://schemas.openxmlformats.org/package/2006/relationships"
    names = list(sheets)
    listed = "".join(f'<sheet name="{name}" sheetId="{at}" r:id="r{at}"/>' for at, name in enumerate(names, 1))
    links = "".join(
        f'<Relationship Id="r{at}" Type="{office}/worksheet" Target="worksheets/sheet{at}.xml"/>'
        for at in range(1, len(names) + 1)
    )
    start = f'<Relationship Id="r1" Type="{office}/officeDocument" Target="xl/workbook.xml"/>'
    with zipfile.ZipFile(path, "w") as book:
        book.writestr("_rels/.rels", f'<Relationships xmlns="{package}">{start}</Relationships>')
        book.writestr(
            "xl/workbook.xml", f'<workbook xmlns="{main}" xmlns:r="{office}"><sheets>{listed}</sheets></workbook>'
        )
        book.writestr("xl/_rels/workbook.xml.rels", f'<Relationships xmlns="{package}">{links}</Relationships>')
        for at, name in enumerate(names, 1):
            rows = "".join(
                f'<row r="{number}">'
                + "".join(
                    f'<c r="{"AB"[place]}{number}" t="inlineStr"><is><t>{cell}</t></is></c>'
                    for place, cell in enumerate(row)
                )
                + "</row>"
                for number, row in enumerate(sheets[name], 1)
            )
            book.writestr(
                f"xl/worksheets/sheet{at}.xml", f'<worksheet xmlns="{main}"><sheetData>{rows}</sheetData></worksheet>'
            )
    return path


FORMATS = {
    "table.csv": csv_text(ROWS),
    "semicolons.csv": csv_text(ROWS, "text;label", ";"),
    "table.tsv": csv_text(ROWS, "text\tlabel", "\t"),
    "lines.jsonl": json_lines(ROWS),
    "array.json": json.dumps([{"text": text, "label": label} for text, label in ROWS], indent=1),
    "wrapped.json": json.dumps({"version": "1", "data": [{"text": text, "label": label} for text, label in ROWS]}),
    "columns.json": json.dumps({"text": [text for text, _ in ROWS], "label": [label for _, label in ROWS]}),
    "pandas.json": json.dumps(
        {name: {str(at): row[place] for at, row in enumerate(ROWS)} for place, name in enumerate(("text", "label"))}
    ),
    "spread.json": "\n".join(json.dumps({"text": text, "label": label}, indent=2) for text, label in ROWS),
    "misnamed.csv": json_lines(ROWS),
    "misnamed.json": csv_text(ROWS),
}


class TestFormats:
    @pytest.mark.parametrize("name", FORMATS)
    @pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzipped"])
    def test_the_same_rows_come_out_of_every_format(self, write, name, packed):
        content = FORMATS[name].encode()
        path = write(name + (".gz" if packed else ""), gzip.compress(content, mtime=0) if packed else content)
        _, rows, bad = read(path)
        assert pairs(rows) == ROWS
        assert not bad.count

    @pytest.mark.parametrize(
        "encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "cp1252", "latin-1"]
    )
    @pytest.mark.parametrize("name", ["table.csv", "lines.jsonl", "array.json"])
    def test_every_common_encoding_is_found(self, write, name, encoding):
        rows = [(f"Café déjà vu {text}", label) for text, label in ROWS]
        made = {
            "table.csv": csv_text(rows),
            "lines.jsonl": "".join(json.dumps({"text": a, "label": b}, ensure_ascii=False) + "\n" for a, b in rows),
            "array.json": json.dumps([{"text": a, "label": b} for a, b in rows], ensure_ascii=False),
        }
        _, found, bad = read(write(name, made[name].encode(encoding)))
        assert pairs(found) == rows
        assert not bad.count

    def test_a_misnamed_file_is_read_with_a_warning(self, write):
        source, _, _ = read(write("rows.csv", json_lines(ROWS)))
        assert [(one.kind, one.values["format"]) for one in source.warnings] == [("misnamed", "JSON lines")]

    @pytest.mark.parametrize("extension", [".zip", ".gz"])
    def test_a_plain_file_named_as_packed_is_reported(self, write, extension):
        source, _, _ = read(write(f"rows.csv{extension}", csv_text(ROWS)))
        (found,) = source.warnings
        assert (found.kind, found.values["extension"], found.values["format"]) == ("misnamed", extension, "CSV")

    def test_quoted_line_breaks_are_kept_and_lines_counted(self, write):
        _, rows, _ = read(write("a.csv", 'text,label\n"one\ntwo",pos\nthree,neg\n'))
        assert rows == [(2, {"text": "one\ntwo", "label": "pos"}), (4, {"text": "three", "label": "neg"})]

    def test_old_mac_line_ends(self, write):
        assert pairs(read(write("a.csv", csv_text(ROWS).replace("\n", "\r")))[1]) == ROWS

    def test_plain_text_is_paragraphs(self, write):
        _, rows, _ = read(write("a.txt", "First line\nstill first.\n\nSecond.\n"))
        assert rows == [(1, {"text": "First line\nstill first."}), (4, {"text": "Second."})]

    def test_json_with_nan_as_python_writes_it(self, write):
        _, rows, bad = read(write("a.jsonl", '{"text": "a b", "label": NaN}\n{"text": "c d", "label": "x"}\n'))
        assert len(rows) == 2
        assert not bad.count

    def test_a_long_array_is_read_in_pieces(self, write):
        many = [{"text": "word " * 50, "label": str(at)} for at in range(9000)]
        _, rows, _ = read(write("a.json", json.dumps(many)))
        assert [row["label"] for _, row in rows] == [str(at) for at in range(9000)]

    def test_an_object_of_columns_may_be_larger_than_any_row(self, write, monkeypatch):
        monkeypatch.setattr("holdfast.data.jsonrows.LINE_CHARACTERS", 1000)
        monkeypatch.setattr("holdfast.data.jsonrows._READ_CHARACTERS", 500)
        columns = {"text": ["word " * 20] * 90, "label": ["x"] * 90}
        assert len(read(write("a.json", json.dumps(columns)))[1]) == 90

    @pytest.mark.parametrize("start", ["ORC", "PAR1", "GGUF", "BZh", "Rar!"])
    def test_a_text_may_begin_with_the_mark_of_a_binary(self, write, start):
        source, _, _ = read(write("a.csv", f"{start} words,pos\nother words,neg\nmore words,pos\nlast,neg\n"))
        assert source.kind == "csv"

    def test_parquet_and_excel(self, tmp_path):
        polars = pytest.importorskip("polars")
        frame = polars.DataFrame({"text": [text for text, _ in ROWS], "label": [label for _, label in ROWS]})
        frame.write_parquet(tmp_path / "a.parquet")
        assert pairs(read(tmp_path / "a.parquet")[1]) == ROWS
        (tmp_path / "b.csv.gz").write_bytes(gzip.compress((tmp_path / "a.parquet").read_bytes()))
        source, rows, _ = read(tmp_path / "b.csv.gz")
        assert pairs(rows) == ROWS
        assert source.warnings[0].values["format"] == "Parquet"

    def test_a_full_disk_for_temporary_files_is_named(self, tmp_path, monkeypatch):
        def refuse(*_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        (tmp_path / "a.parquet.gz").write_bytes(gzip.compress(b"PAR1" + bytes(99) + b"PAR1", mtime=0))
        monkeypatch.setattr(shutil, "copyfileobj", refuse)
        with pytest.raises(MachineError, match=f"a.parquet.gz in {tempfile.gettempdir()}") as refused:
            read(tmp_path / "a.parquet.gz")
        assert refused.value.slug == "disk-full"
        assert " free of " in refused.value.found

    def test_excel_uses_the_first_sheet_with_rows_visibly(self, tmp_path):
        pytest.importorskip("polars")
        pytest.importorskip("fastexcel")
        path = make_xlsx(
            tmp_path / "a.xlsx", {"empty": [], "reviews": [("text", "label"), *ROWS], "other": [("x",), ("y",)]}
        )
        source, rows, _ = read(path)
        assert pairs(rows) == ROWS
        assert source.kind == "excel"
        (found,) = source.warnings
        assert (found.kind, found.values["sheet"], found.values["others"]) == ("unread-sheets", "reviews", ("other",))

    def test_a_damaged_sheet_is_refused(self, tmp_path):
        pytest.importorskip("polars")
        path = make_xlsx(tmp_path / "a.xlsx", {"reviews": [("text", "label"), *ROWS]})
        path.write_bytes(path.read_bytes()[:-200])
        with pytest.raises(RequestError, match=r"a.xlsx .* Excel"):
            read(path)

    def test_a_missing_extra_is_named(self, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "polars", None)
        path = tmp_path / "a.parquet"
        path.write_bytes(b"PAR1" + b"\0" * 100)
        with pytest.raises(RequestError) as caught:
            read(path)
        assert caught.value.action == install("parquet")

    def test_dates_and_numbers_of_a_frame_become_simple(self):
        import datetime
        import decimal

        held = {"a": [datetime.date(2026, 1, 2)], "b": decimal.Decimal("1.5"), "c": b"x"}
        assert frames._simple(held) == {"a": ["2026-01-02"], "b": "1.5", "c": "x"}


class TestBadRows:
    def test_broken_json_line_is_listed_and_others_are_kept(self, write):
        _, rows, bad = read(write("a.jsonl", json_lines(ROWS[:2]) + '{"text": "cut\n' + json_lines(ROWS[2:])))
        assert pairs(rows) == ROWS
        assert (bad.count, bad.listed[0].row) == (1, 3)
        assert bad.listed[0].kind == "not-json"

    def test_ragged_rows_are_listed_with_what_they_hold(self, write):
        _, rows, bad = read(write("a.csv", csv_text(ROWS) + "one, two, three,pos\nlonely\n"))
        assert pairs(rows) == ROWS
        assert [one.row for one in bad.listed] == [14, 15]
        assert [one.kind for one in bad.listed] == ["more-cells", "cells"]
        assert bad.listed[0].value == "'one, two, three,pos'"

    def test_trailing_empty_cells_are_allowed(self, write):
        _, rows, bad = read(write("a.csv", "text,label\none two,pos,,\nthree,neg,\n"))
        assert len(rows) == 2
        assert not bad.count

    def test_a_repeated_header_is_listed(self, write):
        _, rows, bad = read(write("a.csv", csv_text(ROWS) + csv_text(ROWS)))
        assert len(rows) == 24
        assert bad.listed[0].kind == "repeated-header"

    def test_an_unclosed_quote_counts_every_line_it_swallowed(self, write):
        quoted = "".join(f'"{text}",{label}\n' for text, label in ROWS)
        _, rows, bad = read(write("a.csv", "text,label\n" + quoted + '"open,pos\n' + "plain,neg\n" * 5))
        assert len(rows) == 12
        assert bad.count == 6
        assert bad.listed[0].kind == "swallowed-rows"

    def test_a_nul_byte_is_listed(self, write):
        _, rows, bad = read(write("a.csv", csv_text(ROWS).encode() + b"a\0b,pos\n"))
        assert len(rows) == 12
        assert bad.listed[0].kind == "nul-byte"

    def test_one_invalid_byte_keeps_utf8(self, write):
        rows = [("Café naïve", "pos"), ("crème brûlée", "neg")]
        _, found, bad = read(write("a.csv", csv_text(rows).encode() + b"Caf\xe9,pos\n"))
        assert pairs(found) == rows
        assert (bad.listed[0].row, bad.listed[0].kind) == (4, "not-utf8")
        assert "0xE9" in bad.listed[0].reason

    def test_too_many_are_refused_with_examples_and_advice(self, write):
        path = write("a.csv", "")
        bad = BadRows(0.01)
        for row in range(8):
            bad.add(path, row, "nul-byte", column="text")
        bad.refuse_many(800)
        with pytest.raises(RequestError, match=r"8 of 100 .*8\.0%.* 1\.0%") as caught:
            bad.refuse_many(92)
        assert caught.value.found.splitlines()[0] == describe(bad.listed[0])
        assert len(caught.value.found.splitlines()) == 6
        assert (caught.value.action.setting, caught.value.action.value) == ("max_bad_rows", 0.09)


class TestDoubts:
    def test_a_quote_that_swallowed_rows_is_reported(self, write):
        lines = csv_text(labelled(60)).splitlines(keepends=True)
        lines[20], lines[30] = '"it opens here,neg\n', 'and closes here",pos\n'
        _, rows, bad = read(write("a.csv", "".join(lines)))
        assert len(rows) == 50
        assert not bad.count
        assert [(one.kind, one.values) for one in bad.warnings()] == [
            ("swallowed-rows", {"file": "a.csv", "row": 21, "end": 31, "lines": 9})
        ]

    def test_an_open_quote_is_reported_where_quotes_do_not_group(self, write):
        lines = csv_text(ROWS).replace('"', "").splitlines(keepends=True)
        lines[5], lines[6], lines[7] = '"it opens,neg\n', 'a 12" pipe,pos\n', '"both" here,pos\n'
        _, rows, bad = read(write("a.csv", "".join(lines)))
        assert len(rows) == len(ROWS)
        assert [(one.kind, one.values) for one in bad.warnings()] == [
            ("open-quote", {"file": "a.csv", "row": 6, "found": "'\"it opens'"})
        ]

    @pytest.mark.parametrize("text", ["one\ntwo\nthree\nfour\nfive", "a, b, c\nd, e\nf\ng, h, i\nj\nk", "a,b\nc,d"])
    def test_texts_of_several_lines_are_left_alone(self, write, text):
        _, _, bad = read(write("a.csv", f'text,label\n"{text}",pos\nmore,neg\n'))
        assert not bad.warnings()


class TestRefusals:
    @pytest.mark.parametrize("name", ["train.py", "model.ipynb", "run.toml", "page.html"])
    def test_code_is_not_a_dataset(self, write, name):
        with pytest.raises(RequestError, match=name):
            read(write(name, "import torch\n\nprint(1, 2)\nprint(3, 4)\n"))

    def test_text_named_like_a_binary_format_is_refused(self, write):
        with pytest.raises(RequestError, match=r"rows\.parquet") as caught:
            read(write("rows.parquet", "hello there\nhow are you\n"))
        assert "hello there" in caught.value.found

    def test_a_git_lfs_pointer_is_not_data(self, write):
        with pytest.raises(RequestError, match="Git LFS"):
            read(write("rows.csv", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12\n"))

    @pytest.mark.parametrize(
        ("name", "content", "what"),
        [
            ("empty.csv", b"", "is empty"),
            ("picture.csv", b"\x89PNG\r\n\x1a\n" + bytes(range(256)), "PNG picture"),
            ("model.bin", b"\x80\x04\x95" + b"\0" * 50, "a pickle"),
            ("noise.csv", bytes(range(256)) * 20, "binary data"),
            ("noise.csv.gz", bytes(range(256)) * 20, "not gzip"),
            ("holes.csv", b"text,label\ngood,1\n" + b"a\0b\0c\0,1\n" * 99, "NUL bytes"),
            ("holes.csv.gz", gzip.compress(b"text,label\n" + b"a\0b\0c\0,1\n" * 99, mtime=0), "NUL bytes"),
            ("zeros.csv.gz", b"\0" * 5000, "NUL bytes"),
            ("archive.zip", b"PK\x03\x04" + b"\0" * 26, "ZIP archive"),
            ("broken.json", b'[{"text": "a"}, {"text" "b"}]', "line 1, column 25:"),
            ("cut.json", b'[\n{"text": "a"},\n{"text": "b', "line 3, column 10:"),
            ("more.json", b'[{"text": "a"}] x', "unexpected"),
            ("uneven.json", b'{"text": ["a", "b"], "label": ["x"]}', "different lengths"),
            ("deep.json", b'{"a":' * 100_000, "not JSON"),
            ("cut.csv.gz", gzip.compress(os.urandom(4000).hex().encode())[:-40], "is truncated"),
            ("bad.csv.gz", b"\x1f\x8b\x08\x00" + b"\xff" * 60, "is damaged"),
            ("cyrillic.csv", csv_text([("хороший фильм", "да")] * 9).encode("cp1251"), "cyrillic.csv"),
        ],
    )
    def test_other_files_are_refused_by_name(self, write, name, content, what):
        with pytest.raises(RequestError) as caught:
            read(write(name, content))
        assert what in caught.value.what

    def test_a_missing_file_gets_a_guess(self, write, tmp_path):
        write("reviews.csv", "text,label\n")
        with pytest.raises(RequestError, match=r"revews\.csv") as caught:
            look_at(tmp_path / "revews.csv")
        assert "reviews.csv" in caught.value.try_next[0]

    def test_a_pipe_is_not_waited_on(self, tmp_path):
        os.mkfifo(tmp_path / "pipe.csv")
        with pytest.raises(RequestError, match=r"pipe\.csv"):
            look_at(tmp_path / "pipe.csv")

    def test_no_permission(self, write, monkeypatch):
        path = write("a.csv", "text,label\n")

        def refuse(*args, **kwargs):
            raise PermissionError(13, "Permission denied", str(path))

        monkeypatch.setattr(type(path), "open", refuse)
        with pytest.raises(RequestError) as caught:
            look_at(path)
        assert caught.value.action.command == f"chmod u+r {path}"

    def test_an_unknown_encoding(self, write):
        with pytest.raises(RequestError, match="klingon") as caught:
            read(write("a.csv", "text,label\n"), encoding="klingon")
        assert caught.value.setting == "encoding"

    def test_a_line_without_end(self, write, monkeypatch):
        monkeypatch.setattr("holdfast.data.rawfile.LINE_CHARACTERS", 1000)
        with pytest.raises(RequestError, match=r"line 2 .* 1,000"):
            read(write("a.csv", "text,label\n" + "x" * 5000))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    content=st.one_of(
        st.binary(max_size=400),
        st.text(max_size=200).map(lambda text: text.encode("utf-16")),
        st.text(alphabet='{}[]",:\\ntruefalse0129.eE \n\t;|a', max_size=200).map(str.encode),
        st.binary(max_size=100).map(gzip.compress),
    ),
    name=st.sampled_from(["a.csv", "a.tsv", "a.json", "a.jsonl", "a.txt", "a.csv.gz", "a.xlsx", "a"]),
)
def test_arbitrary_bytes_are_read_or_refused(tmp_path, content, name):
    path = tmp_path / name
    path.write_bytes(content)
    with contextlib.suppress(RequestError):
        read(path)
