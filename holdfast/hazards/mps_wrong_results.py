"""The Apple GPU computes different numbers than the CPU.

What you see: no error at all. The loss stops changing, turns NaN or differs, or an evaluation is far worse on `mps`
than on `cpu` with the same weights and data.
Why: bugs in individual kernels, mostly with non-contiguous tensors. torch 2.8.0 is the worst: `F.linear` and attention
return wrong values. Before 2.13, attention in half precision lets a token see later tokens; before 2.4, optimizers lost
updates.
What we do: compare one step with the CPU before training; use float32 and plain attention, then the CPU.
"""

import re
from collections.abc import Iterator
from itertools import chain
from math import isfinite

from holdfast.core.evidence import Evidence, Passage
from holdfast.core.facts import MachineFacts, release
from holdfast.core.plan import Plan, Remedy
from holdfast.hazards import Case, Hazard, Invited, Severity, judged, proves, seen, suggests
from holdfast.hazards.apple_gpu import MPS_WORD, ON_MPS, uses_mps

_NUMBER = r"(?i:(?<![\w.])[-+]?(?:\d+(?:\.\d*)?(?:e[-+]?\d+)?|\.\d+|nan|inf)\b)"
_DEVICE = re.compile(rf"{MPS_WORD}|(?i:(?<![A-Za-z0-9-])cpu(?![A-Za-z0-9-]))")
_TENSOR = r"tensor\((?P<values>\[[^()]*\]|[^()\[\],]+)(?P<rest>,[^()\[\]]*)?\)"
_TIMING = re.compile(
    r"(?i)\btime|second|\bsec|\bms\b|it/s|/s\b|memory|\b[KMG]i?B\b|speed|fps|flops|version|cores?\b|usage"
)

_PLAIN = Remedy(
    "train in float32 with plain attention",
    change={"precision": "fp32", "attention": "eager"},
    cost="slower, more memory",
)
_ON_CPU = Remedy("train on the CPU", change={"device": "cpu"}, cost="slower")
_UPGRADE = Remedy("install a torch release with the fix; never 2.8.0", command="pip install --upgrade 'torch>=2.14'")

_MOST_ALIKE = 200  # lines of one wording that are compared; a comparison is short, a training log is not


def invited_by(facts: MachineFacts, plan: Plan) -> Invited | None:
    """Say why this machine and plan invite the hazard; None when they do not."""
    differing = next(
        (trial for trial in facts.trials if trial.device.startswith("mps") and trial.outcome == "differs"), None
    )
    if differing:
        return Invited(f"one training step gave a different result than on the CPU: {differing.detail}", "blocker")
    installed = facts.distributions.get("torch", "")
    if not release(installed) or not uses_mps(facts, plan):
        return None
    known = next(_known_bugs(facts, plan, release(installed)), None)
    if known is None:
        return None
    # Nothing has gone wrong yet, so the free remedy comes first.
    return Invited(f"torch {installed} on the Apple GPU: {known[0]}", known[1], (_UPGRADE, _PLAIN, _ON_CPU))


def _known_bugs(facts: MachineFacts, plan: Plan, torch: tuple[int, ...]) -> Iterator[tuple[str, Severity]]:
    """The documented bugs of a release, worst first."""
    if torch[:2] == (2, 8):
        yield "linear layers and attention give wrong values for non-contiguous tensors", "blocker"
    if (2, 2) <= torch < (2, 3) and release(facts.os_version) >= (14, 4):
        yield "wrong fill and indexing values on macOS 14.4 and later", "blocker"
    if torch < (2, 4):
        yield "Adam-type optimizers do not update non-contiguous parameters", "warning"
    if torch < (2, 13) and plan.precision == "bf16":
        yield "causal attention in half precision sees up to three later tokens", "warning"
    if (2, 7) <= torch < (2, 14) and re.search(r"\bM[12]\b", facts.chip):
        yield "products over more than 32768 terms are wrong on M1 and M2", "note"


