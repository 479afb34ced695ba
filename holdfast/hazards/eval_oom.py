"""Memory runs out during evaluation, although training fits.

What you see: "out of memory" below `evaluate`, `prediction_loop`, `compute_metrics` or `validation_step`; or main
memory that grows during the evaluation until the process is killed.
Why: the logits of the whole evaluation set are kept, on the GPU or in main memory, until the metric is computed. With a
vocabulary of 50,000, a few hundred texts take gigabytes. Or the evaluation batch is larger than the training batch.
What we do: evaluate in smaller batches and keep only reduced predictions. The trained model stays the same.
"""

from bisect import bisect_left, bisect_right

from holdfast.core.evidence import Evidence, Passage, Seen
from holdfast.core.plan import Remedy
from holdfast.hazards import Case, Hazard, ended_by, judged, seen, suggests
from holdfast.hazards.cuda_oom import OUT_OF_MEMORY

_NO_MEMORY = (
    rf"{OUT_OF_MEMORY}|DefaultCPUAllocator: (?:can't|not enough)|^\s*(?:[\w.]*_Array)?MemoryError\b"
    r"|Unable to allocate [\d.]+ [GT]iB for an array|MPS backend out of memory"
)
_EVALUATION_NAMES = (
    r"_*(?:evaluate|evaluation|evaluation_loop|prediction_loop|prediction_step|compute_metrics|nested_\w*concat\w*|distributed_concat"
    r"|(?:torch|numpy)_pad_and_concatenate|gather_for_metrics|gather_function|preprocess_logits_for_metrics|run_sanity_check"
    r"|test|test_(?:epoch|step|loop|model)|single_gpu_test|multi_gpu_test"
    r"|(?:\w+_)?(?:eval|evaluate|validate|validation|valid|val)(?:_\w+)?)"
)
_TRACEBACK = r"Traceback \(most recent call last\)"
# "in evaluate" in a traceback: plain, boxed by rich, or from a notebook.
_IN_EVALUATION = rf"(?:\.py|\d|>)\"?,? in (?:[\w<>]+\.)*{_EVALUATION_NAMES}(?=[\s(]|$)|[/\\](?:evaluation_loop|validator|val|validation_loop|evaluator)\.py\b"
_IN_TRAINING = (
    r"(?:\.py|\d|>)\"?,? in (?:[\w<>]+\.)*(?:training_step|train_step|train_one_\w+|backward|run_backward)(?=[\s(]|$)"
)
_PHASE = (
    r"(?P<evaluation>\*{5} Running (?:Evaluation|Prediction|Validation|testing)"
    r"|(?i:\b(?:evaluat\w+|validat\w+|valid|val|eval|testing|predicting)\b[^\n|]{0,40}(?:\d+%|\[\s*\d+/\d+))"
    r"|(?i:running (?:evaluation|validation)|\(valid\)|(?:start|begin)(?:ing)? (?:evaluation|validation))"
    r"|mAP[^\n|]{0,20}:\s+\d+%|\[[> ]+\] \d+/\d+, [\d.]+ task/s)"
    r"|(?P<training>\*{5} Running training|\{'(?:eval_)?loss':|(?i:\btrain\w*\b[^\n|]{0,40}(?:\d+%|\[\s*\d+/\d+)))"
)


def _below_an_evaluation(evidence: Evidence) -> Passage | None:
    """The out-of-memory line, if the traceback above it goes through an evaluation."""
    starts, evaluating = _lines(_TRACEBACK, evidence), _lines(_IN_EVALUATION, evidence)
    for _, passage in evidence.log.search(_NO_MEMORY):
        if _is_within_traceback(evaluating, passage, starts):
            return passage
    return None


def _after_an_evaluation_began(evidence: Evidence) -> Passage | None:
    """The out-of-memory line, if the last thing the log announced was an evaluation."""
    for _, passage in evidence.log.search(_NO_MEMORY):
        starts, training = _lines(_TRACEBACK, evidence), _lines(_IN_TRAINING, evidence)
        began = _last_phase(evidence, until=passage.line) == "evaluation"
        return passage if began and not _is_within_traceback(training, passage, starts) else None
    return None


def _killed_while_collecting(evidence: Evidence) -> Seen | None:
    """The process exit, if it was killed and the log stops during an evaluation."""
    killed = ended_by("SIGKILL").find(evidence)
    return killed if killed and _last_phase(evidence) == "evaluation" else None


def _lines(pattern: str, evidence: Evidence) -> list[int]:
    return [passage.line for _, passage in evidence.log.search(pattern)]


