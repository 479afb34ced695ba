"""What a survey says of a dataset, and what it refuses."""

import json

import numpy as np
import pytest

from holdfast.cli.survey import render_facts
from holdfast.core.artifacts import to_plain
from holdfast.core.errors import RequestError
from holdfast.data.data_request import DataRequest
from holdfast.data.survey_dataset import survey
from holdfast.data.tokenizer import ModelTokenizer
from tests.unit.data.conftest import csv_text, labelled, sentences

CONTRACT = (
    "task",
    "rows",
    "columns",
    "text_column",
    "label_column",
    "labels",
    "splits",
    "lengths",
    "warnings",
    "bad_rows",
)
ROWS = labelled(90)


def facts_of(path, **given):
    return survey(DataRequest(path=path, **given)).facts


def said(facts, word):
    return [warning for warning in facts.warnings if word in warning]


class TestFacts:
    def test_the_json_has_what_was_promised(self, write):
        facts = facts_of(write("a.csv", labelled(100)))
        plain = json.loads(json.dumps(to_plain(facts)))
        assert all(key in plain for key in CONTRACT)
        assert (plain["task"], plain["rows"], plain["text_column"], plain["label_column"]) == (
            "classify",
            100,
            "text",
            "label",
        )
        assert plain["labels"] == {"neg": 50, "pos": 50}
        assert sum(plain["splits"].values()) == 100
        assert set(plain["splits"]) == {"train", "validation", "test"}
        assert plain["lengths"]["text"]["unit"] == "words"

    def test_a_folder_with_a_file_for_each_split(self, write, tmp_path):
        write("train.csv", labelled(60))
        write("dev.csv", labelled(10, seed=1))
        write("test.csv", labelled(20, seed=2))
        write("notes_extra.csv", labelled(5))
        facts = facts_of(tmp_path)
        assert facts.splits == {"train": 60, "validation": 10, "test": 20}
        assert said(facts, "not read: notes_extra.csv")

    def test_given_files_for_validation_and_test(self, write):
        others = {"validation": write("b.csv", labelled(9, seed=1)), "test": write("c.csv", labelled(7, seed=2))}
        facts = facts_of(write("a.csv", labelled(60)), **others)
        assert facts.splits == {"train": 60, "validation": 9, "test": 7}

    def test_a_column_that_says_the_split(self, write):
        rows = [(text, label, ("train", "train", "test")[at % 3]) for at, (text, label) in enumerate(labelled(60))]
        assert facts_of(write("a.csv", csv_text(rows, "text,label,split"))).splits["test"] == 20

    def test_shards_of_one_split_are_read_together(self, write, tmp_path):
        write("data/train-00000-of-00002.csv", labelled(30))
        write("data/train-00001-of-00002.csv", labelled(30, seed=4))
        write("data/test-00000-of-00001.csv", labelled(10, seed=5))
        facts = facts_of(tmp_path)
        assert (facts.rows, facts.splits["test"]) == (70, 10)

    def test_lengths_in_tokens_and_what_is_cut(self, write, bert_folder):
        rows = [*labelled(60), *((("film " * 50).strip(), "pos") for _ in range(6))]
        facts = survey(DataRequest(path=write("a.csv", rows)), ModelTokenizer(bert_folder)).facts
        assert (facts.lengths["text"].unit, facts.lengths["text"].limit, facts.lengths["text"].longest) == (
            "tokens",
            32,
            52,
        )
        assert said(facts, "over-long")

    def test_text_without_spaces_is_measured_in_characters(self, write):
        rows = [
            (f"这部电影的情节非常精彩而且演员的表演也很出色值得一看再看{number}", "好坏"[number % 2])
            for number in range(40)
        ]
        assert facts_of(write("a.csv", rows)).lengths["text"].unit == "characters"

    def test_the_same_content_has_the_same_fingerprint_wherever_it_lies(self, write):
        assert (
            facts_of(write("a.csv", labelled(30))).fingerprint == facts_of(write("b/c.csv", labelled(30))).fingerprint
        )

    def test_rows_of_one_group_stay_in_one_split(self, write):
        rows = [(text, label, f"g{at // 5}") for at, (text, label) in enumerate(labelled(200))]
        found = survey(
            DataRequest(path=write("a.csv", csv_text(rows, "text,label,patient_id")), group_column="patient_id")
        )
        splits: dict[str, set[str]] = {}
        for example in found.examples():
            splits.setdefault(example.example.group, set()).add(example.split)
        assert all(len(one) == 1 for one in splits.values())

    def test_the_text_for_people_names_every_choice_and_fits_a_narrow_terminal(self, write, monkeypatch):
        facts = facts_of(write("a.csv", labelled(100)))
        monkeypatch.setenv("COLUMNS", "40")
        assert max(map(len, render_facts(facts).splitlines())) < 40
        monkeypatch.delenv("COLUMNS")
        shown = render_facts(facts)
        for words in (
            "[ok] classify, one label: 100 rows",
            "text column",
            "named 'label'",
            "cut by content and seed 42",
        ):
            assert words in shown


