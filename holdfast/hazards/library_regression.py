"""A library fails in its own code, in a way that the program did not cause.

What you see: a NameError or UnboundLocalError whose last line is in an installed package, or a trainer that trips over
its own missing value ("'NoneType' object has no attribute ...").
Why: some releases have bugs on rarely used paths, and a package that patches another one breaks with its next
release. A library's own undefined name cannot come from the program that calls it.
What we do: name the package that raised the error. Its next or previous release usually works.
"""

from holdfast.core.evidence import Evidence, Passage
from holdfast.core.plan import Remedy
from holdfast.hazards import Hazard, judged
from holdfast.hazards.tracebacks import PYTHON, REMOTE, exceptions, own_frame, raised_by

_TRAINERS_NAMES = (
    "transformers trl peft accelerate unsloth unsloth_zoo axolotl llamafactory swift deepspeed lightning "
    "pytorch_lightning sentence_transformers setfit torchtune litgpt mlx_lm datasets huggingface_hub"
)
_TRAINERS = frozenset(_TRAINERS_NAMES.split())
_EMPTY = (
    "'NoneType' object",
    "object of type 'NoneType'",
    "argument of type 'NoneType'",
    "cannot unpack non-iterable NoneType",
)


def _undefined_in_a_library(evidence: Evidence) -> Passage | None:
    """A name that a library's own code does not define."""
    for raised, passage in exceptions(evidence, "NameError", "UnboundLocalError"):
        owner = raised_by(raised)
        if owner not in (None, "", PYTHON, REMOTE):
            return Passage(passage.source, passage.line, f"{passage.text}  [raised inside {owner}]")
    return None


def _empty_in_a_trainer(evidence: Evidence) -> Passage | None:
    """A training library that works with a value it never got, with no code of the user between."""
    for raised, passage in exceptions(evidence, "AttributeError", "TypeError"):
        own = own_frame(raised)
        is_deep = len(raised.frames) < 2 or not own or own[0] not in raised.frames[:2]
        owner = raised_by(raised)
        if owner in _TRAINERS and is_deep and raised.message.startswith(_EMPTY):
            return Passage(passage.source, passage.line, f"{passage.text}  [raised inside {owner}]")
    return None


HAZARD = Hazard(
    slug="library-regression",
    title="this release of a library fails in its own code",
    kind="error",
    signs=(judged("suggests", _undefined_in_a_library), judged("suggests", _empty_in_a_trainer)),
    remedies=(
        Remedy(
            "use the newest release of the package that raised the error",
            command="python -m pip install --upgrade PACKAGE",
        ),
        Remedy(
            "go back to the release before", command="python -m pip index versions PACKAGE", cost="without later fixes"
        ),
    ),
    sources=("unslothai/unsloth#1528", "axolotl-ai-cloud/axolotl#474", "unslothai/unsloth#809", "huggingface/trl#1656"),
    matches=(
        'Traceback (most recent call last):\n  File "train.py", line 20, in <module>\n    model = load()\n  File "/venv/lib/python3.11/site-packages/unsloth/models/loader.py", line 310, in from_pretrained\n    config = FancyConfig()\nNameError: name \'FancyConfig\' is not defined',
        'Traceback (most recent call last):\n  File "train.py", line 41, in <module>\n    trainer.train()\n  File "/venv/lib/python3.11/site-packages/transformers/trainer.py", line 2171, in train\n    return inner_training_loop(\n  File "/venv/lib/python3.11/site-packages/trl/trainer/reward_trainer.py", line 88, in prediction_step\n    if self.state.names.labels:\nAttributeError: \'NoneType\' object has no attribute \'labels\'',
    ),
    near_misses=(
        "Traceback (most recent call last):\n  File \"train.py\", line 20, in <module>\n    trainer.train()\nNameError: name 'trainer' is not defined",
        "  File \"/venv/lib/python3.11/site-packages/transformers/training_args.py\", line 1700, in __post_init__\n    PartialState()\nNameError: name 'PartialState' is not defined",
        "  File \"/venv/lib/python3.11/site-packages/torch/nn/modules/linear.py\", line 116, in forward\n    return F.linear(input, self.weight, self.bias)\nAttributeError: 'NoneType' object has no attribute 'shape'",
    ),
)
