"""The loss became NaN or infinite.

What you see: `loss: nan` from some step on, "Loss is nan, stopping training", or, with Hugging Face's Trainer, a loss
of exactly 0.0 next to `grad_norm: nan` (it hides NaN by default).
Why: values left the range of the number format: float16 overflow, a learning rate that is too high, a division by zero,
a logarithm of zero, NaN in the data, or a sequence in which every token is masked.
What we do: go back to the last checkpoint without NaN and continue in float32. Lowering the learning rate is the user's
decision.
"""

import re

from holdfast.core.evidence import Evidence, Passage
from holdfast.core.observations import NonFiniteNumbers
from holdfast.core.plan import Remedy
from holdfast.hazards import Case, Hazard, judged, observed, proves, seen, suggests

_NOT_FINITE = re.compile(r"\b(?:nan|NaN|NAN|[Ii]nf(?:inity)?)\b")
_LOSS_VALUE = re.compile(
    r"(?<!best_)(?<!best )(?<!min_)(?<!min )(?:loss|Loss|LOSS)\w*['\"]?(?: value| is|\[\w+\])?\s*[:=|]?\s*(?:tensor\(|\[|\(|['\"])*\s*"
    r"(?P<value>[-+]?(?i:nan|inf(?:inity)?|\d+(?:\.\d+)?(?:e[-+]?\d+)?))\b"
)
_GRAD_NORM = re.compile(r"(?i)(?:grad_?norm|gnorm|grad norm)['\"]?\s*[:=|]?\s*(?:tensor\(|['\"])*(?P<value>[\w.+-]+)")
_LOSS_COLUMNS = re.compile(r"(?i)^\s*(?:epoch|step|iter)\w*\b.*\b\w*loss\w*\b")


def _loss_is_nan(evidence: Evidence) -> Passage | None:
    """Losses that become NaN and stay NaN: more than two, or the last one logged. A single bad step that recovers does not count."""
    if not _NOT_FINITE.search(evidence.log.joined):
        return None
    logged = [
        (match["value"].lower().lstrip("+-"), passage)
        for passage in evidence.log
        for match in _LOSS_VALUE.finditer(passage.text)
    ]
    bad = [passage for value, passage in logged if value.startswith(("nan", "inf"))]
    if not bad:
        return None
    is_last = logged[-1][1].line == bad[-1].line
    return bad[0] if is_last or len({passage.line for passage in bad}) > 2 else None


def _zero_loss_with_nan_gradient(evidence: Evidence) -> Passage | None:
    """What the Trainer logs once the weights are NaN, or a gradient norm that is always NaN."""
    norms = [
        (match["value"].lower(), passage) for passage in evidence.log if (match := _GRAD_NORM.search(passage.text))
    ]
    bad = [passage for value, passage in norms if value in ("nan", "inf")]
    for passage in bad:
        loss = _LOSS_VALUE.search(passage.text)
        if loss and re.fullmatch(r"0(?:\.0+)?", loss["value"]):
            return passage
    if len(bad) > 2 and len(bad) == len(norms):
        return bad[0]
    return None if norms else _stuck_at_zero(evidence)


def _stuck_at_zero(evidence: Evidence) -> Passage | None:
    """A loss that is exactly 0 from some step to the end: the Trainer writes 0 where it was NaN."""
    losses = [(match["value"], passage) for passage in evidence.log if (match := _LOSS_VALUE.search(passage.text))]
    zeros = 0
    while zeros < len(losses) and re.fullmatch(r"0(?:\.0+)?", losses[-1 - zeros][0]):
        zeros += 1
    return losses[-zeros][1] if zeros > 2 else None


def _table_of_nan(evidence: Evidence) -> Passage | None:
    """A progress table (ultralytics and others) whose loss columns hold NaN."""
    if "nan" not in evidence.log.joined:
        return None
    has_header = any(_LOSS_COLUMNS.search(passage.text) for passage in evidence.log)
    rows = evidence.log.search(r"^\s*\[?\d+(?:/\d+)?\s.*(?<![\w.])nan(?![\w.])")
    return next((passage for _, passage in rows), None) if has_header else None


