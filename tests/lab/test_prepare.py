"""Prepares real files in real processes: killed half-way, beside transformers, and for the engine to train on."""

import hashlib
import json
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from holdfast.data.data_request import DataRequest
from holdfast.data.prepare import PrepareOptions, prepare
from holdfast.data.shards import open_array, open_tokens, read_manifest
from holdfast.data.survey_dataset import detect
from holdfast.data.tokenizer import ModelTokenizer
from tests.tiny import tiny_attempt, tiny_bert, tiny_llama

CHAT = (
    "{% for message in messages %}[{{ message.role }}] {{ message.content }} w2\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)
PREPARE = """
import sys
from pathlib import Path
from holdfast.data.prepare import prepare
from holdfast.data.data_request import DataRequest
from holdfast.data.survey_dataset import detect, survey
from holdfast.data.tokenizer import ModelTokenizer
tokens = ModelTokenizer(Path(sys.argv[2]))
found = survey(DataRequest(path=Path(sys.argv[1])), tokens)
print("surveyed", flush=True)
prepare(found.source, tokens, Path(sys.argv[3]), cache=Path(sys.argv[4]))
assert not {"torch", "transformers"} & set(sys.modules)
"""


def texts(count: int, seed: int = 0, words: int = 12) -> list[str]:
    draws = random.Random(seed)
    return [" ".join(f"w{draws.randrange(3, 119)}" for _ in range(words)) for _ in range(count)]


def write_rows(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def labelled(path: Path, count: int) -> Path:
    return write_rows(path, [{"text": text, "label": f"c{int(text.split()[0][1:]) % 3}"} for text in texts(count)])


@pytest.fixture(scope="module")
def bert(tmp_path_factory) -> Path:
    return tiny_bert(tmp_path_factory.mktemp("models") / "bert")


@pytest.mark.lab
class TestKilled:
    def start(self, data: Path, model: Path, out: Path, cache: Path) -> subprocess.Popen:
        command = [sys.executable, "-c", PREPARE, str(data), str(model), str(out), str(cache)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def test_killed_preparation_leaves_no_complete_result(self, bert, tmp_path):
        data = labelled(tmp_path / "a.jsonl", 30_000)
        whole = self.start(data, bert, tmp_path / "whole", tmp_path / "cache1")
        assert whole.stdout.readline() == b"surveyed\n"
        began = time.monotonic()
        _, errors = whole.communicate(timeout=300)
        took = time.monotonic() - began
        assert whole.returncode == 0, errors.decode()
        draws, killed = random.Random(7), 0
        for _ in range(4):
            process = self.start(data, bert, tmp_path / "out", tmp_path / "cache2")
            assert process.stdout.readline() == b"surveyed\n"
            time.sleep(draws.random() * took * 0.8)
            process.send_signal(signal.SIGKILL)
            process.communicate()
            if process.returncode == 0:  # faster than the first one, on a machine with other work
                shutil.rmtree(tmp_path / "out")
                shutil.rmtree(tmp_path / "cache2")
                continue
            killed += 1
            assert read_manifest(tmp_path / "out") is None
        assert killed
        last = self.start(data, bert, tmp_path / "out", tmp_path / "cache2")
        assert last.communicate(timeout=300)[1] == b""
        assert sums(tmp_path / "out") == sums(tmp_path / "whole")
        assert [path.name for path in (tmp_path / "cache2").iterdir()] == [read_manifest(tmp_path / "out").fingerprint]


def sums(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


@pytest.mark.lab
class TestBesideTransformers:
    def test_tokens_are_the_same_cut_ones_too(self, bert, tmp_path):
        from transformers import AutoTokenizer

        data = labelled(tmp_path / "a.jsonl", 200)
        tokens, options = ModelTokenizer(bert), PrepareOptions(max_length=8, overlong="truncate")
        prepare(detect(DataRequest(path=data)), tokens, tmp_path / "out", options=options)
        theirs = AutoTokenizer.from_pretrained(bert)
        made, rows = open_tokens(tmp_path / "out", "train"), open_array(tmp_path / "out", "train.rows")
        lines = data.read_text().splitlines()
        for at, row in enumerate(rows):
            text = json.loads(lines[row - 1])["text"]
            assert made[at].tolist() == theirs(text, truncation=True, max_length=8)["input_ids"]

    def test_chats_are_the_same(self, bert, tmp_path):
        from transformers import AutoTokenizer

        folder = tmp_path / "model"
        folder.mkdir()
        for path in bert.glob("*.json"):
            (folder / path.name).write_bytes(path.read_bytes())
        (folder / "chat_template.jinja").write_text(CHAT)
        conversations = [
            [
                {"role": "system", "content": "w9"},
                {"role": "user", "content": one},
                {"role": "assistant", "content": two},
                {"role": "user", "content": two},
                {"role": "assistant", "content": one},
            ]
            for one, two in zip(texts(60, words=4), texts(60, seed=1, words=5), strict=True)
        ]
        data = write_rows(tmp_path / "a.jsonl", [{"messages": one} for one in conversations])
        tokens = ModelTokenizer(folder)
        prepare(detect(DataRequest(path=data)), tokens, tmp_path / "out")
        theirs = AutoTokenizer.from_pretrained(folder)
        made, rows = open_tokens(tmp_path / "out", "train"), open_array(tmp_path / "out", "train.rows")
        flags = open_array(tmp_path / "out", "train.learn")
        for at, row in enumerate(rows):
            conversation = conversations[row - 1]
            assert made[at].tolist() == theirs.apply_chat_template(conversation, tokenize=True, return_dict=False)
            learned = made[at][flags[made.starts[at] : made.starts[at + 1]] == 1]
            answers = " ".join(f"{message['content']} w2" for message in conversation if message["role"] == "assistant")
            assert learned.tolist() == tokens.encode([answers])[0]


@pytest.mark.lab
class TestTrained:
    def train(self, run: Path, model: Path | str, prepared: Path, task: str) -> dict[str, dict[str, float]]:
        attempt = tiny_attempt(run, model, prepared, task=task, epochs=1)
        command = [sys.executable, "-m", "holdfast.engine", str(attempt)]
        done = subprocess.run(command, capture_output=True, timeout=300)
        assert done.returncode == 0, done.stderr.decode()
        return json.loads((run / "metrics.json").read_text())

    def prepared(self, data: Path, model: Path, out: Path) -> Path:
        tokens = ModelTokenizer(model)
        return prepare(detect(DataRequest(path=data)), tokens, out).folder

    def test_classify(self, bert, tmp_path):
        folder = self.prepared(labelled(tmp_path / "a.jsonl", 200), bert, tmp_path / "prepared")
        metrics = self.train(tmp_path / "run", bert, folder, "classify")
        assert "accuracy" in metrics["validation"]
        assert "accuracy" in metrics["test"]

    def test_causal(self, tmp_path):
        model = tiny_llama(tmp_path / "model")
        rows = [
            {"instruction": one, "output": two} for one, two in zip(texts(120, words=4), texts(120, 1, 3), strict=True)
        ]
        folder = self.prepared(write_rows(tmp_path / "a.jsonl", rows), model, tmp_path / "prepared")
        assert "perplexity" in self.train(tmp_path / "run", model, folder, "causal")["validation"]

    def test_two_tower(self, bert, tmp_path):
        rows = [
            {"query": one, "positive": two, "negative": three}
            for one, two, three in zip(texts(120, words=4), texts(120, 1), texts(120, 2), strict=True)
        ]
        folder = self.prepared(write_rows(tmp_path / "a.jsonl", rows), bert, tmp_path / "prepared")
        assert "ndcg@10" in self.train(tmp_path / "run", bert, folder, "two-tower")["validation"]

    def test_two_tower_over_vectors(self, tmp_path):
        draws = np.random.default_rng(0)
        passages = draws.normal(size=(200, 8)).astype(np.float32)
        np.savez(tmp_path / "a.npz", queries=passages + 0.1 * draws.normal(size=(200, 8)), passages=passages)
        folder = prepare(detect(DataRequest(path=tmp_path / "a.npz")), None, tmp_path / "prepared").folder
        assert "ndcg@10" in self.train(tmp_path / "run", "", folder, "two-tower")["validation"]


@pytest.mark.lab
class TestCommand:
    def run(self, *args: str) -> subprocess.CompletedProcess:
        command = [sys.executable, "-c", "from holdfast.cli import main; main()", "survey", *args]
        return subprocess.run(command, capture_output=True, timeout=300)

    def test_json_is_the_only_output(self, tmp_path):
        done = self.run(str(labelled(tmp_path / "a.jsonl", 100)), "--json")
        assert (done.returncode, done.stderr) == (0, b"")
        assert json.loads(done.stdout)["rows"] == 100

    def test_untrainable_data_exits_with_2(self, tmp_path):
        (tmp_path / "a.csv").write_text("text,label\n")
        done = self.run(str(tmp_path / "a.csv"))
        assert (done.returncode, done.stdout) == (2, b"")
        assert done.stderr.startswith(b"error: a.csv has no rows")

    def test_command_line_imports_stay_light(self, tmp_path):
        code = (
            "import sys; sys.argv[0] = 'holdfast'\nfrom holdfast.cli import main\n"
            "try:\n    main()\n"
            "finally:\n    assert not {'torch', 'transformers', 'tokenizers', 'polars'} & set(sys.modules)"
        )
        data = str(labelled(tmp_path / "a.jsonl", 100))
        done = subprocess.run([sys.executable, "-c", code, "survey", data], capture_output=True, timeout=300)
        assert done.returncode == 0, done.stderr.decode()
