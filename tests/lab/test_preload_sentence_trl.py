"""sentence-transformers and trl scripts, unmodified: after a kill the same weights; fallbacks still work."""

import hashlib
from pathlib import Path

import pytest

from holdfast.core.events import ChangeApplied, ChangeRefused, Resumed
from tests.lab.preloaded import SCRIPTS, Preloaded, at_step, has_library
from tests.tiny import tiny_bert, tiny_llama

pytestmark = [
    pytest.mark.lab,
    pytest.mark.full,
    pytest.mark.skipif(not has_library("sentence_transformers", "trl"), reason="needs sentence-transformers and trl"),
]
MAKERS = {"st_retrieval.py": tiny_bert, "trl_sft.py": tiny_llama}


@pytest.fixture(scope="module", params=sorted(MAKERS))
def script(request, tmp_path_factory) -> tuple[Path, Path]:
    return SCRIPTS / request.param, MAKERS[request.param](tmp_path_factory.mktemp("model"))


def weights(run: Path) -> str:
    return hashlib.sha256((run / "out/final/model.safetensors").read_bytes()).hexdigest()


def test_kill_in_second_epoch_keeps_identical_weights(script, tmp_path):
    Preloaded(tmp_path / "a", 1, *script, "out").finish()
    first = Preloaded(tmp_path / "b", 1, *script, "out", save_seconds=0)
    first.wait_until(at_step(10)).kill()
    second = Preloaded(tmp_path / "b", 2, *script, "out", resume=True).finish()
    assert second.events(Resumed)[0].step >= 9
    assert second.step() == 16
    assert weights(tmp_path / "a") == weights(tmp_path / "b")


def test_smaller_micro_batch_keeps_the_loss(script, tmp_path):
    path, model = script
    if path.name == "trl_sft.py":
        attempt = Preloaded(tmp_path, 1, path, model, "out", micro_batch_factor=2).finish()
        assert [event.value for event in attempt.events(ChangeApplied)] == [4]
    else:
        attempt = Preloaded(tmp_path, 1, path, model, "out", micro_batch_factor=2).finish()
        (refused,) = attempt.events(ChangeRefused)
        assert "MultipleNegativesRankingLoss" in refused.because
        cached = 'loss="CachedMultipleNegativesRankingLoss"'
        attempt = Preloaded(tmp_path / "c", 1, path, model, "out", cached, micro_batch_factor=2).finish()
        assert [event.value for event in attempt.events(ChangeApplied)] == [4]
    assert attempt.step() == 16
