"""A text has more tokens than the model has positions.

What you see: "The size of tensor a (937) must match the size of tensor b (512)", an index error in the position
embedding, or an outright refusal ("Cannot forward sequence of length 2048, block size is only 1024").
Why: BERT-like models have a table of 512 positions, CLIP's text encoder 77, Whisper's labels 448. The limit counts
tokens, not words, and truncation was not turned on. The tokenizer's warning "sequence length is longer than ..." comes
first.
What we do: measure all lengths when the data is read, truncate or split as requested, and report how many.
"""

from holdfast.core.evidence import Evidence, Passage
from holdfast.core.plan import Remedy
from holdfast.hazards import Hazard, judged, proves, seen, suggests

# The executed line of a traceback, not the neighboring lines a notebook prints ("   1023   x = ...").
_RUNNING = r"^(?![\s│|]*\d+[ \t│|])[^\n]*"
_POSITION_TABLE = (
    r"(?:position_embeddings?\(|embed_positions\(|\bwpe\(|pos_embedding\w*\(|pos_emb\(|position(?:al)?_(?:embedding|encod)\w*\("
    r"|embeddings \+= position|\+ (?:self\.)?(?:pos(?:ition(?:al)?)?_emb(?:edding)?s?|pe|wpe)\b(?!\())"
)
_WARNED = r"sequence length is longer than the specified maximum sequence length"
# Shows that an index error concerns positions, not the vocabulary; token-out-of-range uses it too.
TOO_LONG = (
    seen("log", _WARNED),
    seen("log", _RUNNING + _POSITION_TABLE),
    seen("log", r"Tried to access index (?:512|514|1024|2048|4096) out of table with (?:511|513|1023|2047|4095) rows"),
)

_LIMITS = {77, 128, 256, 448, 512, 514, 1000, 1022, 1024, 1026, 2048, 4096, 8192, 16384, 32768}
_SIZES = (
    r"(?:size of tensor a|expanded size of the tensor) \((\d+)\) must match the (?:size of tensor b|existing size) \((\d+)\)"
    r" at non-singleton dimension (\d)"
)
_ABOUT_TEXT = seen(
    "log", r"token_type_ids|attention_mask|max_(?:seq_)?len|seq_len|[Bb]ert\b|modeling_\w+|[Tt]okeniz|embeddings"
)
_ABOUT_MASK = seen(
    "log", r"causal_mask|tgt_mask|attn_mask|attention_mask|attn_bias|attn_weights|upper_triangle|rotary|apply_rotary"
)


def _longer_than_the_table(evidence: Evidence) -> Passage | None:
    """Two mismatched sizes, if the context says that the smaller one is a number of positions."""
    for sizes, passage in evidence.log.search(_SIZES):
        got, had, dimension = (int(size) for size in sizes.groups())
        if got > had and _is_positions(evidence, passage.text, had, dimension):
            return passage
    return None


def _is_positions(evidence: Evidence, message: str, had: int, dimension: int) -> bool:
    if TOO_LONG[0].find(evidence) or TOO_LONG[1].find(evidence):
        return True
    if had not in _LIMITS:
        return False
    if f"Tensor sizes: [1, {had}]" in message:  # BERT keeps one row of token types, one per position
        return True
    return bool(_ABOUT_TEXT.find(evidence) if dimension == 1 else _ABOUT_MASK.find(evidence))