def _is_within_traceback(lines: list[int], error: Passage, starts: list[int]) -> bool:
    """True if one of the lines is between the start of the error's traceback and the error."""
    above = bisect_right(starts, error.line)
    if not above:  # with several ranks the message of one may stand before the traceback of another
        return bool(lines)
    return bisect_left(lines, starts[above - 1]) < bisect_right(lines, error.line)


def _last_phase(evidence: Evidence, until: int | None = None) -> str | None:
    phases = [match for match, line in evidence.log.search(_PHASE) if until is None or line.line <= until]
    return phases[-1].lastgroup if phases else None


HAZARD = Hazard(
    slug="eval-oom",
    title="memory ran out during evaluation",
    kind="error",
    signs=(
        judged("proves", _below_an_evaluation),
        judged("suggests", _after_an_evaluation_began),
        judged("suggests", _killed_while_collecting),
        # A traceback truncated before its last line, where predictions are concatenated.
        suggests(
            "log",
            r"(?:preds|labels|inputs|losses)(?:_host)? = (?:logits|labels|loss\w*|inputs\w*) if (?:preds|labels|inputs|losses)(?:_host)? is None else|, in (?:nested_concat|(?:torch|numpy)_pad_and_concatenate|distributed_concat)$",
            unless=(seen("error", r"Error"),),
        ),
    ),
    remedies=(
        Remedy(
            "evaluate in smaller batches",
            change={"eval_micro_batch": "halve"},
            cost="a slower evaluation, the same metrics",
        ),
        Remedy(
            "in a Trainer script: keep class ids instead of logits and move them off the GPU early",
            command="Trainer(..., preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(-1)); TrainingArguments(eval_accumulation_steps=8)",
        ),
        Remedy(
            "evaluate under torch.no_grad() in a hand-written loop", command="with torch.no_grad(): evaluate(model)"
        ),
        Remedy(
            "evaluate after the run instead of during it", command="TrainingArguments(eval_strategy='no')", keeps=False
        ),
    ),
    sources=(
        "huggingface/transformers#7158",
        "huggingface/transformers#8476",
        "huggingface/transformers#15466",
        "huggingface/transformers#10722",
        "catalyst-team/catalyst#143",
    ),
    over=("cuda-oom",),
    matches=(
        'Traceback (most recent call last):\n  File "train.py", line 108, in <module>\n    trainer.train()\n  File "/lib/python3.8/site-packages/transformers/trainer.py", line 1198, in _maybe_log_save_evaluate\n'
        '    metrics = self.evaluate()\n  File "/lib/python3.8/site-packages/transformers/trainer.py", line 1803, in prediction_loop\nRuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB',
        '  File "/lib/python3.7/site-packages/transformers/trainer_pt_utils.py", line 56, in numpy_pad_and_concatenate\n    result = np.full_like(array1, padding_index, shape=new_shape)\n'
        "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 2.77 TiB for an array with shape (200000, 77, 50265) and data type float32",
        "0/10 * Epoch (train): 100% 32/32 [00:41<00:00,  2.39s/it]\n0/10 * Epoch (valid):   3% 1/32 [00:01<00:46,  1.50s/it]\nRuntimeError: CUDA error: out of memory",
        'Valid (loss 53.34) epoch 1:   9%|██████▍     | 1/11 [00:01<00:13]THCudaCheck FAIL file=/pytorch/aten/src/THC/generic/THCStorage.cu line=58 error=2 : out of memory\n  File "train.py", line 157, in evaluate',
        "~/lib/python3.6/site-packages/transformers/trainer.py in evaluate(self, eval_dataset)\n   1157         output = self.prediction_loop(eval_dataloader)\nRuntimeError: CUDA out of memory. Tried to allocate 7.28 GiB",
        Case(
            "***** Running Evaluation *****\n  Num examples = 120000\n  Batch size = 8\n 99%|█████████▉| 14890/15000 [21:03<00:09]\nKilled",
            "-9",
        ),
        '  File "/venv/lib/python3.11/site-packages/transformers/trainer_pt_utils.py", line 125, in nested_concat\n',
    ),
    near_misses=(
        'Traceback (most recent call last):\n  File "/lib/site-packages/transformers/trainer.py", line 2514, in training_step\n    self.accelerator.backward(loss)\nRuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB',
        'Traceback (most recent call last):\n  File "/lib/site-packages/transformers/trainer_pt_utils.py", line 71, in nested_concat\nAssertionError: Expected `tensors` and `new_tensors` to have the same type',
        "***** Running Evaluation *****\n  Num examples = 872\n{'eval_loss': 0.41}\n{'loss': 0.39}\ntorch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
    ),
)