HAZARD = Hazard(
    slug="nan-loss",
    title="the loss became NaN or infinite",
    kind="wrong-results",
    signs=(
        proves(
            "log",
            r"(?i)\bloss(?:es)?(?: value)?(?: is|:| =| became| was|=)? *[\[({]*(?:tensor\()?[-+]?(?:nan|inf|infinite|not finite|non-?finite)\b.{0,60}\b(?:stop|abort|exit|terminat|end)",
        ),
        proves(
            "log",
            r"(?i)(?:non-?finite|invalid|nan|inf(?:inite)?)[ /\w]{0,10} ?loss(?:es)?\b.{0,40}\b(?:stop|abort|exit|terminat|end|during training)",
        ),
        proves(
            "error",
            r"(?i)\bloss (?:is|became|was|contains|has) (?:\w+ ){0,2}(?:nan|inf|infinite|not finite)|NaN loss|loss returned in `?training_step`? is nan",
        ),
        proves(
            "error",
            r"(?i)NanLossDuringTraining|outputs? (?:is|are|contains?) NaN|found NaN in (?:local|the)|(?:detected|encountered) (?:nan|inf)\w* (?:in|value)",
        ),
        proves("log", r"Minimum loss scale reached|loss scale already at minimum"),
        # What matches boxes or predictions with labels meets the NaN first, and says so in its own terms.
        suggests("error", r"matrix contains invalid numeric entries|cost matrix is infeasible"),
        suggests(
            "error", r"AssertionError", also=(seen("log", r"assert \(boxes\d\[:, 2:\] >= boxes\d\[:, :2\]\)\.all\(\)"),)
        ),
        proves("error", r"Function '\w+Backward\d*' returned nan values"),
        suggests(
            "error",
            r"(?i)probability tensor contains either `?inf`?, `?nan`?|found invalid values:|satisfy the constraint \w+\(.*\bnan\b",
        ),
        suggests(
            "error",
            r"(?i)input contains (?:nan|infinity)|cannot convert float nan to integer",
            also=(seen("log", r"(?i)loss\W{1,4}nan\b"),),
        ),
        suggests("log", r"(?i)= (?:nan|inf) is not finite|signaling trainer to stop.*nan"),
        suggests(
            "log",
            r"(?i)(?:reducing|reduce) (?:loss scale )?to:? (?:[124]\.0|[124]|0\.\d+|\d\.\d+e-\d+)\s*$|setting loss scale to:? 0\.0\d+",
        ),
        proves(observed(NonFiniteNumbers)),
        judged("suggests", _loss_is_nan),
        judged("suggests", _zero_loss_with_nan_gradient),
        judged("suggests", _table_of_nan),
        suggests(
            "log",
            r"(?i)^\s*(?:step|iter\w*|epoch)\s*\[?\d+[^\w\n]{1,5}nan\b|^\s*\[?\d+(?:/\d+)?\s+(?:\[?nan\]?\s*){2,}",
        ),
        suggests("log", r"(?i)^\s*(?:\w*loss\w*\W+)?tensor\(nan\b"),
    ),
    remedies=(
        Remedy(
            "train in float32, from the last checkpoint without NaN",
            change={"precision": "fp32"},
            cost="slower, more memory",
        ),
        Remedy("check the data for NaN, infinity and empty rows", command="holdfast survey DATA"),
        Remedy(
            "lower the learning rate",
            command="TrainingArguments(..., learning_rate=1e-5)",
            cost="different updates than requested",
            keeps=False,
        ),
    ),
    sources=(
        "Time-MoE/Time-MoE#37",
        "pytorch/pytorch#41508",
        "OpenBMB/MiniCPM-V#212",
        "hiyouga/LlamaFactory#2916",
        "google/gemma_pytorch#24",
        "facebookresearch/fairseq#1529",
        "ymcui/Chinese-LLaMA-Alpaca#534",
    ),
    matches=(
        "ValueError: matrix contains invalid numeric entries",
        '  File "box_ops.py", line 52, in generalized_box_iou\n    assert (boxes1[:, 2:] >= boxes1[:, :2]).all()\nAssertionError',
        Case(
            "{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 5e-05, 'epoch': 0.97}\n{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 5e-05, 'epoch': 0.98}",
            "0",
        ),
        Case("epoch 1/3  step 1/39  loss 1.1031\nepoch 1/3  step 2/39  loss nan", "0"),
        "Loss is nan, stopping training",
        Case("{'loss': 0.0, 'epoch': 0.97}", "1", (NonFiniteNumbers(step=12, reason="the gradient norm is nan"),)),
        "AssertionError: Loss is NaN or infinite at epoch 0, batch 712. Stopping training.",
        "WARNING: non-finite loss, ending training  tensor([nan, nan, nan, nan], device='cuda:0')",
        "FloatingPointError: Loss became infinite or NaN at iteration=20!",
        "FloatingPointError: Minimum loss scale reached (0.0001). Your loss is probably exploding.",
        "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.",
        "ValueError: Network outputs is NAN! Stop Training",
        "RuntimeError: Function 'MulBackward0' returned nan values in its 0th output.",
        Case(
            "      Epoch    GPU_mem   box_loss   cls_loss   dfl_loss  Instances       Size\n      1/100      2.34G        nan        nan        nan         12        640: 100%",
            "0",
        ),
        Case("Epoch 3: train_loss: nan, val_loss: nan, acc: 0.098", "0"),
        "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0",
        "epoch 3 loss: nan\nValueError: Input contains NaN.",
        "Loss = nan is not finite, stopping",
        "Gradient overflow. Skipping step, loss scaler 0 reducing loss scale to 0.5",
        "step 40: nan",
        "tensor(nan, device='cuda:0', grad_fn=<NllLossBackward0>)",
    ),
    near_misses=(
        Case(
            "Epoch [1][100/62598] lr: 1.000e-03, loss_ce: 1.2757, loss: 1.9091, grad_norm: nan\nEpoch [1][200/62598] lr: 1.000e-03, loss_ce: 0.5921, loss: 0.9186, grad_norm: 3.9772",
            "0",
        ),
        Case("[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768", "0"),
        Case("Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 16384.0", "0"),
        Case("{'loss': 0.0, 'grad_norm': 0.0, 'learning_rate': 0.0, 'epoch': 3.0}", "0"),
        Case("Epoch 1: train_loss: 0.52, val_loss: inf\nEpoch 2: train_loss: 0.41, val_loss: 0.63", "0"),
    ),
)
