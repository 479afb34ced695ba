import pytest
import torch
from torch import nn

from holdfast.engine.fast.threaded_adamw import ThreadedAdamW
from holdfast.engine.optim import clip_in_step


def trained(workers: int | None, steps: int = 4) -> tuple[nn.Module, torch.optim.AdamW, list[float]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 8), nn.LayerNorm(8))
    groups = [
        {"params": [p for p in model.parameters() if p.ndim >= 2], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    rate = torch.tensor(0.01)
    optimizer = ThreadedAdamW(groups, rate, workers) if workers else torch.optim.AdamW(groups, lr=rate)
    norms = []
    for step in range(steps):
        optimizer.param_groups[0]["lr"].fill_(0.01 / (step + 1))
        (model(torch.randn(5, 6)).pow(2).sum() * (10 if step % 2 else 1e-3)).backward()
        clip = nn.utils.clip_grad_norm_(model.parameters(), 1.0) if not workers else clip_in_step(optimizer, 1.0)
        norms.append(float(clip))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return model, optimizer, norms


def test_threaded_adamw_matches_torch():
    wanted, _, norms = trained(None)
    found, _, found_norms = trained(2)
    assert max(norms) > 1 > min(norms)
    assert found_norms == pytest.approx(norms, rel=1e-5)
    for one, other in zip(found.parameters(), wanted.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_thread_assignment_does_not_change_results():
    for one, other in zip(trained(1)[0].parameters(), trained(3)[0].parameters(), strict=True):
        assert torch.equal(one, other)


def test_optimizer_state_is_shared_by_workers():
    model, optimizer, _ = trained(2)
    assert set(optimizer.state) == set(model.parameters())
    assert all(float(state["step"]) == 4 for state in optimizer.state.values())
