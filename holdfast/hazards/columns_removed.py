"""The Trainer dropped columns that the run needs.

What you see: "No columns in the dataset match the model's forward method signature", "Invalid key: 47682 is out of
bounds for size 0", or a KeyError inside the collator for a column that the dataset has.
Why: Hugging Face's Trainer keeps only columns that the model's forward accepts. A wrapped model (PEFT, a custom class)
hides its signature, so no column may be left, and a custom collator may need other columns.
What we do: name the columns. `remove_unused_columns=False` keeps them.
"""

import re

from holdfast.core.evidence import Evidence, Passage
from holdfast.core.plan import Remedy
from holdfast.hazards import Hazard, judged, proves, seen, suggests
from holdfast.hazards.tracebacks import error_raised_in, is_in_torch_loader

_TRAINER = seen(
    "log", r"transformers[/\\]trainer|trainer\.train\(\)|_inner_training_loop|trl[/\\]trainer|get_train_dataloader"
)
_IGNORED = r"have been ignored: \[?(?P<names>[\w'\", ]+)"


def _misses_an_ignored_column(evidence: Evidence) -> Passage | None:
    """A KeyError for a column that the Trainer said it ignores."""
    ignored = {name for match, _ in evidence.log.search(_IGNORED) for name in re.findall(r"\w+", match["names"])}
    return next((error for match, error in evidence.errors.search(r"KeyError: '(\w+)'") if match[1] in ignored), None)


def _collator_misses_a_column(evidence: Evidence) -> Passage | None:
    """A KeyError that the user's collator raised under the Trainer."""
    found = error_raised_in(evidence, "KeyError")
    if not found:
        return None
    error, frames = found
    is_under_trainer = any("trainer" in frame.module.lower() for frame in frames)
    own = [frame for frame in frames[-2:] if "collat" in (frame.function + frame.module).lower()]
    return error if is_under_trainer and own and not is_in_torch_loader(frames[-1]) else None


HAZARD = Hazard(
    slug="columns-removed",
    title="the Trainer removed dataset columns that the run needs",
    kind="error",
    signs=(
        proves("error", r"No columns in the dataset match the model's forward method signature"),
        proves("error", r"Invalid key: \d+ is out of bounds for size 0", also=(_TRAINER,)),
        suggests(
            "error",
            r"Invalid key: \d+ is out of bounds for size 0",
        ),
        proves(
            "error",
            r"You should supply an encoding or a list of encodings to this method that includes input_ids, but you provided",
        ),
        suggests("error", r"did not return a loss from the inputs, only the following keys"),
        judged("proves", _misses_an_ignored_column),
        suggests(
            "error",
            r"KeyError: '\w+'",
            also=(seen("log", r"\[['\"]\w+['\"]\] for \w+ in (?:examples|features|instances|batch)\b"),),
        ),
        judged("suggests", _collator_misses_a_column),
    ),
    remedies=(
        Remedy(
            "keep all columns",
            command="TrainingArguments(..., remove_unused_columns=False)",
            cost="the collator must drop columns that the model does not accept",
        ),
        Remedy(
            "rename the columns to what the model's forward expects",
            command="dataset = dataset.rename_column('label', 'labels')",
        ),
    ),
    sources=(
        "huggingface/peft#1299",
        "huggingface/datasets#5946",
        "huggingface/trl#519",
        "huggingface/transformers#25054",
        "TIGER-AI-Lab/VLM2Vec#107",
        "mymusise/ChatGLM-Tuning#258",
    ),
    matches=(
        "ValueError: No columns in the dataset match the model's forward method signature: (input_ids, attention_mask). The following columns have been ignored: [text]. Please check the dataset and model.",
        '  File "/lib/transformers/trainer.py", line 1870, in _inner_training_loop\n    for step, inputs in enumerate(epoch_iterator):\n'
        "IndexError: Invalid key: 47682 is out of bounds for size 0",
        "IndexError: Invalid key: 28 is out of bounds for size 0",
        "ValueError: You should supply an encoding or a list of encodings to this method that includes input_ids, but you provided ['label']",
        "ValueError: The model did not return a loss from the inputs, only the following keys: logits. For reference, the inputs it received are input_ids,attention_mask.",
        '  File "/lib/transformers/trainer.py", line 1872, in _inner_training_loop\n    for step, inputs in enumerate(epoch_iterator):\n'
        '  File "/lib/torch/utils/data/_utils/fetch.py", line 61, in fetch\n    return self.collate_fn(data)\n'
        '  File "finetune.py", line 28, in data_collator\n    seq_len = feature["seq_len"]\nKeyError: \'seq_len\'',
        "The following columns in the training set don't have a corresponding argument in `PeftModel.forward` and have been ignored: pos_text, query.\nKeyError: 'pos_text'",
        "    labels = [feature['label_ids'] for feature in features]\nKeyError: 'label_ids'",
    ),
    near_misses=(
        '  File "/lib/transformers/trainer.py", line 1780, in _inner_training_loop\n    for step, inputs in enumerate(epoch_iterator):\n'
        "  File \"/lib/torch/utils/data/dataloader.py\", line 628, in __next__\n    data = self._next_data()\nKeyError: 'response '",
        "The following columns in the training set don't have a corresponding argument in `BertForSequenceClassification.forward` and have been ignored: text, idx.",
        "IndexError: index 0 is out of bounds for axis 0 with size 0",
        "KeyError: 'json_dialogue'",
    ),
)
