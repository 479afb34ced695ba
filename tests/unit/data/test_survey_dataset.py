"""What a survey says of a dataset, and what it refuses."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from holdfast.cli import cli
from holdfast.cli.survey import render_facts
from holdfast.cli.survey import survey as survey_command
from holdfast.core.artifacts import to_json
from holdfast.core.errors import Action, RequestError
from holdfast.data.data_request import DataRequest
from holdfast.data.prepare import prepare
from holdfast.data.shards import open_array
from holdfast.data.survey_dataset import detect, printed_facts, survey
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


def survey_json(*arguments):
    """What `holdfast survey --json` prints."""
    result = CliRunner().invoke(survey_command, [*arguments, "--json"], catch_exceptions=False)
    return json.loads(result.stdout)


def warning(facts, kind):
    """The values of the one warning of this kind; None if there is none."""
    found = [one for one in facts.warnings if one.kind == kind]
    assert len(found) < 2
    return found[0].values if found else None


class TestFacts:
    def test_the_json_has_what_was_promised(self, write):
        facts = facts_of(write("a.csv", labelled(100)))
        plain = json.loads(to_json(printed_facts(facts)))
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
        assert warning(facts, "unread-files") == {"files": ("notes_extra.csv",)}

    def test_given_files_for_validation_and_test(self, write):
        others = {"validation": write("b.csv", labelled(9, seed=1)), "test": write("c.csv", labelled(7, seed=2))}
        facts = facts_of(write("a.csv", labelled(60)), **others)
        assert facts.splits == {"train": 60, "validation": 9, "test": 7}

    @pytest.mark.parametrize("name", ["val", "valid", "validation", "dev"])
    def test_splits_next_to_the_training_file(self, write, name):
        other = write(f"{name}.csv", labelled(9, seed=1))
        test = write("test.csv", labelled(7, seed=2))
        train = write("train.csv", labelled(60))
        found = survey_json(str(train))
        assert found["splits"] == {"train": 60, "validation": 9, "test": 7}
        assert found["files"] == [str(train), str(other), str(test)]
        assert found["choices"]["splits"]["value"] == f"validation from {name}.csv, test from test.csv"
        assert facts_of(train, test=test).splits.keys() == {"train", "validation", "test"}
        assert facts_of(train, test=test).splits["validation"] != 9
        assert facts_of(train, test_share=0.2).files == (str(train),)
        write("test.jsonl", "{}")
        assert facts_of(write("reviews_train.csv", labelled(60))).splits["test"] != 7

    def test_only_a_test_file_next_to_the_training_file(self, write):
        write("test.csv", labelled(7, seed=2))
        facts = facts_of(write("train.csv", labelled(60)))
        assert (facts.splits["test"], facts.rows) == (7, 67)
        assert facts.splits["validation"] > 0

    def test_column_can_name_the_split(self, write):
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
        assert warning(facts, "overlong") == {"share": 6 / 66, "role": "text", "limit": 32, "longest": 52}

    def test_text_without_spaces_is_measured_in_characters(self, write):
        rows = [
            (f"这部电影的情节非常精彩而且演员的表演也很出色值得一看再看{number}", "好坏"[number % 2])
            for number in range(40)
        ]
        assert facts_of(write("a.csv", rows)).lengths["text"].unit == "characters"

    def test_same_content_has_same_fingerprint_anywhere(self, write):
        assert (
            facts_of(write("a.csv", labelled(30))).fingerprint == facts_of(write("b/c.csv", labelled(30))).fingerprint
        )

    def test_rows_of_one_group_stay_in_one_split(self, write, bert_folder, tmp_path):
        rows = [(text, label, f"g{at // 5}") for at, (text, label) in enumerate(labelled(200))]
        path = write("a.csv", csv_text(rows, "text,label,patient_id"))
        done = prepare(
            detect(DataRequest(path=path, group_column="patient_id")), ModelTokenizer(bert_folder), tmp_path / "out"
        )
        groups = {
            name: {(int(row) - 2) // 5 for row in open_array(done.folder, f"{name}.rows")} for name in done.facts.splits
        }
        assert len(groups) == 3
        assert sum(map(len, groups.values())) == 40

    def test_the_text_names_every_choice_and_fits_a_narrow_terminal(self, write, monkeypatch):
        facts = facts_of(write("a.csv", labelled(100)))
        monkeypatch.setenv("COLUMNS", "40")
        assert max(map(len, render_facts(facts).splitlines())) < 40
        monkeypatch.delenv("COLUMNS")
        shown = render_facts(facts)
        assert "classify" in shown
        assert all(name in shown for name in facts.choices if name != "form")


class TestWarnings:
    def test_duplicates_conflicts_and_leakage(self, write, tmp_path):
        rows = labelled(60)
        write("train.csv", [*rows, rows[0], (rows[1][0].upper(), "neg" if rows[1][1] == "pos" else "pos")])
        write("test.csv", [*labelled(20, seed=9), rows[5], rows[6]])
        facts = facts_of(tmp_path, validation_share=0)
        assert warning(facts, "duplicates") == {"rows": 3}
        assert warning(facts, "conflicting-labels") == {"texts": 1, "rows": ("3",)}
        assert warning(facts, "leakage") == {"rows": 2, "split": "test", "part": "text"}

    def test_a_clean_dataset_gives_none(self, write):
        assert facts_of(write("a.csv", labelled(200))).warnings == ()

    def test_copies_do_not_leak_where_we_cut(self, write):
        rows = labelled(100)
        assert warning(facts_of(write("a.csv", rows * 3)), "leakage") is None

    @pytest.mark.parametrize(
        ("labels", "kind", "values"),
        [
            (
                ["many"] * 95 + ["few"] * 5,
                "imbalance",
                {"most": "many", "most_rows": 95, "least": "few", "least_rows": 5},
            ),
            (["a"] * 50 + ["b"] * 49 + ["c"], "rare-labels", {"labels": ("c",), "splits": 3}),
            (["0", "1"] * 50, "label-values", {"values": "numbers", "labels": ("0", "1")}),
            (["True", "False"] * 50, "label-values", {"values": "yes and no", "labels": ("False", "True")}),
            (["Pos", "pos"] * 50, "similar-labels", {"labels": ("Pos", "pos")}),
        ],
    )
    def test_suspicious_labels(self, write, labels, kind, values):
        rows = [(text, label) for (text, _), label in zip(labelled(100), labels, strict=True)]
        assert warning(facts_of(write("a.csv", rows)), kind) == values

    def test_labels_that_training_never_sees(self, write, tmp_path):
        write("train.csv", labelled(60))
        write("test.csv", [*labelled(10, seed=3), ("new film", "other")])
        assert warning(facts_of(tmp_path), "unseen-labels") == {"split": "test", "labels": ("other",)}

    def test_rows_that_belong_together_are_pointed_out(self, write):
        rows = [(text, label, f"p{at // 4}") for at, (text, label) in enumerate(labelled(80))]
        found = facts_of(write("a.csv", csv_text(rows, "text,label,patient_id"))).warnings
        assert [(one.kind, one.action.setting, one.action.value) for one in found] == [
            ("related-rows", "group_column", "patient_id")
        ]

    def test_letters_lost_before(self, write):
        rows = [(f"caf\ufffd {text}" if at < 3 else text, label) for at, (text, label) in enumerate(labelled(60))]
        assert warning(facts_of(write("a.csv", rows)), "lost-letters") == {"texts": 3}

    def test_unlabeled_test_file_next_to_the_training_file(self, write):
        other = write("test.csv", csv_text([(text,) for text in sentences(10)], "text"))
        facts = facts_of(write("train.csv", labelled(60)))
        (found,) = facts.warnings
        assert (found.kind, found.action.setting, found.action.value) == ("unread-split", "test", str(other))
        assert facts.splits.keys() == {"train", "validation", "test"}

    def test_unreadable_neighbor_is_not_used(self, write):
        write("test.csv", "")
        facts = facts_of(write("train.csv", labelled(60)))
        assert [one.kind for one in facts.warnings] == ["unread-split"]


class TestIncompleteRows:
    """Rows that lack a text, a label or an answer are dropped and reported."""

    @pytest.mark.parametrize(
        ("name", "row", "kind"),
        [
            ("a.csv", ("no label", ""), "label-missing"),
            ("a.csv", ("no label", " "), "label-missing"),
            ("a.csv", ("no label", "NaN"), "label-missing"),
            ("a.csv", ("no label", "N/A"), "label-missing"),
            ("a.csv", ("", "pos"), "empty"),
            ("a.csv", ("None", "pos"), "empty"),
            ("a.jsonl", {"text": None, "label": "pos"}, "missing"),
            ("a.jsonl", {"text": float("nan"), "label": "pos"}, "missing"),
            ("a.jsonl", {"label": "pos"}, "missing"),
            ("a.jsonl", {"text": "no label", "label": None}, "label-missing"),
            ("a.jsonl", {"text": "no label", "label": float("nan")}, "label-missing"),
        ],
    )
    def test_survey_drops_and_reports(self, write, name, row, kind):
        rows = labelled(90)
        if name.endswith("jsonl"):
            rows = [{"text": text, "label": label} for text, label in rows]
            content = "".join(json.dumps(one) + "\n" for one in [*rows, *[row] * 8])
        else:
            content = csv_text([*rows, *[row] * 8])
        found = survey_json(str(write(name, content)))
        assert (found["rows"], found["bad_row_count"], found["incomplete_row_count"]) == (90, 8, 8)
        assert {bad["kind"] for bad in found["bad_rows"]} == {kind}
        (values,) = [one["values"] for one in found["warning_details"] if one["kind"] == "incomplete-rows"]
        first = 92 if name == "a.csv" else 91
        assert (values["rows"], values["share"], len(values["examples"])) == (8, 8 / 98, 3)
        assert values["examples"][0].startswith(f"{name}, row {first}:")

    def test_missing_numbers_and_lists(self, write):
        numbers = [(text, "N/A" if at % 5 == 0 else at % 3) for at, text in enumerate(sentences(60))]
        facts = facts_of(write("a.csv", numbers))
        assert (facts.incomplete_row_count, list(facts.labels)) == (12, ["0", "1", "2"])

    def test_a_frequent_placeholder_is_a_class(self, write):
        rows = [(text, ("yes", "no", "N/A")[at % 3]) for at, text in enumerate(sentences(60))]
        none = [(text, ("mild", "severe", "mild", "none")[at % 4]) for at, text in enumerate(sentences(60))]
        assert set(facts_of(write("a.csv", rows)).labels) == {"yes", "no", "N/A"}
        assert set(facts_of(write("b.csv", none)).labels) == {"mild", "severe", "none"}

    @pytest.mark.parametrize("answer", ["", None, float("nan"), "  "])
    def test_answers_of_instructions(self, write, answer):
        rows = [{"instruction": f"say {text}", "output": text} for text in sentences(60)]
        rows += [{"instruction": "say nothing", "output": answer}] * 5
        facts = facts_of(write("a.jsonl", "".join(json.dumps(row) + "\n" for row in rows)))
        assert (facts.task, facts.rows, facts.incomplete_row_count) == ("causal", 60, 5)

    def test_conversations_and_messages(self, write):
        turns = [[{"role": "user", "content": text}, {"role": "assistant", "content": text}] for text in sentences(60)]
        turns += [None, [], [{"role": "user", "content": "a"}], [*turns[0][:1], {"role": "assistant", "content": ""}]]
        facts = facts_of(write("a.jsonl", [{"messages": one} for one in turns]))
        assert (facts.rows, facts.bad_row_count, facts.incomplete_row_count) == (60, 4, 4)

    def test_nulls_in_parquet(self, tmp_path):
        polars = pytest.importorskip("polars")
        texts, labels = zip(*labelled(90), strict=True)
        table = {"text": [None, None, *texts[2:]], "label": [*labels[:-3], None, None, None]}
        polars.DataFrame(table).write_parquet(tmp_path / "a.parquet")
        facts = facts_of(tmp_path / "a.parquet")
        assert (facts.rows, facts.incomplete_row_count) == (85, 5)

    @pytest.mark.parametrize("blank", ["\n", "  \n", " , \n", ",\n", '""\n', '" "," "\n', "\r\n", "\t\n"])
    def test_blank_lines_are_not_rows(self, write, blank):
        lines = csv_text(ROWS).splitlines(keepends=True)
        facts = facts_of(write("a.csv", "".join([*lines[:9], blank, *lines[9:], blank, blank])))
        assert (facts.rows, facts.bad_row_count, facts.warnings) == (90, 0, ())

    def test_malformed_rows_are_listed_first(self, write):
        rows = [*labelled(300), *[("no label", "")] * 60]
        facts = facts_of(write("a.csv", csv_text(rows) + "only one cell\n"))
        assert (facts.bad_row_count, facts.incomplete_row_count) == (61, 60)
        assert (facts.bad_rows[0].kind, len(facts.bad_rows)) == ("cells", 50)

    def test_dropped_rows_are_written(self, write, tmp_path):
        found = survey(DataRequest(path=write("a.csv", [*labelled(60), *[("no label", "")] * 9])))
        found.bad.write(tmp_path / "dropped.csv")
        lines = (tmp_path / "dropped.csv").read_text().splitlines()
        assert lines[:2] == ["file,row,column,reason", "a.csv,62,label,the label is missing"]
        assert len(lines) == 10


class TestRefusals:
    @pytest.mark.parametrize(
        ("content", "what", "setting"),
        [
            ("text,label\n", "no rows", ""),
            (csv_text([(text, "pos") for text in sentences(30)]), "'pos'", "label_column"),
            (csv_text([(text, f"c{at}") for at, text in enumerate(sentences(30))]), "different label", "label_column"),
            (csv_text([(text, at / 7) for at, text in enumerate(sentences(60))]), "numbers", "label_column"),
            (csv_text([*ROWS, *((text, "") for text in sentences(60, seed=3))]), "60 of 150", "max_bad_rows"),
            (csv_text([*ROWS, *[("", "pos")] * 60]), "60 of 150", "max_bad_rows"),
            (csv_text(ROWS) + "only one cell\n" * 3, "3 of 93", "max_bad_rows"),
            (csv_text([(text, text, label) for text, label in ROWS], "text,text,label"), "'text'", ""),
        ],
    )  # fmt: skip
    def test_nothing_sensible_to_train(self, write, content, what, setting):
        with pytest.raises(RequestError) as caught:
            facts_of(write("a.csv", content))
        assert what in caught.value.what
        assert (caught.value.setting, caught.value.exit_code) == (setting, 2)

    def test_a_bad_row_below_the_threshold_is_counted_and_listed(self, write):
        facts = facts_of(write("a.csv", csv_text(labelled(150)) + "only one cell\n"))
        assert (facts.rows, facts.bad_row_count, facts.incomplete_row_count) == (150, 1, 0)
        (bad,) = facts.bad_rows
        assert (bad.row, bad.kind) == (152, "cells")
        assert warning(facts, "bad-rows")["rows"] == 1

    def test_more_bad_rows_are_allowed_on_request(self, write):
        facts = facts_of(write("a.csv", csv_text(labelled(20)) + "only one cell\n"), max_bad_share=0.1)
        assert facts.bad_row_count == 1
        path = write("b.csv", [*labelled(20), *((text, "") for text in sentences(20, seed=3))])
        assert facts_of(path, max_bad_share=0.5).incomplete_row_count == 20

    def test_url_of_another_scheme_is_repeated_as_given(self, tmp_path):
        address = "s3://example.org/a//train.csv"
        for words in (["survey", address], ["train", address, "--out", str(tmp_path / "run")]):
            with pytest.raises(RequestError) as caught:
                CliRunner().invoke(cli, words, catch_exceptions=False)
            assert address in caught.value.what
        assert not (tmp_path / "run").exists()

    def test_a_validation_file_without_the_label_column(self, write):
        other = write("v.csv", csv_text([("some text",)], "text"))
        with pytest.raises(RequestError, match=r"v.csv .* 'label'"):
            facts_of(write("a.csv", labelled(60)), validation=other)

    def test_a_folder_without_a_training_file(self, write, tmp_path):
        write("a.csv", labelled(5))
        write("b.csv", labelled(5))
        with pytest.raises(RequestError) as caught:
            facts_of(tmp_path)
        assert caught.value.found == "a.csv, b.csv"

    def test_scored_pairs_need_a_lowest_score(self, write):
        rows = [(text, text, at % 6) for at, text in enumerate(sentences(60))]
        path = write("a.csv", csv_text(rows, "sentence1,sentence2,score"))
        with pytest.raises(RequestError) as caught:
            facts_of(path)
        assert (caught.value.action.setting, caught.value.action.value) == ("min_score", 4)
        assert warning(facts_of(path, min_score=3), "low-scores") == {"rows": 30, "min_score": 3}

    def test_conversations_without_an_assistant(self, write):
        rows = [{"messages": [{"role": "user", "content": text}]} for text in sentences(20)]
        with pytest.raises(RequestError, match="20 of 20"):
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

    def test_beir_folder_is_surveyed(self, write, tmp_path):
        many = "".join(f"q{at}\tp{at}\t1\n" for at in range(40)) + "q0\tp1\t0\n"
        found = survey(DataRequest(path=self.beir(write, tmp_path, many)))
        assert (found.facts.task, found.facts.form, found.facts.rows) == ("two-tower", "beir", 40)
        assert sum(found.facts.splits.values()) == 40
        assert found.facts.choices["passage"].value == "title + text"

    def test_a_judgment_of_an_unknown_passage_is_listed(self, write, tmp_path):
        folder = self.beir(write, tmp_path, "q0\tp0\t1\nq1\tp999\t1\n")
        facts = facts_of(folder, max_bad_share=0.5)
        (bad,) = facts.bad_rows
        assert (bad.file, bad.row, bad.column, bad.kind) == ("train.tsv", 3, "corpus-id", "unknown-id")

    def test_no_judgments_to_train_on(self, write, tmp_path):
        folder = self.beir(write, tmp_path)
        (folder / "qrels/train.tsv").rename(folder / "qrels/test.tsv")
        with pytest.raises(RequestError, match="judgments") as caught:
            facts_of(folder)
        assert "test.tsv" in caught.value.found

    def test_vectors_are_surveyed(self, tmp_path):
        draws = np.random.default_rng(0)
        queries, passages = draws.normal(size=(200, 8)), draws.normal(size=(200, 6)).astype(np.float32)
        queries[3, 0] = np.nan
        np.savez(tmp_path / "a.npz", queries=queries, passages=passages, article_ids=np.arange(200) // 4)
        facts = facts_of(tmp_path / "a.npz")
        assert (facts.form, facts.rows, facts.bad_row_count) == ("vectors", 199, 1)
        assert facts.bad_rows[0].kind == "not-finite"

    def test_given_files_and_shards_of_vectors(self, tmp_path):
        rng = np.random.default_rng(0)

        def save(name, rows):
            np.savez(tmp_path / name, queries=rng.normal(size=(rows, 4)), passages=rng.normal(size=(rows, 6)))
            return str(tmp_path / name)

        train, validation, test = save("a.npz", 90), save("b.npz", 9), save("c.npz", 7)
        given = survey_json(train, "--validation", validation, "--test", test)
        assert given["splits"] == {"train": 90, "validation": 9, "test": 7}
        assert given["files"] == [train, validation, test]
        assert survey_json(train)["splits"].keys() == {"train", "validation", "test"}
        for at, rows in enumerate((40, 30)):
            (tmp_path / "d").mkdir(exist_ok=True)
            save(f"d/train-0000{at}-of-00002.npz", rows)
        save("d/test.npz", 8)
        folder = survey_json(str(tmp_path / "d"))
        assert (folder["rows"], folder["splits"]["test"]) == (78, 8)

    def test_vectors_of_other_sizes_are_refused(self, tmp_path):
        for name, size in (("a", 4), ("b", 5)):
            np.savez(tmp_path / f"{name}.npz", queries=np.random.rand(20, size), passages=np.random.rand(20, size))
        with pytest.raises(RequestError, match=r"b\.npz"):
            facts_of(tmp_path / "a.npz", validation=tmp_path / "b.npz")

    @pytest.mark.parametrize(
        ("arrays", "what"),
        [
            ({"queries": np.ones((5, 3)), "passages": np.ones((4, 3))}, "different numbers"),
            ({"queries": np.ones((5, 3))}, "no pair"),
            ({"queries": np.array([{"a": 1}], dtype=object), "passages": np.ones((1, 3))}, "Python objects"),
        ],
    )
    def test_vectors_that_are_not_pairs(self, tmp_path, arrays, what):
        np.savez(tmp_path / "a.npz", **arrays)
        with pytest.raises(RequestError) as caught:
            facts_of(tmp_path / "a.npz")
        assert what in caught.value.what


class TestTextWithoutColumns:
    PROGRAM = "import os\n" + "".join(f"def f{at}(path, mode):\n    return {at}\n" for at in range(20))
    LOG = "".join(f"2026-01-01 10:00:{at:02d},123 INFO worker {at % 3} did step {at}\n" for at in range(60))
    PROSE = "# Notes\n\n" + "".join(f"Some {at} words, and more.\nOthers; they follow {at}.\n" for at in range(20))

    @pytest.mark.parametrize(
        ("name", "content"), [("a.csv", PROGRAM), ("b.csv", LOG), ("c.csv", PROSE), ("d.log", LOG)]
    )
    def test_program_log_or_prose_is_not_a_table(self, tmp_path, name, content):
        (tmp_path / name).write_text(content)
        with pytest.raises(RequestError, match=name) as refused:
            facts_of(tmp_path / name)
        assert content.split("\n")[0] in refused.value.found
        assert (refused.value.action.setting, refused.value.action.value) == ("task", "causal")
        assert facts_of(tmp_path / name, task="causal").task == "causal"

    @pytest.mark.parametrize("head", ["text", "lyrics"])
    def test_one_named_column_of_texts_is_a_table(self, tmp_path, head):
        (tmp_path / "a.csv").write_text(f"{head}\n" + "".join(f'"line {at}, and on"\n' for at in range(60)))
        facts = facts_of(tmp_path / "a.csv")
        assert (facts.task, facts.rows) == ("causal", 60)

    def test_few_texts_train_a_language_model_only_on_request(self, write):
        path = write("a.csv", 'text\n"one, and on"\n"two, and on"\n"three, and on"\n')
        with pytest.raises(RequestError, match="3 rows") as refused:
            facts_of(path)
        assert {one.setting for one in refused.value.try_next if isinstance(one, Action)} == {"label_column", "task"}
        assert facts_of(path, task="causal").rows == 3
        assert facts_of(path, text_columns=("text",)).task == "causal"

    def test_a_short_file_of_prose_is_text_and_nothing_else(self, write):
        facts = facts_of(write("a.txt", "A first paragraph of prose.\n\nA second one.\n\nA third.\n"))
        assert (facts.task, facts.form) == ("causal", "text")

    def test_unusable_rows_are_not_called_missing(self, tmp_path):
        (tmp_path / "a.csv").write_text("text;label\n" + "one;two;three\n" * 30)
        with pytest.raises(RequestError, match="30 of 30"):
            facts_of(tmp_path / "a.csv")


class TestNothingToMeasureOn:
    def test_no_rows_to_evaluate_on(self, write):
        facts = facts_of(write("a.csv", labelled(21)), validation_share=0.0, test_share=0.0)
        assert [(one.kind, one.values) for one in facts.warnings] == [("nothing-measured", {"rows": 21})]

    def test_no_rows_for_validation(self, write):
        assert warning(facts_of(write("a.csv", ROWS), validation_share=0.0), "no-validation") == {}
        assert not facts_of(write("a.csv", ROWS)).warnings
