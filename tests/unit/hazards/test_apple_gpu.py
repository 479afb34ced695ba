"""Which Macs invite which hazard of the Apple GPU, and how printed numbers are compared."""

import pytest

from holdfast.core.facts import DeviceTrial, MachineFacts, Variable
from holdfast.core.plan import Plan
from holdfast.hazards import Invited, find_hazard
from holdfast.hazards.diagnose import diagnose
from holdfast.logs.log_text import read_evidence

ON_A_MAC = {"os": "macos", "os_version": "15.6", "arch": "arm64", "chip": "Apple M4"}


def invited(slug: str, facts: MachineFacts, plan: Plan | None = None) -> Invited | None:
    hazard = find_hazard(slug)
    assert hazard
    return hazard.invited_by(facts, plan or Plan())


def mac_with(torch: str, **more: object) -> MachineFacts:
    return MachineFacts(**{**ON_A_MAC, "distributions": {"torch": torch}, **more})


def test_torch_2_8_on_mac_blocks_and_suggests_another_torch():
    found = invited("mps-wrong-results", mac_with("2.8.0"))
    assert found
    assert found.severity == "blocker"
    assert found.remedies[0].command == "pip install --upgrade 'torch>=2.14'"


@pytest.mark.parametrize(
    ("facts", "plan"),
    [
        (mac_with("2.8.0"), Plan(device="cpu")),
        (MachineFacts(os="linux", arch="x86_64", distributions={"torch": "2.8.0"}), Plan()),
        (mac_with("2.14.0"), Plan(precision="bf16")),
    ],
    ids=["on the CPU", "on Linux", "with the fixes"],
)
def test_irrelevant_bugs_are_not_reported(facts, plan):
    assert invited("mps-wrong-results", facts, plan) is None


def test_half_precision_before_2_13_is_a_warning():
    found = invited("mps-wrong-results", mac_with("2.12.1"), Plan(precision="bf16"))
    assert found
    assert found.severity == "warning"


@pytest.mark.parametrize(
    ("outcome", "slug"), [("differs", "mps-wrong-results"), ("crash", "mps-crash"), ("hang", "mps-hang")]
)
def test_a_failed_trial_is_proof(outcome, slug):
    trial = DeviceTrial(device="mps", outcome=outcome, detail="seen here", seconds=1.0)
    found = invited(slug, mac_with("2.14.0", trials=(trial,)))
    assert found
    assert found.severity == "blocker"
    assert "seen here" in found.seen


@pytest.mark.parametrize(
    ("variables", "severity"),
    [
        ({"PYTORCH_MPS_HIGH_WATERMARK_RATIO": "0.7"}, "blocker"),
        ({"PYTORCH_MPS_HIGH_WATERMARK_RATIO": "0.0"}, "warning"),
        ({"PYTORCH_MPS_HIGH_WATERMARK_RATIO": "lots"}, "blocker"),
        ({"PYTORCH_MPS_HIGH_WATERMARK_RATIO": "0.7", "PYTORCH_MPS_LOW_WATERMARK_RATIO": "0.6"}, None),
        ({"PYTORCH_MPS_HIGH_WATERMARK_RATIO": "1.7"}, None),
    ],
)
def test_memory_limits_must_agree(variables, severity):
    listed = tuple(Variable(name=name, value=value, effect="") for name, value in variables.items())
    found = invited("mps-watermark-config", mac_with("2.14.0", variables=listed))
    assert (found.severity if found else None) == severity


def test_equal_results_are_not_a_finding():
    log = "cpu loss 2.3101 at step 10\nmps loss 2.3099 at step 10\n"
    assert diagnose(read_evidence(log, "0")).slug == "unknown"


def test_losses_of_different_steps_are_not_compared():
    log = "Using cpu device\nstep 0 loss 3.30\nUsing mps device\nstep 100 loss 2.10\n"
    assert diagnose(read_evidence(log, "0")).slug == "unknown"


def test_recovering_step_is_not_nan_loss():
    log = "\n".join(f"step {n} loss {value}" for n, value in enumerate(["2.1", "nan", "1.9", "1.7", "1.6"]))
    assert diagnose(read_evidence(log, "0")).slug == "unknown"