class TestWarnings:
    def test_duplicates_conflicts_and_leakage(self, write, tmp_path):
        rows = labelled(60)
        write("train.csv", [*rows, rows[0], (rows[1][0].upper(), "neg" if rows[1][1] == "pos" else "pos")])
        write("test.csv", [*labelled(20, seed=9), rows[5], rows[6]])
        facts = facts_of(tmp_path, validation_share=0)
        assert said(facts, "duplicates: 3 of the rows")
        assert said(facts, "conflicting duplicates: 1 of the texts")
        assert said(facts, "leakage: 2 of the test rows share their text")

    def test_a_clean_dataset_gives_none(self, write):
        assert facts_of(write("a.csv", labelled(200))).warnings == ()

    def test_copies_do_not_leak_where_we_cut(self, write):
        rows = labelled(100)
        assert not said(facts_of(write("a.csv", rows * 3)), "leakage")

    @pytest.mark.parametrize(
        ("labels", "words"),
        [
            (["many"] * 95 + ["few"] * 5, "class imbalance: 'many' has 95 rows, 'few' has 5 (19 times fewer)"),
            (["a"] * 50 + ["b"] * 49 + ["c"], "labels with one example only: 'c'"),
            (["0", "1"] * 50, "look like numbers"),
            (["True", "False"] * 50, "look like yes and no"),
            (["Pos", "pos"] * 50, "differ only in capitals or spaces"),
        ],
    )
    def test_labels_worth_a_second_look(self, write, labels, words):
        rows = [(text, label) for (text, _), label in zip(labelled(100), labels, strict=True)]
        assert said(facts_of(write("a.csv", rows)), words)

    def test_labels_that_training_never_sees(self, write, tmp_path):
        write("train.csv", labelled(60))
        write("test.csv", [*labelled(10, seed=3), ("new film", "other")])
        assert said(facts_of(tmp_path), "labels in test that training never sees: 'other'")

    def test_rows_that_belong_together_are_pointed_out(self, write):
        rows = [(text, label, f"p{at // 4}") for at, (text, label) in enumerate(labelled(80))]
        assert said(facts_of(write("a.csv", csv_text(rows, "text,label,patient_id"))), "--group-column patient_id")

    def test_letters_lost_before(self, write):
        rows = [(f"caf\ufffd {text}" if at < 3 else text, label) for at, (text, label) in enumerate(labelled(60))]
        assert said(facts_of(write("a.csv", rows)), "U+FFFD")

    def test_other_splits_beside_the_file(self, write):
        write("test.csv", labelled(10))
        assert said(facts_of(write("train.csv", labelled(60))), "--test")


