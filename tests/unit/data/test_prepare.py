"""Prepared data is what was surveyed, whole or absent, and used again when nothing changed."""

import errno
import itertools
import json
import os

import numpy as np
import pytest

from holdfast.core.errors import MachineError, RequestError
from holdfast.data import prepare_classify
from holdfast.data.data_request import DataRequest
from holdfast.data.prepare import PrepareOptions, build_whole, link_files, prepare
from holdfast.data.prepare_causal import learned
from holdfast.data.shards import (
    LONGEST_SHOWN,
    ArrayWriter,
    has_array,
    open_array,
    open_texts,
    open_tokens,
    read_manifest,
    require_manifest,
)
from holdfast.data.survey_dataset import detect, survey
from holdfast.data.tokenizer import ModelTokenizer
from tests.unit.data.conftest import labelled, sentences


def prepared(path, folder, out, *, cache=None, options=None, on_progress=lambda *_: None, **given):
    tokens = ModelTokenizer(folder)
    found = survey(DataRequest(path=path, **given), tokens)
    return found, prepare(found.source, tokens, out, options=options, cache=cache, on_progress=on_progress)


def texts_of(folder, name, tokens_folder):
    tokenizer = ModelTokenizer(tokens_folder).tokenizer
    array = open_tokens(folder, name)
    return [tokenizer.decode(array[at].tolist()) for at in range(len(array))]


class TestClassify:
    def test_every_text_has_its_label(self, write, bert_folder, tmp_path):
        rows = labelled(120, ("no", "yes", "perhaps"))
        seen = []
        _, done = prepared(
            write("a.csv", rows), bert_folder, tmp_path / "out", on_progress=lambda *what: seen.append(what)
        )
        manifest = require_manifest(tmp_path / "out")
        assert (manifest.task, manifest.labels, manifest.multi_label) == (
            "classify",
            ("no", "perhaps", "yes"),
            False,
        )
        wanted = dict(rows)
        for split, size in manifest.splits.items():
            texts, labels = (
                texts_of(tmp_path / "out", split, bert_folder),
                open_array(tmp_path / "out", f"{split}.labels"),
            )
            assert len(texts) == len(labels) == size.rows
            assert labels.dtype == np.int64
            for text, label in zip(texts, labels, strict=True):
                assert wanted[text] == manifest.labels[label]
        assert open_tokens(tmp_path / "out", "train")[0][[0, -1]].tolist() == [2, 3]
        assert seen[-1] == ("tokenizing", 120, 120)
        facts = done.facts
        assert (list(facts.splits), list(facts.labels)) == (["train", "validation", "test"], ["no", "perhaps", "yes"])
        assert list(facts.roles) == ["text", "label"]
        assert not done.is_reused

    def test_texts_for_display_keep_their_letters(self, write, bert_folder, tmp_path):
        rows = [(f"{text} CAFÉ 🎉, isn't it?", label) for text, label in labelled(120)]
        rows[7] = ("A long one " + "film " * 3000, "neg")
        path = write("a.jsonl", [{"text": text, "label": label} for text, label in rows])
        prepared(path, bert_folder, tmp_path / "out", options=PrepareOptions(overlong="window"))
        for split in ("validation", "test"):
            kept, places = open_texts(tmp_path / "out", split), open_array(tmp_path / "out", f"{split}.rows")
            assert kept is not None
            assert [kept[at] for at in range(len(kept))] == [
                rows[int(row) - 1][0].strip()[:LONGEST_SHOWN] for row in places
            ]
        assert open_texts(tmp_path / "out", "train") is None

    def test_several_labels_are_a_table(self, write, bert_folder, tmp_path):
        sets = ([], ["a"], ["a", "b"], ["c"])
        rows = [{"text": text, "labels": sets[at % 4]} for at, text in enumerate(sentences(80))]
        prepared(write("a.jsonl", rows), bert_folder, tmp_path / "out")
        labels = open_array(tmp_path / "out", "train.labels")
        assert (labels.shape[1], labels.dtype) == (3, np.float32)
        numbers = open_array(tmp_path / "out", "train.rows")
        for row, number in zip(labels, numbers, strict=True):
            assert ["abc"[at] for at in np.flatnonzero(row)] == sets[(number - 1) % 4]

    def test_few_long_texts_are_truncated(self, write, bert_folder, tmp_path):
        rows = [*labelled(100), (" ".join(["film"] * 40), "pos")]
        _, done = prepared(write("a.csv", rows), bert_folder, tmp_path / "out")
        assert done.manifest.overlong == "truncate"
        assert (done.manifest.overlong_rows, done.manifest.overlong_lost_tokens) == (1, 10)
        assert "1.0%" in done.manifest.choices["overlong"].because

    def test_many_long_texts_are_read_in_windows(self, write, bert_folder, tmp_path):
        rows = [(f"{text} " * 5, label) for text, label in labelled(60)]
        found = survey(DataRequest(path=write("a.csv", rows)))  # like `train`, which has no tokenizer yet
        done = prepare(found.source, ModelTokenizer(bert_folder), tmp_path / "out")
        assert (done.manifest.overlong, done.manifest.overlong_lost_tokens) == ("window", 0)
        windows, tokens = open_array(tmp_path / "out", "train.windows"), open_tokens(tmp_path / "out", "train")
        assert windows[-1] == len(tokens)
        assert len(windows) == done.manifest.splits["train"].rows + 1
        assert tokens.lengths.max() == 32
        labels = open_array(tmp_path / "out", "train.labels")
        assert len(labels) == len(tokens)
        assert all(len(set(labels[start:end])) == 1 for start, end in itertools.pairwise(windows))

    def test_windows_cover_a_text_and_are_bounded(self):
        body = list(range(100))
        pieces = list(prepare_classify.windows(body, 16))
        assert sorted({token for piece in pieces for token in piece}) == body
        assert all(len(piece) <= 16 for piece in pieces)
        assert len(list(prepare_classify.windows(list(range(10_000)), 16))) == prepare_classify.MOST_WINDOWS

    @pytest.mark.parametrize(("length", "allowed"), [(64, 32), (3, 8)])
    def test_an_invalid_length_is_refused(self, write, bert_folder, tmp_path, length, allowed):
        with pytest.raises(RequestError) as caught:
            prepared(
                write("a.csv", labelled(60)), bert_folder, tmp_path / "out", options=PrepareOptions(max_length=length)
            )
        assert (caught.value.action.setting, caught.value.action.value) == ("max_length", allowed)


