"""Every warning about data has its sentence."""

import re
from pathlib import Path

import holdfast.data
from holdfast.core.data_warnings import SENTENCES, data_warning
from holdfast.core.errors import set_to


def test_every_kind_in_use_has_a_sentence_and_no_other():
    source = "".join(path.read_text() for path in Path(holdfast.data.__path__[0]).rglob("*.py"))
    assert set(re.findall(r"(?:data_warning|doubt)\(\s*\"([a-z-]+)\"", source)) == set(SENTENCES)


def test_numbers_and_lists_are_written_for_people():
    one, many = data_warning("duplicates", rows=1).text, data_warning("duplicates", rows=2000).text
    assert ("1 duplicate row " in one, "2,000 duplicate rows" in many) == (True, True)
    labels = data_warning("rare-labels", labels=tuple("abcdefg"), splits=3).text
    assert "'e' and 2 more" in labels


def test_the_command_line_adds_the_advice():
    warning = data_warning("related-rows", set_to("group_column", "id", note="keeps them together"), column="id")
    assert "--group-column id" in warning.line
    assert warning.action.note in warning.line
    assert "--" not in warning.text