class TestRefusals:
    @pytest.mark.parametrize(
        ("content", "words"),
        [
            ("text,label\n", "has no rows"),
            (csv_text([(text, "pos") for text in sentences(30)]), "every row has the same label, 'pos'"),
            (csv_text([(text, f"c{at}") for at, text in enumerate(sentences(30))]), "a label of its own"),
            (csv_text([(text, at / 7) for at, text in enumerate(sentences(60))]), "numbers to be predicted"),
            (csv_text([(text, "pos" if at % 9 else "") for at, text in enumerate(sentences(90))]), "cannot be used"),
            (csv_text([(text if at % 9 else "", label) for at, (text, label) in enumerate(ROWS)]), "cannot be used"),
            (csv_text([(text, text, label) for text, label in ROWS], "text,text,label"), "more than once"),
        ],
    )  # fmt: skip
    def test_nothing_sensible_to_train(self, write, content, words):
        with pytest.raises(RequestError) as caught:
            facts_of(write("a.csv", content))
        assert words in caught.value.what
        assert caught.value.exit_code == 2

    def test_a_bad_row_below_the_threshold_is_counted_and_listed(self, write):
        facts = facts_of(write("a.csv", [*labelled(150), ("no label here", "")]))
        assert (facts.rows, facts.bad_row_count) == (150, 1)
        assert (facts.bad_rows[0].row, facts.bad_rows[0].column) == (152, "label")
        assert said(facts, "bad rows, left out: the label is missing (1)")

    def test_more_may_be_let_pass_when_asked(self, write):
        facts = facts_of(write("a.csv", [*labelled(20), ("no label here", "")]), max_bad_share=0.1)
        assert facts.bad_row_count == 1

    def test_a_validation_file_without_the_label_column(self, write):
        other = write("v.csv", csv_text([("some text",)], "text"))
        with pytest.raises(RequestError, match=r"v.csv has no column 'label'"):
            facts_of(write("a.csv", labelled(60)), validation=other)

    def test_a_folder_that_does_not_say_what_is_what(self, write, tmp_path):
        write("a.csv", labelled(5))
        write("b.csv", labelled(5))
        with pytest.raises(RequestError, match="does not say which file is for training"):
            facts_of(tmp_path)

    def test_scored_pairs_need_a_lowest_score(self, write):
        rows = [(text, text, at % 6) for at, text in enumerate(sentences(60))]
        path = write("a.csv", csv_text(rows, "sentence1,sentence2,score"))
        with pytest.raises(RequestError, match="nothing says from which one on") as caught:
            facts_of(path)
        assert "--min-score" in caught.value.try_next[0]
        assert said(facts_of(path, min_score=3), "30 pairs with a score below 3 are left out")

    def test_conversations_without_an_assistant(self, write):
        rows = [{"messages": [{"role": "user", "content": text}]} for text in sentences(20)]
        with pytest.raises(RequestError, match="20 of 20 rows cannot be used"):
            facts_of(write("a.jsonl", rows))


