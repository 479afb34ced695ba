"""Two towers trained with MLX learn what they learn with torch, and are folders of sentence-transformers."""

import numpy as np
import pytest
import torch
from transformers import AutoModel

from holdfast.core.errors import RequestError
from holdfast.core.events import BackendChanged, EpochStarted
from holdfast.core.runfolder import model_folder
from holdfast.engine.attempt_settings import AttemptSettings
from holdfast.engine.corpus_search import search
from holdfast.engine.tasks import load_task
from tests.tiny import tiny_bert, tiny_questions, tiny_vectors
from tests.unit.engine.mlx.backends import losses, norms, train, without_dropout

mx = pytest.importorskip("mlx.core")

from holdfast.engine.mlx.mlx_two_tower import search_corpus  # noqa: E402  (after the question above)

TASK = {"task": "two-tower", "max_steps": 6, "eval_steps": 6}
CASES = {
    "shared": {},
    "cached": {"micro_tokens": 120},
    "separate": {"options": {"towers": "separate"}},
    "separate, cached": {"options": {"towers": "separate", "symmetric": True}, "micro_tokens": 90},
    "scale": {"options": {"learn_temperature": True, "symmetric": True}},
    "mined": {"options": {"mining": {"from_epoch": 0}, "negatives": 0}},
}


@pytest.mark.parametrize("settings", CASES.values(), ids=CASES)
def test_towers_learn_as_with_torch(settings, tmp_path):
    model, prepared = without_dropout(tiny_bert(tmp_path / "model")), tiny_questions(tmp_path / "prepared")
    found = {
        device: train(tmp_path / device, model, prepared, device=device, **TASK | settings) for device in ("cpu", "mlx")
    }
    assert losses(found["mlx"]) == pytest.approx(losses(found["cpu"]), rel=1e-4)
    assert norms(found["mlx"]) == pytest.approx(norms(found["cpu"]), rel=2e-3)
    made = [[event.made for event in one if isinstance(event, EpochStarted)] for one in found.values()]
    assert made[0] == made[1]


def test_dropout_is_kept_by_the_cached_loss(tmp_path):
    model, prepared = tiny_bert(tmp_path / "model"), tiny_questions(tmp_path / "prepared")
    whole = losses(train(tmp_path / "whole", model, prepared, device="mlx", **TASK))
    cached = losses(train(tmp_path / "cached", model, prepared, device="mlx", micro_tokens=100, **TASK))
    assert cached == pytest.approx(whole, rel=1e-4)


@pytest.mark.parametrize("towers", ["shared", "separate"])
def test_finished_towers_are_read_by_transformers_and_torch(towers, tmp_path):
    model, prepared = tiny_bert(tmp_path / "model"), tiny_questions(tmp_path / "prepared")
    train(tmp_path / "run", model, prepared, device="mlx", options={"towers": towers}, **TASK)
    folder = model_folder(tmp_path / "run")
    again = {"task": "two-tower", "model": str(folder), "prepared": str(prepared), "run": "unused"}
    tasks = [
        load_task(AttemptSettings(**again, device=device, options={"towers": towers})) for device in ("cpu", "mlx")
    ]
    assert tasks[1].evaluate("validation") == pytest.approx(tasks[0].evaluate("validation"), abs=1e-6)
    body = AutoModel.from_pretrained(folder / ("passage" if towers == "separate" else "")).eval()
    passage = tasks[1]._pairs.corpus[3].astype(np.int64)
    with torch.no_grad():
        states = body(torch.from_numpy(passage)[None]).last_hidden_state[0]
    expected = torch.nn.functional.normalize(states.mean(0), dim=0).numpy()
    np.testing.assert_allclose(tasks[1]._embed_all(tasks[1]._pairs.corpus, -1)[3], expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(("first", "then"), [("cpu", "mlx"), ("mlx", "cpu")])
def test_mined_run_moves_between_backends(first, then, tmp_path):
    model, prepared = without_dropout(tiny_bert(tmp_path / "model")), tiny_questions(tmp_path / "prepared")
    wanted = {"task": "two-tower", "epochs": 2, "options": {"mining": {}}, "lr": 1e-4}
    run = tmp_path / "run"
    whole = losses(train(run, model, prepared, device=first, **wanted))
    newest = sorted((run / "checkpoints").glob("step-*"))[-1]
    for folder in (newest, run / "model"):
        folder.rename(folder.with_name(f"gone-{folder.name}"))
    continued = train(run, model, prepared, number=2, device=then, **wanted)
    assert any(isinstance(event, BackendChanged) for event in continued)
    assert losses(continued) == pytest.approx(whole[-len(losses(continued)) :], rel=1e-3)


def test_corpus_search_finds_what_torch_finds():
    draws = np.random.default_rng(0)
    queries, corpus = draws.normal(size=(40, 8)).astype(np.float32), draws.normal(size=(200, 8)).astype(np.float32)
    corpus[17] = corpus[3]  # equal scores
    hidden = [draws.integers(0, 200, 5) for _ in range(40)]
    scores, rows = search_corpus(queries, corpus, 20, hidden)
    expected = search(torch.from_numpy(queries), torch.from_numpy(corpus), 20, hidden)
    np.testing.assert_allclose(scores, expected[0].numpy(), rtol=1e-5)
    np.testing.assert_array_equal(rows, expected[1].numpy())


def test_vectors_are_refused(tmp_path):
    given = {
        "task": "two-tower",
        "model": str(tmp_path),
        "prepared": str(tiny_vectors(tmp_path / "v")),
        "run": "unused",
    }
    with pytest.raises(RequestError) as caught:
        load_task(AttemptSettings(**given, device="mlx"))
    assert caught.value.setting == "backend"