class TestCausal:
    ROWS = tuple({"instruction": text, "input": "", "output": f"answer {at}"} for at, text in enumerate(sentences(60)))

    def test_only_answers_and_their_end_are_learned(self, write, chat_folder, tmp_path):
        _, done = prepared(write("a.jsonl", self.ROWS), chat_folder, tmp_path / "out")
        tokens, flags = open_tokens(tmp_path / "out", "train"), open_array(tmp_path / "out", "train.learn")
        assert len(flags) == len(tokens.tokens)
        tokenizer = ModelTokenizer(chat_folder).tokenizer
        numbers = open_array(tmp_path / "out", "train.rows")
        for at in range(len(tokens)):
            flag = flags[tokens.starts[at] : tokens.starts[at + 1]]
            text = tokenizer.decode(tokens[at][flag == 1].tolist(), skip_special_tokens=False)
            assert text == f"answer {numbers[at] - 1}<|end|>"
        assert done.manifest.splits["train"].learned_tokens == int(flags.sum())

    def test_question_ends_are_not_learned_despite_pad_ids(self, write, chat_folder, tmp_path):
        prepared(write("a.jsonl", self.ROWS), chat_folder, tmp_path / "out")
        tokens, flags = open_tokens(tmp_path / "out", "train"), open_array(tmp_path / "out", "train.learn")
        end = ModelTokenizer(chat_folder).id_of("<|end|>")[0]
        ends = flags[: tokens.starts[1]][tokens[0] == end]
        assert ends.tolist() == [0, 0, 1]  # system, user, assistant

    def test_prompts_that_leave_no_room_for_answers_are_refused(self, write, chat_folder, tmp_path):
        with pytest.raises(RequestError) as caught:
            prepared(write("a.jsonl", self.ROWS), chat_folder, tmp_path / "out", options=PrepareOptions(max_length=16))
        assert caught.value.setting == "max_length"
        assert not (tmp_path / "out").exists()

    def test_single_rows_without_an_answer_left_are_listed(self, write, chat_folder, tmp_path):
        rows = [*self.ROWS, {"instruction": "long " * 200, "input": "", "output": "short"}]
        _, done = prepared(write("a.jsonl", rows), chat_folder, tmp_path / "out", max_bad_share=0.1)
        assert done.manifest.bad_row_count == 1
        assert [(one.row, one.kind) for one in done.manifest.bad_rows] == [(61, "long-prompt")]

    def test_plain_text_is_learned_whole_in_pieces(self, write, chat_folder, tmp_path):
        text = "\n\n".join(" ".join(sentences(20, seed=number)) for number in range(30))
        _, done = prepared(write("a.txt", text), chat_folder, tmp_path / "out", options=PrepareOptions(max_length=100))
        tokens = open_tokens(tmp_path / "out", "train")
        assert tokens.lengths.max() == 100
        assert open_array(tmp_path / "out", "train.learn").all()
        assert done.manifest.splits["train"].rows == len(tokens)

    def test_flags_follow_spans(self):
        assert learned([0, 2, 4, 6, 8, 10], [(2, 5), (8, 9)]) == bytearray([0, 1, 1, 0, 1, 0])
        assert learned([0, 1], []) == bytearray(2)