HAZARD = Hazard(
    slug="sequence-too-long",
    title="a sequence is longer than the model allows",
    kind="error",
    over=("token-out-of-range", "cuda-device-assert"),
    signs=(
        judged("suggests", _longer_than_the_table),
        proves("log", r"Cannot forward(?: sequence of length \d+)?,[^\n]*block size"),
        proves("log", r"[Ss]equence length must be less than max_position_embeddings"),
        proves("log", r"sequence length \d+ cannot exceed the maximum allowed length"),
        proves(
            "log",
            r"too long for context length|tokens exceeds maximum length",
        ),
        proves("log", r"is invalid \(=[^\n]*\) since max_positions="),
        proves("log", r"maximum context length is \d+ tokens"),
        proves(
            "error",
            r"(?i)(?:sequence|input|prompt|context|token)s?(?: length| size)?[^\n]{0,50}(?:exceeds?|longer than|larger than|greater than|too long for)[^\n]{0,40}(?:max(?:imum)?\w*|block[_ ]size|position|context|limit|\d{3,})",
        ),
        suggests("log", r"index out of range|index -?\d+ is out of bounds|Tried to access index", also=(TOO_LONG[1],)),
        suggests("error", r"index out of range|index -?\d+ is out of bounds|device-side assert", also=(TOO_LONG[0],)),
        suggests(
            "error",
            r"index (\d+) is out of bounds for dimension \d with size \1\b",
            also=(seen("log", r"rotary|cos\[|sin\[|position|freqs"),),
        ),
        suggests("log", r"start \(\d+\) \+ length \(\d+\) exceeds dimension size \((?:77|512|514|1024|2048|4096)\)"),
        suggests("log", _WARNED),
    ),
    remedies=(
        Remedy(
            "split long texts into pieces that fit",
            command="tokenizer(texts, truncation=True, max_length=512, stride=64, return_overflowing_tokens=True)",
            cost="more examples; labels are repeated",
        ),
        Remedy(
            "truncate texts at the model's limit",
            command="tokenizer(texts, truncation=True, max_length=model.config.max_position_embeddings)",
            cost="the model does not see the end of long texts",
            keeps=False,
        ),
        Remedy(
            "use a model with more positions",
            command="python train.py --model_name_or_path answerdotai/ModernBERT-base",
            cost="a different model, slower on long texts",
            keeps=False,
        ),
    ),
    sources=(
        "gomate-community/TrustRAG#156",
        "huggingface/transformers#2446",
        "MaartenGr/BERTopic#1852",
        "huggingface/transformers#33196",
        "SamLynnEvans/Transformer#8",
    ),
    matches=(
        "    embeddings += position_embeddings\nRuntimeError: The size of tensor a (678) must match the size of tensor b (512) at non-singleton dimension 1",
        "RuntimeError: The expanded size of the tensor (548) must match the existing size (512) at non-singleton dimension 1.  Target sizes: [1, 548].  Tensor sizes: [1, 512]",
        "ValueError: Labels' sequence length 495 cannot exceed the maximum allowed length of 448 tokens.",
        "AssertionError: Cannot forward sequence of length 2048, block size is only 1024",
        "ValueError: Sequence length must be less than max_position_embeddings (got `sequence length`: 200 and max_position_embeddings: 77)",
        "Token indices sequence length is longer than the specified maximum sequence length for this model (548 > 512). Running this sequence through the model will result in indexing errors\nIndexError: index out of range in self",
        "    position_embeddings = self.position_embeddings(position_ids)\nIndexError: index out of range in self",
        "Exception: Size of sample #5 is invalid (=(1025, 0)) since max_positions=(1024, 1024), skip this example with --skip-invalid-size-inputs-valid-test",
        "RuntimeError: Input a very long caption is too long for context length 77",
        "openai.BadRequestError: This model's maximum context length is 4096 tokens.",
        "    return freqs[position]\nIndexError: index 2048 is out of bounds for dimension 0 with size 2048",
        "RuntimeError: start (0) + length (600) exceeds dimension size (512).",
    ),
    near_misses=(
        "RuntimeError: The size of tensor a (32) must match the size of tensor b (64) at non-singleton dimension 2",
        "RuntimeError: The size of tensor a (768) must match the size of tensor b (512) at non-singleton dimension 3",
        "    inputs_embeds = self.word_embeddings(input_ids)\nIndexError: index out of range in self",
        "ValueError: Unable to create tensor, you should probably activate truncation and/or padding",
    ),
)
