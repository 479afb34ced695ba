"""A token id is larger than the model's embedding table.

What you see: "IndexError: index out of range in self" in the embedding; on a GPU "Assertion `srcIndex <
srcSelectDimSize` failed" and a device-side assert.
Why: tokens were added but the table was not resized, the tokenizer belongs to another model, or -100 (the "ignore"
label) reached the inputs or a decoder.
What we do: compare the largest id in the prepared data with the table's size before the first step.
"""

from holdfast.core.plan import Remedy
from holdfast.hazards import Hazard, proves, seen, suggests
from holdfast.hazards.sequence_too_long import TOO_LONG

# On a GPU the embedding fails in an index kernel; these are its names in different releases.
_INDEX_KERNEL = (
    r"srcIndex < srcSelectDimSize|indexSelect(?:Large|Small)Index|vectorized[_ ]gather[_ ]kernel[^\n]*(?:out of bounds|failed)"
    r"|ind >= ?0 && ind < ind_dim_size"
)
_TOKEN_TABLE = (
    r"word_embeddings?\(|embed_tokens\(|\bwte\(|embed_in\(|tok_embeddings\(|token_embedding\w*\(|embed_dim|shared\(input_ids"
    r"|input_ids|word_embed|vocab"
)
_LABEL_LOSS = seen("log", r"in nll_loss|in cross_entropy|Target -?\d+ is out of bounds")

HAZARD = Hazard(
    slug="token-out-of-range",
    title="a token id is outside the model's embedding table",
    kind="error",
    over=("cuda-device-assert",),
    signs=(
        proves("log", _INDEX_KERNEL, unless=TOO_LONG),
        proves("log", r"index out of range: Tried to access index \d+ out of table with \d+ rows", unless=TOO_LONG),
        proves("log", r"piece id is out of range|out of range integral type conversion attempted"),
        proves("log", r"indices\[[\d,]+\] = -?\d+ is not in \[0, ?\d+\)"),
        proves("error", r"(?i)token(?:s| ids?)[^\n]{0,40}(?:out of (?:vocab\w*|range|bounds)|exceeds? (?:the )?vocab)"),
        proves(
            "error",
            r"(?i)(?:vocab(?:ulary)?[ _]size|embedding (?:size|table))[^\n]{0,60}(?:smaller|less) than[^\n]{0,40}(?:tokenizer|token)",
        ),
        suggests("log", r"index out of range in self", unless=(*TOO_LONG, _LABEL_LOSS)),
        suggests("log", r"index out of range at \S*(?:THTensor\w*|EmbeddingBag|Embedding\w*)\.", unless=TOO_LONG),
        suggests(
            "error",
            r"index -?\d+ (?:is )?out of (?:bounds|range)",
            also=(seen("log", r"\bembedding\b|Embedding|embed_tokens|word_embeddings?|\bwte\b"),),
            unless=TOO_LONG,
        ),
        suggests(
            "error",
            r"device-side assert triggered",
            also=(seen("log", r"torch\.embedding\(|in embedding$|F\.embedding\("), seen("log", _TOKEN_TABLE)),
            unless=(*TOO_LONG, seen("log", r"t >= 0 && t < n_classes")),
        ),
        suggests("frame", r"^embedding \(.*functional", unless=(seen("error", r"."), *TOO_LONG)),
    ),
    remedies=(
        Remedy(
            "resize the table to one row per token",
            command="model.resize_token_embeddings(len(tokenizer))",
            cost="new rows start untrained",
        ),
        Remedy(
            "load the model's own tokenizer",
            command="AutoTokenizer.from_pretrained(model.config.name_or_path)",
        ),
        Remedy(
            "replace -100 before decoding",
            command="labels = np.where(labels != -100, labels, tokenizer.pad_token_id)",
        ),
    ),
    sources=(
        "huggingface/transformers#2446",
        "huggingface/transformers#12763",
        "kongds/E5-V#7",
        "mickeysjm/R-BERT#5",
        "axolotl-ai-cloud/axolotl#2257",
    ),
    matches=(
        "IndexError: index out of range in self",
        "../aten/src/ATen/native/cuda/Indexing.cu:1236: indexSelectSmallIndex: block: [5,0,0], thread: [44,0,0] Assertion `srcIndex < srcSelectDimSize` failed.",
        "RuntimeError: index out of range: Tried to access index 50257 out of table with 50256 rows. at /pytorch/aten/src/TH/generic/THTensorEvenMoreMath.cpp:418",
        "IndexError: piece id is out of range.",
        "OverflowError: out of range integral type conversion attempted",
        "tensorflow.python.framework.errors_impl.InvalidArgumentError: indices[0,5] = 30522 is not in [0, 30522)",
        "ValueError: token ids out of range for a vocabulary of 32000",
        "ValueError: the vocab size of the model (32000) is smaller than that of the tokenizer (32001)",
        "RuntimeError: index out of range at /pytorch/aten/src/TH/generic/THTensorEvenMoreMath.cpp:418",
        "    x = self.word_embeddings(ids)\nIndexError: index 32001 is out of bounds for axis 0 with size 32000",
        "input_ids.max() 32005 vocab_size 32000\n    return torch.embedding(weight, input)\nRuntimeError: CUDA error: device-side assert triggered",
        '  File "/venv/lib/python3.11/site-packages/torch/nn/functional.py", line 2551, in embedding\n',
    ),
    near_misses=(
        "IndexError: list index out of range",
        "IndexError: Target 7 is out of bounds.",
        "Token indices sequence length is longer than the specified maximum sequence length for this model (548 > 512).",
        "IndexError: index 3 is out of bounds for axis 0 with size 3",
    ),
)
