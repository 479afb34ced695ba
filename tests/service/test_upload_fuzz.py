"""Fuzzing of uploads: any file ends as facts or as an error, and both can be stored."""

import gzip
import io
import json
import random
import shutil
import tempfile
import zipfile
from pathlib import Path

import msgspec
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from holdfast.service.jobs.uploads import safe_name, title_of
from holdfast.service.survey_child import SurveyJob, SurveyLimits, check_amount, survey_upload

LIMITS = {"memory_bytes": 10**9, "seconds": 20, "unpacked_bytes": 2_000_000, "rows": 20_000}
CELL = st.one_of(
    st.text(max_size=40),
    st.sampled_from(
        ["", "=1+1", "<b>", '"', '""', "'", "\x00", "\ufeff", "nan", "1e400", "\u2028", "a\nb", "\ud83d\ude00"]
    ),
    st.integers().map(str),
)
NAMES = st.sampled_from(
    ["a.csv", "a.tsv", "a.json", "a.jsonl", "a.parquet", "a.xlsx", "a.npz", "a.txt", "a", "a.csv.gz"]
)
# Bounded: what fails is not made smaller, which can take minutes.
QUICK = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.generate],
)


def surveyed(content, name, choices=None):
    """What the child would write, without its limits of memory and time."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-fuzz-"))
    try:
        (folder / name).write_bytes(content)
        job = SurveyJob(path=str(folder / name), choices=choices or {}, limits=SurveyLimits(**LIMITS))
        result = survey_upload(job, lambda what, done, whole, unit="": check_amount(done, unit, job.limits))
    finally:
        shutil.rmtree(folder)
    found = msgspec.to_builtins(result)
    text = json.dumps(found, allow_nan=False)
    text.encode()
    assert not any("\0" in one for one in strings(found))
    assert str(folder) not in text
    assert len(text) < 2_000_000
    assert found["state"] in ("ready", "refused")
    assert bool(found["problem"]) == (found["state"] == "refused")
    assert "Error:" not in found["problem"].get("found", "") or found["problem"]["what"] != "the file could not be read"
    return found


def test_archives_are_surveyed_without_paths_of_the_server(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def zipped(**files):
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as archive:
            for name, content in files.items():
                archive.writestr(f"set/{name.replace('_', '.')}", content)
        return out.getvalue()

    rows = "text,label\n" + "".join(f"a text number {at},{at % 2}\n" for at in range(60))
    found = surveyed(zipped(train_csv=rows, test_csv=rows[:400]), "a.zip")
    assert (found["state"], found["preview"]["columns"]) == ("ready", ["text", "label"])
    assert found["facts"]["splits"]["train"] > 40
    for files in ({"train_csv": ""}, {"train_csv": "text,label\n"}, {"train_png": "x"}):
        found = surveyed(zipped(**files), "a.zip")
        assert found["state"] == "refused"
        assert str(tmp_path) not in json.dumps(found)
    beir = {
        "corpus_jsonl": "".join(json.dumps({"_id": f"p{at}", "text": f"passage {at}"}) + "\n" for at in range(20)),
        "queries_jsonl": "".join(json.dumps({"_id": f"q{at}", "text": f"query {at}"}) + "\n" for at in range(20)),
        "train_tsv": "query-id\tcorpus-id\tscore\n" + "".join(f"q{at}\tp{at}\t1\n" for at in range(20)),
    }
    found = surveyed(zipped(**beir), "b.zip")
    assert (found["state"], found["facts"]["form"]) == ("ready", "beir")


def strings(value):
    """Every text in a value."""
    if isinstance(value, dict):
        return [text for key, item in value.items() for text in (key, *strings(item))]
    if isinstance(value, list):
        return [text for item in value for text in strings(item)]
    return [value] if isinstance(value, str) else []


@QUICK
@given(content=st.binary(max_size=3000), name=NAMES)
def test_any_bytes(content, name):
    surveyed(content or b" ", name)


@QUICK
@given(
    rows=st.lists(st.lists(CELL, min_size=1, max_size=5), min_size=1, max_size=30),
    delimiter=st.sampled_from([",", ";", "\t", "|"]),
    encoding=st.sampled_from(["utf-8", "utf-16", "latin-1", "cp1252"]),
    is_packed=st.booleans(),
)
def test_any_table(rows, delimiter, encoding, is_packed):
    content = "\n".join(delimiter.join(row) for row in rows).encode(encoding, "replace")
    surveyed(gzip.compress(content) if is_packed else content or b" ", "a.csv.gz" if is_packed else "a.csv")


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | CELL,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(CELL, inner, max_size=4),
    max_leaves=12,
)


@QUICK
@given(rows=st.lists(JSON, min_size=1, max_size=15), is_lines=st.booleans())
def test_any_json(rows, is_lines):
    content = "\n".join(map(json.dumps, rows)) if is_lines else json.dumps(rows)
    surveyed(content.encode("utf-8", "surrogatepass"), "a.jsonl" if is_lines else "a.json")


@QUICK
@given(
    task=st.sampled_from(["classify", "causal", "two-tower", None]),
    text=st.lists(CELL, max_size=3),
    label=CELL,
    encoding=st.sampled_from(["utf-16", "shift_jis", "gb18030", None]),
)
def test_any_choice(task, text, label, encoding):
    content = b"text,label\n" + b"".join(b"some words %d,%d\n" % (at, at % 2) for at in range(40))
    surveyed(content, "a.csv", {"task": task, "text_column": text, "label_column": label, "encoding": encoding})


@QUICK
@given(seed=st.integers(0, 10**6), kind=st.sampled_from(["xlsx", "npz", "gz", "parquet"]))
def test_damaged_archives(seed, kind):
    draws = random.Random(seed)
    content = bytearray(_whole(kind))
    for _ in range(draws.randint(1, 8)):
        content[draws.randrange(len(content))] = draws.randrange(256)
    if draws.random() < 0.3:
        content = content[: draws.randrange(1, len(content))]
    surveyed(bytes(content), f"a.{kind}")


@given(name=st.text(max_size=300))
def test_any_file_name_is_accepted(name):
    kept = safe_name(name)
    assert kept
    assert kept == Path(kept).name
    assert not kept.startswith((".", "-"))
    assert len(kept) <= 100
    assert len(kept.encode()) <= 200
    assert kept.isprintable()
    title = title_of(name)
    assert len(title) <= 200
    assert title.isprintable()


_made: dict[str, bytes] = {}


def _whole(kind):
    """A good file of each kind, made once."""
    if kind in _made:
        return _made[kind]
    held = io.BytesIO()
    if kind == "gz":
        held.write(gzip.compress(b"text,label\n" + b"some words,a\nother words,b\n" * 30))
    elif kind == "npz":
        import numpy

        numpy.savez_compressed(held, queries=numpy.ones((20, 4), "float32"), passages=numpy.ones((20, 4), "float32"))
    elif kind == "parquet":
        import polars

        polars.DataFrame({"text": ["some words", "other words"] * 20, "label": ["a", "b"] * 20}).write_parquet(held)
    else:
        with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("[Content_Types].xml", "<Types/>")
            archive.writestr("xl/workbook.xml", "<workbook><sheets><sheet name='a' sheetId='1'/></sheets></workbook>")
            archive.writestr("xl/worksheets/sheet1.xml", "<worksheet><sheetData/></worksheet>" * 20)
    _made[kind] = held.getvalue()
    return _made[kind]
