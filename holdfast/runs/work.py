"""How much a run has to compute, from its settings and its prepared data."""

from collections.abc import Mapping
from typing import Any

from holdfast.data.amounts import Amounts
from holdfast.planning.proving import Work

# As in engine.mining and engine.tasks.causal, which load torch; a test holds them together.
MINED_FROM_EPOCH, MINED_EACH, ANSWERS = 1, 1, 3


def work_of(settings: Mapping[str, Any], amounts: Amounts) -> Work:
    """How much there is to compute."""
    batch_size = int(settings["batch_size"])
    per_epoch = max(1, -(-amounts.examples // batch_size))
    steps = int(settings.get("max_steps") or int(settings["epochs"]) * per_epoch)
    every = int(settings.get("eval_steps") or per_epoch)
    options = settings.get("options") or {}
    passage_tokens = batch_size * amounts.corpus_mean_tokens
    mining = options.get("mining")
    first = int((mining or {}).get("from_epoch", MINED_FROM_EPOCH)) * per_epoch
    late = max(0, steps - first) if mining is not None else 0
    evaluations = -(-steps // every)
    # What the last evaluation has read of the corpus still holds where no earlier one can have been better.
    known_tokens = amounts.corpus_tokens if evaluations == 1 else 0
    return Work(
        steps=steps,
        step_tokens=amounts.tokens / per_epoch + amounts.near_miss_share * passage_tokens,
        evaluations=evaluations,
        evaluation_tokens=amounts.evaluation_tokens,
        report_tokens=amounts.report_tokens - known_tokens,
        largest_read_tokens=amounts.largest_read_tokens,
        late_steps=late,
        late_tokens=int((mining or {}).get("negatives", MINED_EACH)) * passage_tokens if late else 0.0,
        minings=-(-late // per_epoch),
        # The evaluation before it has just read the corpus.
        mining_tokens=amounts.query_tokens + (amounts.corpus_tokens if every != per_epoch or not first else 0),
        answers=int(options.get("samples", ANSWERS)) if settings.get("task") == "causal" else 0,
    )
