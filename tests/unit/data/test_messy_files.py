"""Files as people have them: each is read as its owner would hope, or refused with the reason."""

import gzip
import json

import pytest
from click.testing import CliRunner

from holdfast.cli.survey import survey as survey_command
from holdfast.core.errors import RequestError
from tests.unit.data.conftest import csv_text, labelled, sentences
from tests.unit.data.test_read import make_xlsx

ROWS = labelled(90)
NAN = float("nan")


def lines(rows: list) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def objects(rows=ROWS) -> list:
    return [{"text": text, "label": label} for text, label in rows]


def quoted(rows=ROWS, header: str = "text,label") -> str:
    return header + "\n" + "".join(f'"{text}","{label}"\n' for text, label in rows)


def with_column(name: str, value) -> str:
    rows = [(value(at), text, label) for at, (text, label) in enumerate(ROWS)]
    return csv_text(rows, f"{name},text,label")


def chat(text: str) -> dict:
    return {"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": text.upper()}]}


PLAIN = csv_text(ROWS)
POSNEG = {"neg": 45, "pos": 45}
# name -> (file, content, expected facts)
READ = {
    # Encodings
    "utf-8 with a byte order mark": ("a.csv", "\ufeff".encode() + PLAIN.encode(), {}),
    "utf-16 from Excel": ("a.csv", PLAIN.replace(",", "\t").encode("utf-16"), {}),
    "utf-16 without a mark": ("a.csv", PLAIN.encode("utf-16-le"), {}),
    "utf-32": ("a.csv", PLAIN.encode("utf-32"), {}),
    "windows-1252": ("a.csv", PLAIN.replace("film", "caf\u00e9 \u201cfilm\u201d").encode("cp1252"), {}),
    "one byte that is not utf-8": (
        "a.csv",
        (csv_text(labelled(150)) + "caf\u00e9,pos\n").encode() + b"caf\xe9,pos\n",
        {"rows": 151, "bad": 1, "labels": {"neg": 75, "pos": 76}},
    ),
    "gzipped and named csv": ("a.csv", gzip.compress(PLAIN.encode(), mtime=0), {}),
    "old Mac line ends": ("a.csv", PLAIN.replace("\n", "\r").encode(), {}),
    "mixed line ends": ("a.csv", PLAIN.replace("\n", "\r\n", 40).encode(), {}),
    # Missing values
    "empty labels": ("a.csv", PLAIN + "no label,\n" * 9, {"missing": 9}),
    "empty texts": ("a.csv", PLAIN + ",pos\n" * 9, {"missing": 9}),
    "8% missing labels": ("a.csv", PLAIN + "no label,NaN\n" * 8, {"missing": 8}),
    "null and None": ("a.csv", PLAIN + "no label,null\n" * 4 + "None,pos\n" * 4, {"missing": 8}),
    "N/A among labels": ("a.csv", PLAIN + "no label,N/A\n" * 3, {"missing": 3}),
    "spaces only": ("a.csv", PLAIN + "   ,pos\n" * 3 + "no label,   \n", {"missing": 4}),
    "NaN in JSON lines": ("a.jsonl", lines([*objects(), *[{"text": NAN, "label": "pos"}] * 5]), {"missing": 5}),
    "NaN in a JSON array": ("a.json", json.dumps([*objects(), {"text": "no label", "label": NAN}]), {"missing": 1}),
    "null in JSON": ("a.json", json.dumps([*objects(), *[{"text": None, "label": "pos"}] * 5]), {"missing": 5}),
    "missing keys": ("a.jsonl", lines([*objects(), *[{"label": "pos"}, {"text": "no label"}] * 3]), {"missing": 6}),
    "numbers with N/A": (
        "a.csv",
        csv_text([(text, at % 2) for at, (text, _) in enumerate(ROWS)]) + "x y,N/A\n" * 5,
        {"missing": 5, "labels": {"0": 45, "1": 45}},
    ),
    # Blank and repeated lines
    "one trailing blank line": ("a.csv", PLAIN + "\n", {}),
    "many blank lines": ("a.csv", PLAIN.replace("\n", "\n\n") + "\n\n \n", {}),
    "trailing commas only": ("a.csv", PLAIN + ",\n,\n", {}),
    "no newline at the end": ("a.csv", PLAIN.rstrip("\n"), {}),
    "blank lines between JSON lines": ("a.jsonl", lines(objects()).replace("\n", "\n\n"), {}),
    "a repeated header": (
        "a.csv",
        csv_text(labelled(150)) + "text,label\n",
        {"rows": 150, "bad": 1, "labels": {"neg": 75, "pos": 75}},
    ),
    "empty columns at the end": ("a.csv", PLAIN.replace("\n", ",,\n"), {}),
    "a space after each comma": ("a.csv", PLAIN.replace(",", ", "), {}),
    # Delimiters and quotes
    "semicolons": ("a.csv", PLAIN.replace(",", ";"), {}),
    "tabs in a file named csv": ("a.csv", PLAIN.replace(",", "\t"), {}),
    "pipes": ("a.txt", PLAIN.replace(",", "|"), {}),
    "sep= of Excel": ("a.csv", "sep=;\r\n" + PLAIN.replace(",", ";"), {}),
    "quoted newlines": ("a.csv", quoted([(text.replace(" ", "\n", 2), label) for text, label in ROWS]), {}),
    "quoted commas and doubled quotes": ("a.csv", quoted([(f'{text}, ""really""', label) for text, label in ROWS]), {}),
    "apostrophes": ("a.csv", csv_text([(f"it's {text}", label) for text, label in ROWS]), {}),
    "an unquoted comma in one text": (
        "a.csv",
        csv_text(labelled(150)) + "one, two,pos\n",
        {"rows": 150, "bad": 1, "labels": {"neg": 75, "pos": 75}},
    ),
    "a lone quote in a text": ("a.csv", csv_text([(f'5" {text}', label) for text, label in ROWS]), {}),
    # Columns
    "names with spaces and capitals": ("a.csv", csv_text(ROWS, " Review Text , Label "), {}),
    "quoted names": ("a.csv", quoted(header='"text","label"'), {}),
    "an index column without a name": ("a.csv", with_column("", lambda at: at), {}),
    "an index column of pandas": ("a.csv", with_column("Unnamed: 0", lambda at: at), {}),
    "an id column": ("a.csv", with_column("id", lambda at: f"row-{at:05}"), {}),
    "a column of dates": ("a.csv", with_column("created_at", lambda at: f"2024-01-{at % 28 + 1:02}"), {}),
    "a column of URLs": ("a.csv", with_column("url", lambda at: f"https://example.org/{at}/a-b-c"), {}),
    "no header": ("a.csv", csv_text(ROWS, ""), {}),
    "labels first": ("a.tsv", "".join(f"{label}\t{text}\n" for text, label in ROWS), {}),
    "an unknown name for texts": ("a.csv", csv_text(ROWS, "verbatim,label"), {}),
    "extra keys in some rows": (
        "a.jsonl",
        lines([row | ({"note": at} if at % 7 == 0 else {}) for at, row in enumerate(objects())]),
        {},
    ),
    # Labels
    "labels as floats": (
        "a.csv",
        csv_text([(text, f"{at % 2}.0") for at, (text, _) in enumerate(ROWS)]),
        {"labels": {"0": 45, "1": 45}},
    ),
    "numbers and texts as labels": (
        "a.jsonl",
        lines([{"text": text, "label": at % 2 if at % 4 < 2 else str(at % 2)} for at, (text, _) in enumerate(ROWS)]),
        {"labels": {"0": 45, "1": 45}},
    ),
    "true and false": (
        "a.jsonl",
        lines([{"text": text, "label": label == "pos"} for text, label in ROWS]),
        {"labels": {"false": 45, "true": 45}},
    ),
    "labels in lists of one": ("a.jsonl", lines([{"text": text, "label": [label]} for text, label in ROWS]), {}),
    "lists as Python writes them": (
        "a.csv",
        quoted([(text, f"['{label}', 'x']") for text, label in ROWS], "text,labels"),
        {"labels": {"neg": 45, "pos": 45, "x": 90}},
    ),
    "labels with spaces around": ("a.csv", csv_text([(text, f" {label}  ") for text, label in ROWS]), {}),
    "a separate column for each label": (
        "a.csv",
        csv_text([(text, int(label == "pos"), int(label == "neg")) for text, label in ROWS], "text,pos,neg"),
        {"labels": POSNEG},
    ),
    "a class with one row": ("a.csv", PLAIN + "rare one,other\n", {"rows": 91, "labels": {**POSNEG, "other": 1}}),
    # JSON
    "an object with data": ("a.json", json.dumps({"data": objects(), "version": 1}), {}),
    "an object of columns": (
        "a.json",
        json.dumps({"text": [text for text, _ in ROWS], "label": [label for _, label in ROWS]}),
        {},
    ),
    "columns by row number": (
        "a.json",
        json.dumps(
            {
                "text": {str(at): text for at, (text, _) in enumerate(ROWS)},
                "label": {str(at): label for at, (_, label) in enumerate(ROWS)},
            }
        ),
        {},
    ),
    "an indented array": ("a.json", json.dumps(objects(), indent=2), {}),
    "objects one after another": ("a.json", "\n".join(json.dumps(row, indent=1) for row in objects()), {}),
    "an array named jsonl": ("a.jsonl", json.dumps(objects()), {}),
    "JSON lines named json": ("a.json", lines(objects()), {}),
    "trailing commas in JSON lines": ("a.jsonl", lines(objects()).replace("}\n", "},\n"), {}),
    "one broken line": (
        "a.jsonl",
        lines(objects(labelled(150))) + '{"text": "cut\n',
        {"rows": 150, "bad": 1, "labels": {"neg": 75, "pos": 75}},
    ),
    "unicode escapes": (
        "a.jsonl",
        "".join(
            json.dumps({"text": f"\u00e9t\u00e9 \U0001f389 {text}", "label": label}) + "\n" for text, label in ROWS
        ),
        {},
    ),
    # Texts
    "HTML in texts": (
        "a.csv",
        quoted([(f"<p class='x'>{text}<br/>&amp; more</p>", label) for text, label in ROWS]),
        {},
    ),
    "emoji and Chinese": (
        "a.csv",
        csv_text([(f"\U0001f600 \u8fd9\u90e8\u7535\u5f71 {text}", label) for text, label in ROWS]),
        {},
    ),
    "one huge text": ("a.csv", PLAIN + "word " * 400_000 + ",pos\n", {"rows": 91, "labels": {"neg": 45, "pos": 46}}),
    "long texts with line breaks in JSON": (
        "a.jsonl",
        lines([{"text": f"{text}\n\n\t{text}\r\n", "label": label} for text, label in ROWS]),
        {},
    ),
    "three rows": (
        "a.csv",
        csv_text([("a good film", "pos"), ("a bad film", "neg"), ("a fine film", "pos")]),
        {"rows": 3, "labels": {"neg": 1, "pos": 2}},
    ),
    # Instructions and conversations
    "answers missing in instructions": (
        "a.jsonl",
        lines([{"instruction": text, "input": "", "output": label} for text, label in [*ROWS, *[("say it", "")] * 5]]),
        {"task": "causal", "missing": 5},
    ),
    "conversations of ShareGPT": (
        "a.json",
        json.dumps(
            [
                {"id": at, "conversations": [{"from": "human", "value": text}, {"from": "gpt", "value": label}]}
                for at, (text, label) in enumerate(ROWS)
            ]
        ),
        {"task": "causal"},
    ),
    "conversations as text in a table": (
        "a.csv",
        "messages\n" + "".join('"' + json.dumps(chat(text)["messages"]).replace('"', '""') + '"\n' for text, _ in ROWS),
        {"task": "causal"},
    ),
    "conversations without an answer": (
        "a.jsonl",
        lines([*map(chat, sentences(90)), *[{"messages": [{"role": "user", "content": "a"}]}] * 5]),
        {"task": "causal", "missing": 5},
    ),
}
REFUSED = {
    "an empty file": ("a.csv", ""),
    "only a header": ("a.csv", "text,label\n"),
    "only blank lines": ("a.csv", "\n \n\n"),
    "one class": ("a.csv", csv_text([(text, "pos") for text in sentences(40)])),
    "a label of its own for each row": ("a.csv", csv_text([(text, f"c{at}") for at, text in enumerate(sentences(40))])),
    "half of the labels missing": ("a.csv", PLAIN + "no label,\n" * 90),
    "5% malformed rows": ("a.csv", PLAIN + "only one cell\n" * 5),
    "a web page": ("a.csv", "<!DOCTYPE html><html><body>\n<p>Not found</p>\n</body></html>\n"),
    "an empty list": ("a.json", "[]"),
    "a cut array": ("a.json", json.dumps(objects())[:-200]),
    "a picture": ("a.csv", b"\x89PNG\r\n\x1a\n" + bytes(900)),
}