class TestRetrieval:
    def beir(self, write, tmp_path, qrels="q0\tp0\t1\nq1\tp1\t1\n"):
        texts = sentences(40)
        write(
            "corpus.jsonl",
            [{"_id": f"p{at}", "title": "T", "text": text, "article_id": at // 4} for at, text in enumerate(texts)],
        )
        write("queries.jsonl", [{"_id": f"q{at}", "text": f"question {text}"} for at, text in enumerate(texts)])
        write("qrels/train.tsv", "query-id\tcorpus-id\tscore\n" + qrels)
        return tmp_path

    def test_a_beir_folder(self, write, tmp_path):
        many = "".join(f"q{at}\tp{at}\t1\n" for at in range(40)) + "q0\tp1\t0\n"
        found = survey(DataRequest(path=self.beir(write, tmp_path, many)))
        assert (found.facts.task, found.facts.form, found.facts.rows) == ("two-tower", "beir", 40)
        assert sum(found.facts.splits.values()) == 40
        assert found.facts.choices["passage"].value == "title + text"
        assert list(found.near_misses["train"]) == [0, 1]

    def test_a_judgement_of_an_unknown_passage_is_listed(self, write, tmp_path):
        folder = self.beir(write, tmp_path, "q0\tp0\t1\nq1\tp999\t1\n")
        facts = facts_of(folder, max_bad_share=0.5)
        assert (facts.bad_rows[0].file, facts.bad_rows[0].row, facts.bad_rows[0].column) == (
            "train.tsv",
            3,
            "corpus-id",
        )
        assert facts.bad_rows[0].reason == "the id is not in corpus.jsonl"

    def test_no_judgements_to_train_on(self, write, tmp_path):
        folder = self.beir(write, tmp_path)
        (folder / "qrels/train.tsv").rename(folder / "qrels/test.tsv")
        with pytest.raises(RequestError, match="no judgements to train on") as caught:
            facts_of(folder)
        assert "test.tsv" in caught.value.seen

    def test_vectors(self, tmp_path):
        draws = np.random.default_rng(0)
        queries, passages = draws.normal(size=(200, 8)), draws.normal(size=(200, 6)).astype(np.float32)
        queries[3, 0] = np.nan
        np.savez(tmp_path / "a.npz", queries=queries, passages=passages, article_ids=np.arange(200) // 4)
        facts = facts_of(tmp_path / "a.npz")
        assert (facts.form, facts.rows, facts.bad_row_count) == ("vectors", 199, 1)
        assert facts.bad_rows[0].reason == "the vector holds NaN or infinity"

    @pytest.mark.parametrize(
        ("arrays", "words"),
        [
            ({"queries": np.ones((5, 3)), "passages": np.ones((4, 3))}, "different number of queries and passages"),
            ({"queries": np.ones((5, 3))}, "does not hold one array of queries"),
            ({"queries": np.array([{"a": 1}], dtype=object), "passages": np.ones((1, 3))}, "holds Python objects"),
        ],
    )
    def test_vectors_that_are_no_pairs(self, tmp_path, arrays, words):
        np.savez(tmp_path / "a.npz", **arrays)
        with pytest.raises(RequestError) as caught:
            facts_of(tmp_path / "a.npz")
        assert words in caught.value.what


class TestWhatIsNoTable:
    PROGRAM = "import os\n" + "".join(f"def f{at}(path, mode):\n    return {at}\n" for at in range(20))
    LOG = "".join(f"2026-01-01 10:00:{at:02d},123 INFO worker {at % 3} did step {at}\n" for at in range(60))
    PROSE = "# Notes\n\n" + "".join(f"Some {at} words, and more.\nOthers; they follow {at}.\n" for at in range(20))

    @pytest.mark.parametrize(
        ("name", "content"), [("a.csv", PROGRAM), ("b.csv", LOG), ("c.csv", PROSE), ("d.log", LOG)]
    )
    def test_a_program_a_log_or_prose_is_not_taken_for_one(self, tmp_path, name, content):
        (tmp_path / name).write_text(content)
        with pytest.raises(RequestError, match=f"{name} is no table") as refused:
            facts_of(tmp_path / name)
        assert content.split("\n")[0] in refused.value.seen
        assert any("--task causal" in advice for advice in refused.value.try_next)
        assert facts_of(tmp_path / name, task="causal").task == "causal"

    @pytest.mark.parametrize("head", ["text", "lyrics"])
    def test_one_column_of_texts_with_a_name_is_one(self, tmp_path, head):
        (tmp_path / "a.csv").write_text(f"{head}\n" + "".join(f'"line {at}, and on"\n' for at in range(60)))
        facts = facts_of(tmp_path / "a.csv")
        assert (facts.task, facts.rows) == ("causal", 60)

    def test_a_few_texts_are_not_taken_for_a_corpus_unless_asked(self, write):
        path = write("a.csv", 'text\n"one, and on"\n"two, and on"\n"three, and on"\n')
        with pytest.raises(RequestError, match="3 rows of text are too few") as refused:
            facts_of(path)
        assert "column 'text' would be taken for causal" in refused.value.seen
        assert [word for word in ("--task causal", "--label-column") if word in " ".join(refused.value.try_next)] == [
            "--task causal",
            "--label-column",
        ]
        assert facts_of(path, task="causal").rows == 3
        assert facts_of(path, text_columns=("text",)).task == "causal"

    def test_a_short_file_of_prose_is_text_and_nothing_else(self, write):
        facts = facts_of(write("a.txt", "A first paragraph of prose.\n\nA second one.\n\nA third.\n"))
        assert (facts.task, facts.form) == ("causal", "text")

    def test_rows_of_which_none_can_be_used_are_not_called_missing(self, tmp_path):
        (tmp_path / "a.csv").write_text("text;label\n" + "one;two;three\n" * 30)
        with pytest.raises(RequestError, match="30 of 30 rows cannot be used"):
            facts_of(tmp_path / "a.csv")


class TestNothingToMeasureOn:
    def test_no_rows_beside_those_for_training_are_told_of(self, write):
        facts = facts_of(write("a.csv", labelled(21)), validation_share=0.0, test_share=0.0)
        assert said(facts, "all 21 are for training): nothing will be measured")
        assert not said(facts, "the figures of an evaluation")

    def test_no_rows_for_validation_alone_are_told_of(self, write):
        assert said(facts_of(write("a.csv", ROWS), validation_share=0.0), "the last step is kept")
        assert not said(facts_of(write("a.csv", ROWS)), "no rows for")
