"""The metric that decides about the best model is not among those the evaluation reports.

What you see: "The `metric_for_best_model` training argument is set to 'eval_loss', which is not found in the evaluation
metrics", or "KeyError: 'eval_loss'" after the first evaluation.
Why: the evaluation computes no loss (no labels, a custom `prediction_step`), several evaluation sets have prefixed
names, or `compute_metrics` returns other names.
What we do: name a metric that is reported. The error lists them.
"""

from holdfast.core.plan import Remedy
from holdfast.hazards import Hazard, proves, suggests

HAZARD = Hazard(
    slug="eval-metric-missing",
    title="the evaluation does not report the metric that picks the best model",
    kind="error",
    signs=(
        proves(
            "error",
            r"metric_for_best_model`?[^\n]{0,80}(?:not found|is not)|could not find the monitored key|conditioned on metric `?\w+`? which is not available",
        ),
        suggests("error", r"^KeyError: ['\"](?:eval|val|valid|validation)_\w+['\"]"),
    ),
    remedies=(
        Remedy("choose a metric that is reported", command="TrainingArguments(metric_for_best_model='eval_accuracy')"),
        Remedy(
            "tell the Trainer which columns are labels, so that the evaluation has a loss",
            command="TrainingArguments(label_names=['labels'])",
        ),
        Remedy(
            "keep the last model instead of the best",
            command="TrainingArguments(load_best_model_at_end=False)",
            cost="the best checkpoint is not selected",
            keeps=False,
        ),
    ),
    sources=(
        "huggingface/transformers#19957",
        "huggingface/sentence-transformers#2749",
        "hiyouga/LlamaFactory#7906",
        "huggingface/transformers#29801",
    ),
    matches=(
        "KeyError: \"The `metric_for_best_model` training argument is set to 'eval_f1', which is not found in the evaluation metrics. The available evaluation metrics are: ['eval_loss', 'epoch']\"",
        "KeyError: 'eval_loss'",
        "RuntimeError: Early stopping conditioned on metric `val_acc` which is not available. Pass in or modify your `EarlyStopping` callback",
    ),
    near_misses=("KeyError: 'labels'",),
)