class TestTowers:
    def test_pairs_become_queries_a_corpus_and_judgments(self, write, bert_folder, tmp_path):
        queries, passages = sentences(60), sentences(60, seed=1)
        rows = [{"query": queries[at], "pos": [passages[at]], "neg": [passages[(at + 1) % 60]]} for at in range(60)]
        _, done = prepared(write("a.jsonl", rows), bert_folder, tmp_path / "out")
        out = tmp_path / "out"
        corpus = texts_of(out, "corpus", bert_folder)
        assert len(corpus) == len(set(corpus)) == 60
        for split in done.manifest.splits:
            asked = texts_of(out, split, bert_folder)
            for query, passage, score in open_array(out, f"{split}.qrels"):
                at = queries.index(asked[query])
                assert (corpus[passage], score) == (passages[at], 1)
        asked = texts_of(out, "train", bert_folder)
        for query, passage in open_array(out, "train.negatives"):
            assert corpus[passage] == passages[(queries.index(asked[query]) + 1) % 60]
        assert not has_array(out, "corpus.groups")

    def test_hard_negatives_from_a_separate_file(self, write, bert_folder, tmp_path):
        queries, passages = sentences(60), sentences(60, seed=1)
        near = write("near.jsonl", [{"query": query, "negatives": ["quite new film"]} for query in queries])
        rows = [{"query": query, "positive": passage} for query, passage in zip(queries, passages, strict=True)]
        _, done = prepared(write("a.jsonl", rows), bert_folder, tmp_path / "out", negatives=near)
        negatives = open_array(tmp_path / "out", "train.negatives")
        assert len(negatives) == done.manifest.splits["train"].rows
        assert set(negatives[:, 1]) == {60}
        assert "near-misses" in done.manifest.choices

    def test_hard_negatives_outside_the_data_are_refused(self, write, bert_folder, tmp_path):
        near = write("near.jsonl", [{"query": "never asked", "negatives": ["film"]}])
        rows = [{"query": query, "positive": query + " film"} for query in sentences(60)]
        with pytest.raises(RequestError, match=r"near\.jsonl"):
            prepared(write("a.jsonl", rows), bert_folder, tmp_path / "out", negatives=near)

    def test_passages_of_an_article_ask_for_each_other(self, write, bert_folder, tmp_path):
        rows = [{"article_id": f"a{at // 4}", "text": text} for at, text in enumerate(sentences(160))]
        prepared(write("a.jsonl", rows), bert_folder, tmp_path / "out")
        out = tmp_path / "out"
        groups, corpus = open_array(out, "corpus.groups"), texts_of(out, "corpus", bert_folder)
        for split in ("train", "validation"):
            asked, qrels = texts_of(out, split, bert_folder), open_array(out, f"{split}.qrels")
            for query, passage, _ in qrels:
                own = corpus.index(asked[query])
                assert own != passage
                assert groups[own] == groups[passage]
            answers = np.bincount(qrels[:, 0])
            assert set(answers) == ({1} if split == "train" else {3})

    def test_beir_folder_is_prepared(self, write, bert_folder, tmp_path):
        texts = sentences(80)
        write(
            "d/corpus.jsonl", [{"_id": f"p{at}", "text": text, "article_id": at // 4} for at, text in enumerate(texts)]
        )
        write("d/queries.jsonl", [{"_id": f"q{at}", "text": f"{text} 7"} for at, text in enumerate(texts)])
        write(
            "d/qrels/train.tsv", "query-id\tcorpus-id\tscore\n" + "".join(f"q{at}\tp{at}\t1\n" for at in range(2, 70))
        )
        write(
            "d/qrels/test.tsv", "query-id\tcorpus-id\tscore\n" + "".join(f"q{at}\tp{at}\t1\n" for at in range(70, 80))
        )
        _, done = prepared(tmp_path / "d", bert_folder, tmp_path / "out")
        out = tmp_path / "out"
        corpus = texts_of(out, "corpus", bert_folder)
        assert corpus == texts
        for split in done.manifest.splits:
            asked = texts_of(out, split, bert_folder)
            for query, passage, _ in open_array(out, f"{split}.qrels"):
                assert asked[query] == f"{corpus[passage]} 7"
        assert open_array(out, "corpus.groups").tolist()[:5] == [open_array(out, "corpus.groups")[0]] * 4 + [
            open_array(out, "corpus.groups")[4]
        ]

    def test_vectors_are_prepared(self, tmp_path):
        draws = np.random.default_rng(0)
        queries, passages = (
            draws.normal(size=(300, 4)).astype(np.float32),
            draws.normal(size=(300, 6)).astype(np.float32),
        )
        queries[7] = 0
        np.savez(tmp_path / "a.npz", queries=queries, passages=passages, article_ids=np.arange(300) // 2)
        done = prepare(detect(DataRequest(path=tmp_path / "a.npz")), None, tmp_path / "out")
        out = tmp_path / "out"
        assert done.manifest.form == "vectors"
        corpus = open_array(out, "corpus.vectors")
        assert corpus.shape == (299, 6)
        assert len(open_array(out, "corpus.groups")) == 299
        for split in done.manifest.splits:
            held, rows = open_array(out, f"{split}.vectors"), open_array(out, f"{split}.rows")
            for (query, passage, _), row in zip(open_array(out, f"{split}.qrels"), rows, strict=True):
                assert np.array_equal(held[query], queries[row - 1])
                assert np.array_equal(corpus[passage], passages[row - 1])

    def test_vectors_of_several_files(self, tmp_path):
        rng = np.random.default_rng(0)
        made = {}
        for name, rows in (("train", 90), ("validation", 11)):
            made[name] = rng.normal(size=(rows, 4)).astype(np.float32), rng.normal(size=(rows, 6)).astype(np.float32)
            np.savez(tmp_path / f"{name}.npz", queries=made[name][0], passages=made[name][1])
        near = tmp_path / "near.jsonl"
        near.write_text('{"query": 2, "negatives": [95]}\n')
        request = DataRequest(
            path=tmp_path / "train.npz", validation=tmp_path / "validation.npz", test_share=0, negatives=near
        )
        done = prepare(detect(request), None, tmp_path / "out")
        assert {name: size.rows for name, size in done.manifest.splits.items()} == {"train": 90, "validation": 11}
        corpus = open_array(tmp_path / "out", "corpus.vectors")
        for split, (queries, passages) in made.items():
            held, rows = open_array(tmp_path / "out", f"{split}.vectors"), open_array(tmp_path / "out", f"{split}.rows")
            assert rows.tolist() == list(range(1, len(queries) + 1))
            for query, passage, _ in open_array(tmp_path / "out", f"{split}.qrels"):
                assert np.array_equal(held[query], queries[query])
                assert np.array_equal(corpus[passage], passages[query])
        assert open_array(tmp_path / "out", "train.negatives").tolist() == [[2, 95]]


class TestWholeOrAbsent:
    def test_the_same_data_is_not_prepared_twice(self, write, bert_folder, tmp_path):
        path, cache = write("a.csv", labelled(80)), tmp_path / "cache"
        prepared(path, bert_folder, tmp_path / "run1", cache=cache)
        _, again = prepared(write("copy.csv", labelled(80)), bert_folder, tmp_path / "run2", cache=cache)
        assert again.is_reused
        assert (tmp_path / "run1/train.tokens.npy").samefile(tmp_path / "run2/train.tokens.npy")
        _, third = prepared(path, bert_folder, tmp_path / "run2", cache=cache)
        assert third.is_reused

    @pytest.mark.parametrize("change", [{"seed": 1}, {"options": PrepareOptions(max_length=20)}, {"rows": 81}])
    def test_changed_settings_repeat_the_preparation(self, write, bert_folder, tmp_path, change):
        cache = tmp_path / "cache"
        _, first = prepared(write("a.csv", labelled(80)), bert_folder, tmp_path / "run", cache=cache)
        path = write("a.csv", labelled(change.pop("rows", 80)))
        _, second = prepared(path, bert_folder, tmp_path / "run", cache=cache, **change)
        assert not second.is_reused
        assert second.manifest.fingerprint != first.manifest.fingerprint
        assert len(list(cache.iterdir())) == 2

    def test_run_survives_a_deleted_cache(self, write, bert_folder, tmp_path):
        prepared(write("a.csv", labelled(80)), bert_folder, tmp_path / "run", cache=tmp_path / "cache")
        for path in (tmp_path / "cache").rglob("*.*"):
            path.unlink()
        assert read_manifest(tmp_path / "run")

    def test_a_preparation_that_broke_off_leaves_nothing(self, write, bert_folder, tmp_path):
        def stop(*_):
            raise KeyboardInterrupt

        path = write("a.csv", labelled(80))
        with pytest.raises(KeyboardInterrupt):
            prepared(path, bert_folder, tmp_path / "runs" / "out", on_progress=stop_when_tokenizing(stop))
        assert not list((tmp_path / "runs").iterdir())

    def test_the_draft_of_a_killed_process_is_removed(self, write, bert_folder, tmp_path):
        draft = tmp_path / "runs" / ".out.draft-999999999"
        draft.mkdir(parents=True)
        (draft / "train.tokens.npy").write_bytes(b"half")
        prepared(write("a.csv", labelled(80)), bert_folder, tmp_path / "runs" / "out")
        assert [path.name for path in (tmp_path / "runs").iterdir()] == ["out"]

    @pytest.mark.parametrize("damage", ["manifest gone", "file cut", "file gone", "other format"])
    def test_a_damaged_folder_is_prepared_again(self, write, bert_folder, tmp_path, damage):
        path, out = write("a.csv", labelled(80)), tmp_path / "out"
        prepared(path, bert_folder, out)
        if damage == "manifest gone":
            (out / "manifest.json").unlink()
        elif damage == "file gone":
            (out / "train.labels.npy").unlink()
        elif damage == "file cut":
            (out / "train.tokens.npy").write_bytes((out / "train.tokens.npy").read_bytes()[:-4])
        else:
            manifest = json.loads((out / "manifest.json").read_text())
            (out / "manifest.json").write_text(json.dumps({**manifest, "format": 0}))
        assert read_manifest(out) is None
        with pytest.raises(RequestError, match="incomplete"):
            require_manifest(out)
        _, again = prepared(path, bert_folder, out)
        assert not again.is_reused
        assert read_manifest(out)

    def test_a_users_folder_is_never_removed(self, write, bert_folder, tmp_path):
        write("out/thesis.docx", "precious")
        with pytest.raises(RequestError, match="not prepared"):
            prepared(write("a.csv", labelled(80)), bert_folder, tmp_path / "out")
        assert (tmp_path / "out/thesis.docx").exists()

    def test_a_full_disk_leaves_nothing(self, write, bert_folder, tmp_path, monkeypatch):
        def full(self, values):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(ArrayWriter, "add", full)
        with pytest.raises(MachineError, match="disk full") as caught:
            prepared(write("a.csv", labelled(80)), bert_folder, tmp_path / "runs" / "out")
        assert caught.value.exit_code == 3
        assert not list((tmp_path / "runs").iterdir())


def test_full_quota_does_not_fall_back_to_copying(tmp_path, monkeypatch):
    def full(source, target):
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    for name in ("cache", "run"):
        (tmp_path / name).mkdir()
    (tmp_path / "cache" / "rows.npy").write_bytes(b"rows")
    monkeypatch.setattr(os, "link", full)
    with pytest.raises(MachineError, match="disk full") as caught:
        build_whole(tmp_path / "run" / "prepared", lambda draft: link_files(tmp_path / "cache", draft))
    assert caught.value.found == "Disk quota exceeded"


def stop_when_tokenizing(stop):
    return lambda what, *_: stop() if what == "tokenizing" else None