@pytest.mark.parametrize("name", READ)
def test_messy_files_are_read_as_hoped(write, name):
    file, content, expected = READ[name]
    done = CliRunner().invoke(survey_command, [str(write(file, content)), "--json"], catch_exceptions=False)
    found = json.loads(done.stdout)
    missing, bad = expected.get("missing", 0), expected.get("bad", 0)
    assert found["task"] == expected.get("task", "classify")
    assert found["rows"] == expected.get("rows", 90)
    assert (found["incomplete_row_count"], found["bad_row_count"]) == (missing, missing + bad)
    if found["task"] == "classify":
        assert found["labels"] == expected.get("labels", POSNEG)
    # What is said about the rows adds up.
    assert sum(found["splits"].values()) == found["rows"]
    said = {one["kind"]: one["values"].get("rows", 0) for one in found["warning_details"]}
    assert (said.get("incomplete-rows", 0), said.get("bad-rows", 0)) == (missing, bad)


@pytest.mark.parametrize("name", REFUSED)
def test_hopeless_files_are_refused(write, name):
    file, content = REFUSED[name]
    with pytest.raises(RequestError) as caught:
        CliRunner().invoke(survey_command, [str(write(file, content)), "--json"], catch_exceptions=False)
    assert caught.value.what
    assert caught.value.found


def test_sheets_and_parquet_with_holes(tmp_path):
    polars = pytest.importorskip("polars")
    pytest.importorskip("fastexcel")
    rows = [*ROWS, (None, None), (None, None), ("no label", None)]
    polars.DataFrame(rows, schema=["text", "label"], orient="row").write_parquet(tmp_path / "a.parquet")
    make_xlsx(
        tmp_path / "a.xlsx", {"reviews": [("text", "label"), *(tuple(cell or "" for cell in row) for row in rows)]}
    )
    for file, missing in (("a.parquet", 3), ("a.xlsx", 1)):  # a row of a sheet without any cell is no row
        done = CliRunner().invoke(survey_command, [str(tmp_path / file), "--json"], catch_exceptions=False)
        found = json.loads(done.stdout)
        assert (found["rows"], found["incomplete_row_count"], found["bad_row_count"]) == (90, missing, missing)
