"""Trains tiny models on real files and asks them from the shell, as a user does."""

import csv
import json
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from holdfast.core.records import PredictOptions
from holdfast.core.runfolder import model_folder
from holdfast.data.data_request import DataRequest
from holdfast.data.prepare import PrepareOptions, prepare
from holdfast.data.prepare_classify import windows
from holdfast.data.survey_dataset import survey
from holdfast.data.tokenizer import ModelTokenizer
from holdfast.engine.predict.predictor import load_predictor
from holdfast.runs.finished_model import find_model
from tests.tiny import tiny_attempt, tiny_bert, tiny_llama

pytestmark = pytest.mark.lab


def texts(count: int, seed: int = 0, longest: int = 90) -> list[str]:
    draws = random.Random(seed)
    return [" ".join(f"w{draws.randrange(3, 119)}" for _ in range(draws.randrange(3, longest))) for _ in range(count)]


def train(run: Path, model: Path, rows: list[dict], options: PrepareOptions | None = None, **settings: object) -> Path:
    """A finished run on some rows."""
    run.mkdir(parents=True)
    data = run / "data.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tokens = ModelTokenizer(model)
    found = survey(DataRequest(path=data), tokens)
    prepare(found.source, tokens, run / "prepared", options=options)
    attempt = tiny_attempt(run, model, run / "prepared", **{"task": found.facts.task, "epochs": 2, **settings})
    ended = subprocess.run([sys.executable, "-m", "holdfast.engine", str(attempt)], capture_output=True, timeout=600)
    assert ended.returncode == 0, ended.stderr[-2000:]
    return run


def ask(*arguments: object, given: str | None = None) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", "from holdfast.cli import main; main()", "predict", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, input=given, timeout=600)


def answers(*arguments: object, **kwargs: str) -> list[dict]:
    ended = ask(*arguments, "--json", **kwargs)
    assert ended.returncode == 0, ended.stderr
    found: list[dict] = json.loads(ended.stdout)["answers"]
    return found


@pytest.fixture(scope="module")
def bert(tmp_path_factory) -> Path:
    return tiny_bert(tmp_path_factory.mktemp("models") / "bert")


@pytest.fixture(scope="module")
def one_label(tmp_path_factory, bert) -> Path:
    rows = [{"text": text, "label": f"c{int(text.split()[0][1:]) % 3}"} for text in texts(120)]
    return train(tmp_path_factory.mktemp("one") / "run", bert, rows, PrepareOptions(overlong="truncate"))


def test_predicted_labels_match_transformers(one_label):
    asked = texts(20, seed=5)
    found = answers(one_label, *asked)
    folder = model_folder(one_label)
    model, tokenizer = AutoModelForSequenceClassification.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    temperature = json.loads((folder / "calibration.json").read_text())["temperature"]
    for text, said in zip(asked, found, strict=True):
        ids = tokenizer(text, truncation=True, max_length=64, return_tensors="pt")
        with torch.no_grad():
            wanted = torch.softmax(model(**ids).logits[0] / temperature, 0)
        assert said["predicted"] == model.config.id2label[int(wanted.argmax())]
        for label, chance in said["probabilities"].items():
            assert chance == pytest.approx(float(wanted[model.config.label2id[label]]), abs=2e-4)


def test_file_prediction_keeps_row_order(one_label, tmp_path):
    asked = texts(50, seed=6)
    with (tmp_path / "in.csv").open("w", newline="") as file:
        writer = csv.writer(file, delimiter=";")
        writer.writerow(["id", "text"])
        writer.writerows([at, "" if at == 7 else text] for at, text in enumerate(asked))
    ended = ask(one_label, tmp_path / "in.csv", "--out", tmp_path / "out.csv", "--all-labels")
    assert ended.returncode == 0, ended.stderr
    assert "49 rows answered" in ended.stdout
    assert "1 row" in ended.stderr
    rows = list(csv.DictReader((tmp_path / "out.csv").open()))
    assert [row["id"] for row in rows] == [str(at) for at in range(50)]
    assert rows[7]["predicted"] == ""
    assert {row["predicted"] for row in rows} <= {"", "c0", "c1", "c2"}
    for row in rows[:7]:
        assert sum(float(row[f"p(c{at})"]) for at in range(3)) == pytest.approx(1, abs=1e-3)
    alone = answers(model_folder(one_label), asked[3])[0]
    assert rows[3]["predicted"] == alone["predicted"]
    assert float(rows[3]["probability"]) == pytest.approx(alone["probability"], abs=2e-4)


@pytest.mark.full
def test_standard_input_is_predicted_line_by_line(one_label):
    found = answers(one_label, "-", given="w3 w4, w5\nw9 w8\n")
    assert [row["text"] for row in found] == ["w3 w4, w5", "w9 w8"]


