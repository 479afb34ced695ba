"""The conversation template does not fit the tokenizer or the data, so answers are masked or refused.

What you see: "WARNING: tokenization mismatch: 276 vs. 272. (ignored)", "Could not find response key ... This instance
will be ignored in loss calculation", "Conversation roles must alternate", a loss of exactly 0.
Why: the code finds the answers by counting tokens or by searching for a marker. With another model's template, or a
marker that is tokenized differently inside a sentence, it finds none and masks the whole example.
What we do: compare the tokens of one rendered example with the marker. `holdfast train` computes the mask from the
template itself.
"""

import re

from holdfast.core.evidence import Evidence, Passage
from holdfast.core.plan import Remedy
from holdfast.hazards import Case, Hazard, judged, proves, suggests

_NOTHING_LEARNED = re.compile(r"['\"]?loss['\"]?\W{1,4}0(?:\.0+)?\b[^\n]*grad_norm['\"]?\W{1,4}0(?:\.0+)?\b")


def _nothing_to_learn(evidence: Evidence) -> Passage | None:
    """A loss and a gradient that are exactly 0 in every report: no token has a label."""
    reports = [passage for passage in evidence.log if "grad_norm" in passage.text]
    is_flat = len(reports) > 2 and all(_NOTHING_LEARNED.search(passage.text) for passage in reports)
    return reports[0] if is_flat else None


HAZARD = Hazard(
    slug="template-mismatch",
    title="the conversation template does not fit the tokenizer or the data",
    kind="wrong-results",
    signs=(
        proves("log", r"tokenization mismatch: \d+ vs\.? \d+"),
        proves(
            "log",
            r"Could not find (?:response|instruction) key [^\n]*in the following instance|will be ignored in loss calculation",
        ),
        proves(
            "log",
            r"(?i)all (?:the )?labels (?:in [^\n]{0,30})?(?:are|were) -100|no (?:assistant|response|answer) tokens? (?:were |was )?found",
        ),
        proves(
            "error",
            r"Conversation roles must alternate|[Ss]ystem role (?:is )?not supported|Only user(?:, system)? and assistant roles are supported",
        ),
        # The template reads a field that the messages do not have, or refuses their order.
        suggests("error", r"jinja2\.exceptions\.(?:Undefined|Template|Runtime)\w*Error"),
        judged("suggests", _nothing_to_learn),
        suggests("log", r"(?i)the chat template [^\n]{0,60}(?:does not|doesn't) (?:match|support|contain)"),
    ),
    remedies=(
        Remedy("let the template itself mark the answers", command="SFTConfig(assistant_only_loss=True)"),
        Remedy(
            "choose the template that belongs to the model",
            command="print(tokenizer.apply_chat_template(messages, tokenize=False))",
        ),
        Remedy(
            "give the marker as token ids, taken from a rendered example",
            command="response_template = tokenizer.encode('\\n### Response:', add_special_tokens=False)[2:]",
        ),
    ),
    sources=(
        "lm-sys/FastChat#2614",
        "foundation-model-stack/fms-hf-tuning#231",
        "BAAI-DCAI/Bunny#75",
        "axolotl-ai-cloud/axolotl#2089",
    ),
    matches=(
        "jinja2.exceptions.UndefinedError: 'dict object' has no attribute 'content'",
        "{'loss': 0.0, 'grad_norm': 0.0, 'epoch': 0.1}\n{'loss': 0.0, 'grad_norm': 0.0, 'epoch': 0.2}\n{'loss': 0.0, 'grad_norm': 0.0, 'epoch': 0.3}",
        Case(
            "WARNING: tokenization mismatch: 88 vs. 85. (ignored)\n{'loss': 0.0, 'learning_rate': 2e-05, 'epoch': 0.1}",
            "0",
        ),
        "UserWarning: Could not find response key `[835, 13291]` in the following instance: ### Question: ... This instance will be ignored in loss calculation.",
        "ZeroDivisionError: Unsloth: All labels in your dataset are -100. Training losses will be all 0.",
        "jinja2.exceptions.TemplateError: Conversation roles must alternate user/assistant/user/assistant/...",
        "UserWarning: The chat template of this tokenizer does not contain a generation block",
    ),
    near_misses=(
        "ValueError: Cannot use chat template functions because tokenizer.chat_template is not set and no template argument was passed!",
    ),
)