def _devices_disagree(evidence: Evidence) -> Passage | None:
    """The same line or tensor printed for the CPU and the Apple GPU with different numbers."""
    if not ON_MPS.find(evidence):
        return None
    printed: dict[tuple[str, str], list[tuple[list[str], Passage]]] = {}
    for device, words, numbers, passage in chain(_statements(evidence), _tensors(evidence)):
        alike = printed.setdefault((device, words), [])
        if len(alike) < _MOST_ALIKE:
            alike.append((numbers, passage))
    for (device, words), on_gpu in printed.items():
        on_cpu = [numbers for numbers, _ in printed.get(("cpu", words), ())] if device == "mps" else []
        for numbers, passage in on_gpu:
            references = [reference for reference in on_cpu if _are_comparable(reference, numbers, words)]
            if references and all(_differ(reference, numbers) for reference in references):
                return passage
    return None


def _statements(evidence: Evidence) -> Iterator[tuple[str, str, list[str], Passage]]:
    """Lines with numbers: the device named in the line or in a heading above, the text, the numbers."""
    device = ""
    for passage in evidence.log:
        named = {match[0].lower()[:3] for match in _DEVICE.finditer(passage.text)}
        if len(named) > 1 or "tensor(" in passage.text:
            continue
        device = named.pop() if named else device
        bare = _DEVICE.sub("", re.sub(r"(?<=\S)\s+(?:<-|#).*$", "", passage.text))
        numbers = re.findall(_NUMBER, bare)
        if device and numbers and not _TIMING.search(bare):
            yield device, re.sub(rf"{_NUMBER}|[\s,\[\]()]+", "", bare), numbers, passage


def _tensors(evidence: Evidence) -> Iterator[tuple[str, str, list[str], Passage]]:
    """Printed tensors; torch prints the device unless it is the CPU."""
    for match, passage in evidence.log.search(_TENSOR):
        named = re.search(r"device='(\w+)", match["rest"] or "")
        numbers = re.findall(_NUMBER, match["values"])
        if len(numbers) > 1:
            yield named[1] if named else "cpu", f"tensor of {len(numbers)}", numbers, passage


def _are_comparable(one: list[str], two: list[str], words: str) -> bool:
    """True for numbers of the same kind. Integers in a log line are steps or shapes and must be equal."""
    if len(one) != len(two):
        return False
    return (
        words.startswith("tensor")
        or "shape" in words
        or all(a == b for a, b in zip(one, two, strict=True) if a.isdigit() and b.isdigit())
    )


def _differ(expected: list[str], numbers: list[str]) -> bool:
    """True if numbers that should agree differ by more than rounding."""
    return any(_is_apart(one.lower(), two.lower()) for one, two in zip(expected, numbers, strict=True))


def _is_apart(one: str, two: str) -> bool:
    if not (isfinite(float(one)) and isfinite(float(two))):
        return one != two
    return abs(float(one) - float(two)) > 0.02 * max(abs(float(one)), abs(float(two))) + 1e-4


def _layout_matters(evidence: Evidence) -> Passage | None:
    """An error that is large for one memory layout and only rounding noise for the other."""
    found = [
        (float(match["error"]), passage)
        for match, passage in evidence.log.search(
            r"(?i)(?:contiguous|strided?|permuted?|transposed?|layout)[^\n]{0,160}\b(?:err\w*|diff\w*)\b\W*(?P<error>\d+(?:\.\d+)?(?:e[-+]?\d+)?)"
        )
    ]
    return next((passage for value, passage in found if value > 1e-2 and any(other < 1e-4 for other, _ in found)), None)


def _actual_is_not_expected(evidence: Evidence) -> Passage | None:
    """A line, in a run without errors, that prints an expected tensor and a different actual one."""
    if evidence.errors:
        return None
    for _, passage in evidence.log.search(
        r"(?i)\bexpected\b[^\n]{0,160}tensor\([^\n]{0,160}\b(?:actual|got|result)\b[^\n]{0,160}tensor\("
    ):
        tensors = [re.findall(_NUMBER, match["values"]) for match in re.finditer(_TENSOR, passage.text)]
        if len(tensors) == 2 and len(tensors[0]) == len(tensors[1]) and _differ(*tensors):
            return passage
    return None


