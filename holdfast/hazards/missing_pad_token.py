"""The tokenizer has no padding token, so examples of different lengths cannot be batched.

What you see: "Asking to pad but the tokenizer does not have a padding token", or "Cannot handle batch sizes > 1 if no
padding token is defined" at the first batch.
Why: GPT-2, Llama and other generators were trained without padding. Classification heads also look for the token's id
in the model's config.
What we do: pad with a token that the loss ignores. The end-of-text token works if its labels are masked.
"""

from holdfast.core.plan import Remedy
from holdfast.hazards import Hazard, proves, seen, suggests

HAZARD = Hazard(
    slug="missing-pad-token",
    title="the tokenizer has no padding token",
    kind="error",
    signs=(
        proves(
            "log", r"tokenizer does not have a padd?ing token|tokenizer you are using \([^)\n]*\) does not have one"
        ),
        proves("log", r"Cannot handle batch sizes > 1 if no padding token"),
        proves("log", r"[Tt]okenizer without pad_token cannot do batching"),
        proves("log", r"Unable to set proper padding strategy as the tokenizer"),
        proves("log", r"pad_token_id has to be defined|`pad_token_id` (?:has to|must) be (?:defined|set)"),
        proves("log", r"`?pad_token`? \('[^'\n]*'\) is not found in the vocabulary"),
        proves("log", r"padding_value'? \(position \d+\) must be \w+, not NoneType"),
        suggests(
            "error",
            r"(?i)\bpad(?:ding)?[_ ]?token(?:_id)?\b[^\n]{0,60}(?:is not set|not (?:been )?defined|must be (?:set|defined|specified)|is None|is missing|is required)",
        ),
        suggests(
            "error", r"(?i)(?:no|without a|missing|needs? a|must have a|does not have a) [`'\"]?pad(?:ding)?[_ ]?token"
        ),
        suggests("error", r"'\w+Config' object has no attribute 'pad_token_id'"),
        suggests(
            "error",
            r"^TypeError: [^\n]*NoneType",
            also=(seen("log", r"(?:pad_sequence|torch\.full|np\.pad|new_full)\([^\n]*pad"),),
        ),
        suggests("frame", r"_get_padding_truncation_strategies", unless=(seen("error", r"."),)),
    ),
    remedies=(
        Remedy(
            "pad with the end-of-text token and set it in the model's config",
            command="tokenizer.pad_token = tokenizer.eos_token; model.config.pad_token_id = tokenizer.pad_token_id",
            cost="none if padded labels are -100; otherwise the model may unlearn when to stop",
        ),
        Remedy(
            "add a separate padding token",
            command="tokenizer.add_special_tokens({'pad_token': '[PAD]'}); model.resize_token_embeddings(len(tokenizer))",
            cost="one more row in the embedding",
        ),
        Remedy(
            "use batches of one",
            change={"micro_batch": 1, "eval_micro_batch": 1},
            cost="slower; accumulation keeps the effective batch",
        ),
    ),
    sources=(
        "huggingface/transformers#4122",
        "huggingface/transformers#22312",
        "huggingface/trl#422",
        "stanford-crfm/BioMedLM#4",
    ),
    matches=(
        "ValueError: Asking to pad but the tokenizer does not have a padding token. Please select a token to use as `pad_token`",
        "AssertionError: Cannot handle batch sizes > 1 if no padding token is defined.",
        "ValueError: You are attempting to pad samples but the tokenizer you are using (GPT2Tokenizer) does not have one.",
        "TypeError: pad_sequence(): argument 'padding_value' (position 3) must be float, not NoneType",
        "ValueError: Pipeline with tokenizer without pad_token cannot do batching. You can try to set it with `pipe.tokenizer.pad_token_id`",
        "AssertionError: self.model.config.pad_token_id has to be defined. In T5 it is usually set to the pad_token_id.",
        "ValueError: Unable to set proper padding strategy as the tokenizer does not have a padding token.",
        "ValueError: The provided `pad_token` ('<pad>') is not found in the vocabulary",
        "ValueError: pad_token_id must be set when batch size > 1",
        "AttributeError: 'LlamaConfig' object has no attribute 'pad_token_id'",
        '  File "/venv/lib/python3.11/site-packages/transformers/tokenization_utils_base.py", line 2900, in _get_padding_truncation_strategies\n',
    ),
    near_misses=(
        "Setting `pad_token_id` to `eos_token_id`:50256 for open-end generation.",
        "Using pad_token, but it is not set yet.",
        "ValueError: Unable to create tensor, you should probably activate truncation and/or padding with 'padding=True'",
    ),
)
