"""Asks sentence-transformers itself: it loads what we export, embeds the same, learns the same and measures the same.

Sets up its environment in the user's cache folder at the first call; HOLDFAST_PEER_PYTHON names one that is there.
"""

import importlib.util
import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from holdfast.data.shards import open_array, open_tokens
from holdfast.engine.attempt_settings import AttemptSettings
from holdfast.engine.data_order import DataOrder
from holdfast.engine.optim import clip_gradients, make_optimizer
from holdfast.engine.tasks import load_task
from tests.tiny import tiny_bert, tiny_questions

pytestmark = [pytest.mark.wheels, pytest.mark.timeout(900)]

STEPS = 5
SCRIPT = """
import json, sys
import numpy as np, torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import evaluation, losses
torch.set_num_threads(1)
asked = json.load(open(sys.argv[1]))
told = {"embeddings": {}, "losses": {}}
for side, texts in asked["embed"].items():
    model = SentenceTransformer(asked["exported"] + side, device="cpu")
    told["embeddings"][side] = model.encode(texts).tolist()
    told["length"] = model.max_seq_length
for name, make in (
    ("plain", losses.MultipleNegativesRankingLoss),
    ("cached", lambda model: losses.CachedMultipleNegativesRankingLoss(model, mini_batch_size=3)),
):
    model = SentenceTransformer(asked["model"], device="cpu").train()
    loss_of, optimizer = make(model), torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    told["losses"][name] = []
    for queries, passages in asked["steps"]:
        loss = loss_of([model.preprocess(queries), model.preprocess(passages)], None)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        told["losses"][name].append(loss.item())
relevant = {query: set(passages) for query, passages in asked["relevant"].items()}
evaluator = evaluation.InformationRetrievalEvaluator(
    asked["queries"], asked["corpus"], relevant, accuracy_at_k=[1], precision_recall_at_k=[1, 5, 10, 100], name="own")
told["metrics"] = evaluator(SentenceTransformer(asked["exported"], device="cpu"))
print("TOLD " + json.dumps(told))
"""


@pytest.fixture(scope="module")
def python() -> str:
    path = Path(__file__).parents[2] / "perf" / "peers.py"
    spec = importlib.util.spec_from_file_location("peers", path)
    peers = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(peers)
    return peers.peer_python("sentence-transformers", "sentence-transformers==6.2.0", "accelerate", "datasets")


def words(tokens) -> str:
    return " ".join(f"w{token}" for token in tokens)


def calm(model: Path) -> Path:
    config = json.loads((model / "config.json").read_text())
    none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (model / "config.json").write_text(json.dumps(config | none))
    return model


def test_sentence_transformers_agrees(tmp_path, python):
    model, prepared = calm(tiny_bert(tmp_path / "model")), tiny_questions(tmp_path / "prepared", near_misses=False)
    settings = AttemptSettings(
        task="two-tower",
        model=str(model),
        prepared=str(prepared),
        run="",
        batch_size=16,
        lr=1e-3,
        weight_decay=0.0,
        micro_tokens=100,
        seed=0,  # no step holds both a passage and its copy, which they do not mask
        options={"same_article": "negative"},
    )
    task = load_task(settings)
    corpus, queries, qrels = (
        open_tokens(prepared, "corpus"),
        open_tokens(prepared, "train"),
        open_array(prepared, "train.qrels"),
    )
    order, optimizer = DataOrder(task.lengths, 16, settings.seed), make_optimizer(task.model, settings)
    losses, steps = [], []
    for step in range(STEPS):
        examples = order.examples(step)
        assert not {4, 5} <= set(examples.tolist())
        steps.append(
            [[words(queries[at]) for at in qrels[examples, 0]], [words(corpus[at]) for at in qrels[examples, 1]]]
        )
        losses.append(float(task.forward_backward(step, examples)))
        clip_gradients(task.model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    task.export(tmp_path / "exported")
    asked_queries, judged = open_tokens(prepared, "validation"), open_array(prepared, "validation.qrels")
    texts = [words(corpus[at]) for at in range(20)]
    asked = {
        "model": str(model),
        "exported": str(tmp_path / "exported"),
        "embed": {"": texts},
        "steps": steps,
        "corpus": {str(at): words(corpus[at]) for at in range(len(corpus))},
        "queries": {str(at): words(asked_queries[at]) for at in range(len(asked_queries))},
        "relevant": {str(query): [str(passage)] for query, passage, _ in judged.tolist()},
    }
    told = ask(tmp_path, python, asked)
    task.model.eval()
    with torch.no_grad():
        ours = task.model.towers[0]([corpus[at] for at in range(20)]).numpy()
    np.testing.assert_allclose(np.array(told["embeddings"][""]), ours, atol=1e-5)
    assert told["length"] == 64
    assert told["losses"]["plain"] == pytest.approx(losses, rel=1e-3)
    assert told["losses"]["cached"] == pytest.approx(losses, rel=1e-3)
    metrics = task.evaluate("validation")
    theirs = {name.removeprefix("own_cosine_"): value for name, value in told["metrics"].items()}
    names = {"hit@1": "accuracy@1", **{name: name for name in ("mrr@10", "ndcg@10", "map@100")}}
    names |= {f"recall@{k}": f"recall@{k}" for k in (1, 5, 10, 100)}
    for name, their_name in names.items():
        assert metrics[name] == pytest.approx(theirs[their_name]), name


def test_separate_towers_load_each_by_itself(tmp_path, python):
    model, prepared = tiny_bert(tmp_path / "model"), tiny_questions(tmp_path / "prepared")
    settings = AttemptSettings(
        task="two-tower", model=str(model), prepared=str(prepared), run="", options={"towers": "separate"}
    )
    task = load_task(settings)
    for at, weight in enumerate(task.model.towers[1].parameters()):
        weight.data.add_(0.01 * (at % 3))
    task.export(tmp_path / "exported")
    corpus = open_tokens(prepared, "corpus")
    texts = [words(corpus[at]) for at in range(20)]
    asked = {"exported": str(tmp_path / "exported"), "embed": {"/query": texts, "/passage": texts}}
    told = ask(tmp_path, python, asked, SCRIPT[: SCRIPT.index("for name, make")] + 'print("TOLD " + json.dumps(told))')
    task.model.eval()
    for tower, side in zip(task.model.towers, ("/query", "/passage"), strict=True):
        with torch.no_grad():
            ours = tower([corpus[at] for at in range(20)]).numpy()
        np.testing.assert_allclose(np.array(told["embeddings"][side]), ours, atol=1e-5)


def ask(folder: Path, python: str, asked: dict, script: str = SCRIPT) -> dict:
    (folder / "asked.json").write_text(json.dumps(asked))
    (folder / "script.py").write_text(script)
    command = [python, str(folder / "script.py"), str(folder / "asked.json")]
    found = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert found.returncode == 0, found.stderr
    return json.loads(
        next(line for line in found.stdout.splitlines() if line.startswith("TOLD ")).removeprefix("TOLD ")
    )