HAZARD = Hazard(
    slug="mps-wrong-results",
    title="the Apple GPU computes different numbers than the CPU",
    kind="wrong-results",
    invited_by=invited_by,
    signs=(
        proves(
            "error",
            r"AssertionError",
            also=(
                seen(
                    "log",
                    r"(?:FAIL|FAILED|ERROR)\W.*(?:_mps(?:_\w+)?\b|TestMPS|MPS\))|test_mps\.py|output_mps|mps_out\w*",
                ),
            ),
        ),
        suggests(
            "error",
            r"Tensor-likes are not (?:close|equal)|[Nn]ot (?:equal|close) to tolerance|\bnot less than\b",
            also=(ON_MPS,),
        ),
        judged("suggests", _devices_disagree),
        judged("suggests", _layout_matters),
        judged("suggests", _actual_is_not_expected),
        suggests(
            "log",
            rf"{MPS_WORD}[^\n]{{0,160}}(?i:mismatch|incorrect|wrong|garbage|gibberish|disagree|differs?\b|not close|allclose\W+False)",
        ),
        suggests(
            "log",
            rf"(?i:mismatch|incorrect|wrong|max(?:imum)? (?:abs\w* )?(?:diff\w*|err\w*)|allclose|equal)\b[^\n]{{0,160}}{MPS_WORD}[^\n]{{0,160}}(?:False|\b[1-9]\d*\.\d|0\.[1-9])",
        ),
        suggests("log", r"(?i)(?:allclose|is_?close|equal|match(?:es)?)\b[^\n]{0,60}\bFalse\b", also=(ON_MPS,)),
        suggests(
            "log", r"\bnan\b[^\n]{0,160}device='mps|(?i:nans?\b[^\n]{0,30}(?:\bTrue\b|:\s*[1-9]))", also=(ON_MPS,)
        ),
        suggests("log", rf"{MPS_WORD}[^\n]{{0,160}}\bnan\b"),
        suggests("log", r"(?i)\bloss\W{1,4}(?:nan|inf)\b|loss is nan", also=(ON_MPS,)),
    ),
    remedies=(_PLAIN, _ON_CPU, _UPGRADE),
    sources=(
        "pytorch/pytorch#162730",
        "pytorch/pytorch#163597",
        "huggingface/sentence-transformers#3507",
        "pytorch/pytorch#181133",
        "pytorch/pytorch#118117",
        "pytorch/pytorch#151667",
        "pytorch/pytorch#195910",
        "pytorch/pytorch#193487",
        "rasbt/LLMs-from-scratch#635",
    ),
    over=("nan-loss",),
    matches=(
        Case("Has NaNs on cpu: False\nHas NaNs on mps: True - range nan to nan", "0"),
        Case("cpu accuracy: 0.981\nmps accuracy: 0.484", "0"),
        Case(
            "Testing on cpu...\nloss 2.31 range -4.285 to 4.010\nTesting on mps...\nloss 7.92 range -4.285 to 9.310",
            "0",
        ),
        Case("contiguous=False: max abs err = 3.618\ncontiguous=True:  max abs err = 7.749e-07", "0"),
        Case("edge=0.0 delta=-1e-07  CPU=[1.0, 0.0]  MPS=[1.0, 1.0]  <-- MISMATCH", "0"),
        Case("torch.allclose(y_cpu, y_mps.cpu()): False", "0"),
        "FAIL: test_forloop_goes_right_direction_Rprop_mps_float32 (__main__.TestOptimRenewedMPS)\nAssertionError: 135.77 not less than 135.77",
        Case("device: mps\nepoch 1 loss nan\nepoch 2 loss nan", "0"),
        Case("tensor([[nan, nan, nan]], device='mps:0', grad_fn=<LinearBackward0>)", "0"),
        Case("mps\nexpected tensor([1.0, 2.0]) actual tensor([1.0, 0.0])", "0"),
    ),
    near_misses=(
        Case("{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 5e-05, 'epoch': 0.98}", "0"),
        Case("cpu: 16.09 seconds\nmps: 3.30 seconds", "0"),
        Case("Using device: mps\nEpoch 1 loss 2.31\nEpoch 2 loss 1.52\nEpoch 3 loss 1.13", "0"),
        "AssertionError: 3 not less than 2",
    ),
)