@pytest.mark.full
def test_long_texts_are_predicted_in_windows(tmp_path, bert):
    rows = [{"text": text, "label": f"c{int(text.split()[0][1:]) % 2}"} for text in texts(60)]
    run = train(tmp_path / "run", bert, rows, PrepareOptions(max_length=16, overlong="window"))
    folder = model_folder(run)
    long = " ".join(["w5"] * 14 + ["w7"] * 40)
    job = find_model(run).job(PredictOptions(device="cpu"))
    scores = load_predictor(job).scores([long, "w5 w6"])
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    tokens = ModelTokenizer(folder)
    pieces = list(windows(tokens.encode([long])[0], 16))
    assert len(pieces) > 2
    with torch.no_grad():
        wanted = torch.cat([model(torch.tensor([piece])).logits for piece in pieces]).mean(0)
    assert scores[0] == pytest.approx(wanted.numpy(), abs=1e-5)


@pytest.mark.full
def test_each_label_has_its_own_probability(tmp_path, bert):
    rows = [{"text": text, "labels": [f"t{at}" for at in range(3) if f"w{at + 5}" in text]} for text in texts(150)]
    run = train(tmp_path / "run", bert, rows)
    (found,) = answers(run, "w5 w6 w7 w8")
    assert isinstance(found["predicted"], list)
    assert set(found["probabilities"]) == {"t0", "t1", "t2"}
    assert found["predicted"] == [name for name, chance in found["probabilities"].items() if chance > 0.5]


def test_predicting_process_never_imports_torch(one_label):
    code = (
        "import sys; from pathlib import Path; from holdfast.runs.prediction_inputs import PredictionInputs;"
        "from holdfast.core.records import PredictOptions;"
        "from holdfast.runs.finished_model import find_model; from holdfast.runs.prediction import predict;"
        "model = find_model(Path(sys.argv[1])); rows = PredictionInputs(model).texts(['w3']);"
        "print(list(predict(model, rows, PredictOptions())));"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(one_label)], check=True, capture_output=True, timeout=600)


@pytest.mark.full
def test_error_is_named(one_label, tmp_path):
    missing = ask(one_label, tmp_path / "none.csv")
    assert missing.returncode == 2
    assert "none.csv" in missing.stderr
    device = ask(one_label, "w3", "--device", "cuda")
    assert device.returncode == (0 if torch.cuda.is_available() else 3), device.stderr
    wrong = ask(one_label, "w3", "--out", tmp_path / "out.docx")
    assert wrong.returncode == 2
    assert "allowed endings" in wrong.stderr
    assert ask(one_label, " ").returncode == 2
    broken = tmp_path / "broken"
    shutil.copytree(model_folder(one_label), broken)
    whole = (broken / "model.safetensors").read_bytes()
    (broken / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    damaged = ask(broken, "w3")
    assert damaged.returncode == 2
    assert "cannot be loaded" in damaged.stderr


CHAT = (
    "{% for message in messages %}w1 {{ message.role }} {{ message.content }} w2 {% endfor %}"
    "{% if add_generation_prompt %}w1 assistant {% endif %}"
)


def test_language_model_answers_match_transformers(tmp_path):
    model = tiny_llama(tmp_path / "llama")
    (model / "chat_template.jinja").write_text(CHAT)
    rows = [{"instruction": text, "input": "", "output": "w7 w8 w9"} for text in texts(60, longest=12)]
    run = train(tmp_path / "run", model, rows)
    asked = texts(5, seed=9, longest=12)
    found = answers(run, *asked, "--max-new-tokens", 6)
    folder = model_folder(run)
    loaded, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    for text, said in zip(asked, found, strict=True):
        prompt = tokenizer(f"w1 user {text} w2 w1 assistant ", return_tensors="pt", add_special_tokens=False)
        wanted = loaded.generate(prompt.input_ids, max_new_tokens=6, do_sample=False, pad_token_id=0)
        new = wanted[0, prompt.input_ids.shape[1] :].tolist()
        new = new[: new.index(2)] if 2 in new else new
        assert said["answer"] == tokenizer.decode(new, skip_special_tokens=True).strip()
        assert said["tokens"] == len(new)


def test_search_matches_exact_search(tmp_path, bert):
    passages = texts(80, seed=3, longest=20)
    rows = [{"query": " ".join(text.split()[:4]), "positive": text} for text in passages]
    run = train(tmp_path / "run", bert, rows, task="two-tower")
    query = " ".join(passages[11].split()[1:4])
    found = answers(run, query, "--top", 3)[0]["found"]
    folder = model_folder(run)
    model, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)

    def embed(text: str) -> torch.Tensor:
        with torch.no_grad():
            hidden = model(tokenizer(text, return_tensors="pt").input_ids).last_hidden_state[0]
        return torch.nn.functional.normalize(hidden.mean(0), dim=0)

    distinct = list(dict.fromkeys(passages))
    scores = torch.stack([embed(text) for text in distinct]) @ embed(query)
    best, at = scores.topk(3)
    assert [one["text"] for one in found] == [distinct[int(row)] for row in at]
    assert [one["score"] for one in found] == pytest.approx(best.tolist(), abs=2e-4)
    assert len(list((run / "search").glob("*.safetensors"))) == 1
    assert answers(run, query, "--top", 3)[0]["found"] == found  # with the embeddings that were kept
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in distinct[:30]))
    other = answers(folder, query, "--corpus", corpus)[0]["found"]
    assert len(other) == 5
    assert {one["text"] for one in other} <= set(distinct[:30])
