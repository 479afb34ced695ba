"""Tables, JSON and text are told apart by what they hold."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.data.sniff import kind_of_text, sniff_table


def sniffed(text: str, **given):
    dialect = sniff_table(text, is_whole=True, **given)
    return dialect.delimiter.value, dialect.has_header.value


@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
def test_each_delimiter_is_found(mark):
    text = f"text{mark}label\n" + "".join(f"some words here{mark}pos\n" for _ in range(5))
    assert sniffed(text) == (mark, True)


def test_commas_inside_texts_do_not_win_over_semicolons():
    assert sniffed("text;label\nHello, dear;pos\nHi, you, there;neg\nBye;neg\n") == (";", True)


def test_pipes_between_labels_are_not_the_delimiter():
    assert sniffed("text,labels\none,a|b\ntwo,b|c\nthree,a|c\n") == (",", True)


def test_quotes_keep_delimiters_and_line_breaks():
    assert sniffed('text,label\n"one, two\nthree",pos\n"four",neg\n') == (",", True)


def test_quotes_that_group_nothing_are_left_alone():
    dialect = sniff_table('text\tlabel\n"odd one\tpos\nplain\tneg\nother one\tpos\n', is_whole=True)
    assert dialect.delimiter.value == "\t"
    assert not dialect.quoting


def test_running_text_has_no_delimiter():
    dialect = sniff_table("Hello, world\nnothing here\nwell, yes, no\n", is_whole=True)
    assert dialect.delimiter.value not in ",;\t|"


def test_excels_hint_names_the_delimiter():
    dialect = sniff_table("sep=|\ntext|label\na b|x\n", is_whole=True)
    assert dialect.hint_line
    assert dialect.delimiter.value == "|"


@pytest.mark.parametrize(
    ("text", "has_header"),
    [
        ("text,label\ngood film,pos\n", True),
        ("good film,pos\nbad film,neg\nslow film,neg\nfine film,pos\n", False),
        ("Review,Stars\ngood film,5\nbad film,1\n", True),
        ("ham,go there\nspam,win now\nham,see you\nspam,call now\n", False),
        ("spam,win now\nham,go there\nham,see you\nspam,call now\n", False),
        ("1,good film\n0,bad film\n", False),
        ("phrase,verdict\ngood film,positive\nbad film,negative\n", True),
    ],
)
def test_header_is_distinguished_from_a_row(text, has_header):
    assert sniffed(text)[1] is has_header


def test_requested_choice_is_used():
    assert sniffed("a;b,c\nd;e,f\n", delimiter=",", header=False) == (",", False)


@pytest.mark.parametrize(
    ("text", "extension", "kind"),
    [
        ('{"text": "a"}\n{"text": "b"}\n', ".csv", "jsonl"),
        ('{"text": "a"}\n', ".jsonl", "jsonl"),
        ('{"text": ["a"], "label": ["b"]}', ".json", "json"),
        ('{\n  "text": "a"\n}\n{\n  "text": "b"\n}', ".json", "json"),
        ('[{"text": "a"}]', ".txt", "json"),
        ("text,label\na b,c\n", ".json", "csv"),
        ('broken {\n{"text": "a"}\n{"text": "b"}\n', ".jsonl", "jsonl"),
        ("One line.\nAnother, longer line.\n", ".txt", "text"),
        ("text\tlabel\na b\tc\n", ".txt", "csv"),
    ],
)
def test_content_decides_over_the_extension(text, extension, kind):
    assert kind_of_text(text, extension).value == kind


@given(st.text(max_size=300), st.booleans(), st.sampled_from(["", ".csv", ".json", ".jsonl", ".txt"]))
def test_any_text_is_sniffed_without_an_error(text, is_whole, extension):
    kind_of_text(text, extension)
    sniff_table(text, is_whole=is_whole)
