"""Names that libraries renamed, moved or dropped: the old name, its replacement, and the version.

`version_api_rename` looks up names from errors here, so that its explanation can say what to write instead. A row also
works in reverse: a new name that an older installation does not have yet.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True, slots=True)
class Renamed:
    """A removed name. `owner` is a pattern for its class or module; empty if the name is unambiguous."""

    library: str
    since: str  # the first version without the old name
    owner: str
    old: str
    new: str  # empty: no replacement
    source: str
    says: str = ""  # the advice, if "dropped ...: write ..." does not fit

    def advice_on(self, name: str) -> str:
        """One clause that says what to write instead of the old name, or of the new name if the library is older."""
        if name == self.new:
            return (
                f"in older {self.library} the name is {self.old}: use that, or upgrade {self.library} ({self.source})"
            )
        if self.says:
            return f"{self.library} {self.since}: {self.says} ({self.source})"
        instead = f"use {self.new}" if self.new else "remove it"
        return f"{self.library} {self.since} dropped {self.old}: {instead} ({self.source})"


_ARGS = r"HfArgumentParser|TrainingArguments|SFTConfig|\w*TrainingArguments"
_TRAINER = r"\w*Trainer"
_LIGHTNING = r"Trainer|ModelCheckpoint|LightningModule|pytorch_lightning|lightning"
_CACHE = r"\w*Cache"
_TORCH = r"torch[\w.]*"
_HUB = r"huggingface_hub[\w.]*"
_SCHEDULER = r"\w*LR\w*|CosineAnnealing\w*"

RENAMED = (
    Renamed(
        "torch",
        "2.0",
        "",
        "local-rank",
        "",
        "huggingface/pytorch-image-models#1724",
        says="the launcher passes --local-rank, with a hyphen; accept both, or read os.environ['LOCAL_RANK']",
    ),
    Renamed("transformers", "4.51", "", "evaluation_strategy", "eval_strategy", "huggingface/transformers#36946"),
    Renamed("transformers", "5.0", "", "no_cuda", "use_cpu", "huggingface/transformers#24863"),
    Renamed("transformers", "5.0", "", "use_mps_device", "", "huggingface/transformers#24239"),
    Renamed("transformers", "5.15", _ARGS, "warmup_ratio", "warmup_steps", "vllm-project/semantic-router#3925"),
    Renamed("transformers", "5.15", _ARGS, "logging_dir", "", "vllm-project/semantic-router#3925"),
    Renamed("transformers", "5.15", _ARGS, "group_by_length", "train_sampling_strategy", "read from 5.22.2"),
    Renamed("transformers", "5.15", _ARGS, "save_safetensors", "", "read from 5.22.2"),
    Renamed("transformers", "5.15", _ARGS, "half_precision_backend", "", "read from 5.22.2"),
    Renamed("transformers", "5.15", _ARGS, "include_tokens_per_second", "", "read from 5.22.2"),
    Renamed("transformers", "5.0", "", "per_gpu_train_batch_size", "per_device_train_batch_size", "transformers docs"),
    Renamed("transformers", "5.0", "", "per_gpu_eval_batch_size", "per_device_eval_batch_size", "transformers docs"),
    Renamed("transformers", "5.0", _TRAINER, "tokenizer", "processing_class", "huggingface/trl#6168"),
    Renamed(
        "transformers",
        "4.46",
        "",
        "num_items_in_batch",
        "**kwargs in your own override",
        "huggingface/transformers#35838",
    ),
    Renamed("transformers", "4.0", "", "past", "past_key_values", "huggingface/transformers#5671"),
    Renamed("transformers", "4.50", "transformers", "AdamW", "torch.optim.AdamW", "huggingface/transformers#36177"),
    Renamed(
        "transformers",
        "5.0",
        "",
        "AutoModelForVision2Seq",
        "AutoModelForImageTextToText",
        "open-compass/VLMEvalKit#1675",
    ),
    Renamed("transformers", "5.0", "", "AutoModelWithLMHead", "AutoModelForCausalLM", "transformers docs"),
    Renamed(
        "transformers",
        "5.0",
        "",
        "find_pruneable_heads_and_indices",
        "your own copy",
        "if-ai/ComfyUI_HunyuanVideoFoley#31",
    ),
    Renamed("transformers", "4.24", "", "torch_required", "", "THUDM/GLM#86"),
    Renamed(
        "transformers",
        "3.0",
        "",
        r"BERT_PRETRAINED_MODEL_ARCHIVE_MAP",
        "the hub's model name",
        "lixin4ever/BERT-E2E-ABSA#12",
    ),
    Renamed("transformers", "4.49", _CACHE, "get_max_length", "get_max_cache_shape", "HKUDS/MiniRAG#69"),
    Renamed("transformers", "4.54", _CACHE, "seen_tokens", "get_seq_length()", "Ucas-HaoranWei/GOT-OCR2.0#313"),
    Renamed("transformers", "4.54", _CACHE, "get_usable_length", "get_seq_length", "Ucas-HaoranWei/GOT-OCR2.0#313"),
    Renamed("transformers", "5.0", _CACHE, "from_legacy_cache", "DynamicCache(...)", "transformers docs"),
    Renamed(
        "transformers",
        "5.0",
        "",
        "all_tied_weights_keys",
        "a call of post_init() in the model's own code",
        "huggingface/transformers#43951",
    ),
    Renamed("transformers", "4.0", r"\w*Tokenizer\w*", "max_len", "model_max_length", "transformers docs"),
    Renamed("transformers", "5.0", r"\w*Tokenizer\w*", "batch_encode_plus", "tokenizer(...)", "transformers docs"),
    Renamed("transformers", "5.0", r"\w*Tokenizer\w*", "encode_plus", "tokenizer(...)", "transformers docs"),
    Renamed(
        "transformers",
        "5.0",
        r"\w*Tokenizer\w*",
        "as_target_tokenizer",
        "tokenizer(text_target=...)",
        "transformers docs",
    ),
    Renamed("transformers", "5.0", "", "use_auth_token", "token", "huggingface_hub docs"),
    Renamed("transformers", "5.0", "", "use_flash_attention_2", "attn_implementation", "transformers docs"),
    Renamed(
        "transformers",
        "3.0",
        "transformers[.]modeling_.*",
        "transformers.modeling_bert",
        "transformers.models.bert",
        "transformers docs",
    ),
    Renamed(
        "trl",
        "0.16",
        "",
        "dataset_text_field",
        "SFTConfig(dataset_text_field=...)",
        "bitsandbytes-foundation/bitsandbytes#1471",
    ),
    Renamed(
        "trl", "0.20", "SFT\\w+|\\w*Trainer", "max_seq_length", "SFTConfig(max_length=...)", "stanfordnlp/dspy#8762"
    ),
    Renamed("trl", "0.13", _TRAINER, "max_prompt_length", "DPOConfig(max_prompt_length=...)", "huggingface/trl#2853"),
    Renamed("trl", "0.12", "PPOConfig", "model_name", "the PPO of trl 0.11", "huggingface/trl#2314"),
    Renamed("trl", "0.20", "", "DataCollatorForCompletionOnlyLM", "SFTConfig(completion_only_loss=True)", "trl docs"),
    Renamed("peft", "0.10", "", "prepare_model_for_int8_training", "prepare_model_for_kbit_training", "peft docs"),
    Renamed(
        "accelerate",
        "1.0",
        "",
        "dispatch_batches",
        "DataLoaderConfiguration(dispatch_batches=...)",
        "huggingface/transformers#34714",
    ),
    Renamed(
        "accelerate",
        "1.0",
        "",
        "even_batches",
        "DataLoaderConfiguration(even_batches=...)",
        "huggingface/transformers#34714",
    ),
    Renamed("datasets", "3.0", "", "load_metric", "evaluate.load", "datasets docs"),
    Renamed("datasets", "3.0", "", "ignore_verifications", "verification_mode", "datasets docs"),
    Renamed("huggingface_hub", "0.26", "", "cached_download", "hf_hub_download", "huggingface_hub docs"),
    Renamed("huggingface_hub", "1.0", _HUB, "HfFolder", "get_token", "huggingface_hub docs"),
    Renamed("torch", "2.0", "", "torch._six", "str, collections.abc", "huggingface/transformers#22197"),
    Renamed(
        "torch",
        "1.0",
        "torch[.]distributed",
        "deprecated",
        "torch.distributed itself",
        "facebookresearch/maskrcnn-benchmark#8",
    ),
    Renamed("torch", "1.8", _TORCH, "rfft", "torch.fft.rfft", "torch docs"),
    Renamed("torch", "1.8", _TORCH, "irfft", "torch.fft.irfft", "torch docs"),
    Renamed("torch", "2.0", _TORCH, "symeig", "torch.linalg.eigh", "torch docs"),
    Renamed("torch", "1.13", _TORCH, "solve", "torch.linalg.solve", "torch docs"),
    Renamed("torch", "2.7", _SCHEDULER, "verbose", "get_last_lr()", "opengeos/geoai#182"),
    Renamed(
        "torch",
        "1.11",
        "Upsample",
        "recompute_scale_factor",
        "weights saved by the same torch, or torch<1.11",
        "openai/DALL-E#75",
    ),
    Renamed("torch", "1.12", "GELU", "approximate", "weights saved by the same torch", "qcf-568/DocTamper#22"),
    Renamed(
        "torchvision",
        "0.17",
        "",
        "torchvision.transforms.functional_tensor",
        "torchvision.transforms.functional",
        "torchvision docs",
    ),
    Renamed(
        "torchvision",
        "0.13",
        r"torchvision[\w.]*",
        "model_urls",
        "torchvision.models.get_model_weights",
        "torchvision docs",
    ),
    Renamed("torchtext", "0.12", "", "torchtext.legacy", "torchtext<0.12", "Lightning-AI/pytorch-lightning#11662"),
    Renamed("lightning", "2.0", _LIGHTNING, "gpus", "accelerator='gpu', devices=...", "lcn-kul/madress-2023#1"),
    Renamed(
        "lightning", "2.0", "", "progress_bar_refresh_rate", "TQDMProgressBar(refresh_rate=...)", "clovaai/donut#231"
    ),
    Renamed("lightning", "1.7", "", "checkpoint_callback", "enable_checkpointing", "Lightning docs"),
    Renamed(
        "lightning", "2.0", _LIGHTNING, "resume_from_checkpoint", "trainer.fit(ckpt_path=...)", "clovaai/donut#231"
    ),
    Renamed("lightning", "2.0", "", "from_argparse_args", "Trainer(**vars(args))", "Lightning docs"),
    Renamed("lightning", "2.0", "", "add_argparse_args", "LightningCLI", "Lightning docs"),
    Renamed("lightning", "2.0", "", "replace_sampler_ddp", "use_distributed_sampler", "Lightning docs"),
    Renamed(
        "lightning",
        "1.5",
        "",
        "truncated_bptt_steps",
        "a property of the module",
        "Lightning-Universe/lightning-transformers#212",
    ),
    Renamed("lightning", "1.5", "", "pytorch_lightning.metrics", "torchmetrics", "Lightning docs"),
    Renamed(
        "lightning",
        "2.0",
        "",
        "pytorch_lightning.utilities.distributed",
        "pytorch_lightning.utilities.rank_zero",
        "Lightning docs",
    ),
    *(
        Renamed("numpy", "1.24", "numpy", name, f"{name} or numpy.{name}_", "numpy 1.20 release notes")
        for name in ("int", "float", "bool", "object", "complex", "str", "long")
    ),
    Renamed("numpy", "2.0", "numpy", "float_", "numpy.float64", "numpy 2.0 migration guide"),
    Renamed("numpy", "2.0", "numpy", "Inf", "numpy.inf", "numpy 2.0 migration guide"),
    Renamed("numpy", "2.0", "numpy", "NaN", "numpy.nan", "numpy 2.0 migration guide"),
    Renamed("pandas", "2.0", "DataFrame|Series", "append", "pandas.concat", "pandas docs"),
    Renamed("pandas", "2.0", "DataFrame|Series", "iteritems", "items", "pandas docs"),
    Renamed("pandas", "2.0", "", "error_bad_lines", "on_bad_lines", "pandas docs"),
    Renamed("Pillow", "10.0", r"PIL[\w.]*", "ANTIALIAS", "LANCZOS", "Pillow docs"),
    Renamed("Pillow", "10.0", "FreeTypeFont", "getsize", "getbbox", "Pillow docs"),
    Renamed("Pillow", "7.0", r"PIL[\w.]*", "PILLOW_VERSION", "__version__", "Pillow docs"),
    Renamed("scikit-learn", "0.23", "", "sklearn.externals", "joblib", "scikit-learn docs"),
    Renamed("scikit-learn", "1.4", "OneHotEncoder", "sparse", "sparse_output", "scikit-learn docs"),
    Renamed("mmcv", "2.0", "", "mmcv.runner", "mmengine.runner", "MMCV docs"),
    Renamed("mmcv", "2.0", "", "mmcv.parallel", "mmengine.model", "MMCV docs"),
    Renamed("Python", "3.10", "collections", "Mapping", "collections.abc.Mapping", "Python docs"),
    Renamed("Python", "3.10", "collections", "Iterable", "collections.abc.Iterable", "Python docs"),
    Renamed("Python", "3.11", "inspect", "getargspec", "getfullargspec", "Python docs"),
    Renamed("Python", "3.12", "", "distutils", "setuptools", "Python docs"),
    Renamed("Python", "3.12", "", "imp", "importlib", "Python docs"),
)


@dataclass(frozen=True, slots=True)
class Clash:
    """Two package versions that cannot work together."""

    newer: str
    since: str  # this version of the newer one, or later
    older: str
    below: str  # an earlier version of the older one than this
    what: str
    source: str


CLASHES = (
    Clash(
        "huggingface-hub",
        "0.26",
        "sentence-transformers",
        "2.3",
        "it imports cached_download",
        "ourresearch/openalex-topic-classification#3",
    ),
    Clash(
        "accelerate",
        "1.0",
        "transformers",
        "4.40",
        "its Trainer passes dispatch_batches",
        "huggingface/transformers#34699",
    ),
    Clash("transformers", "4.41", "setfit", "1.1", "it lacks eval_strategy", "huggingface/setfit#528"),
    Clash("transformers", "5.0", "trl", "0.12", "it passes a tokenizer to the Trainer", "huggingface/trl#6168"),
)


def find_renamed(name: str, owner: str) -> Renamed | None:
    """Look up a name by its class or module; the empty string is an unknown owner."""
    for row in _by_name().get(name, ()):
        if not row.owner or (owner and re.fullmatch(row.owner, owner)):
            return row
    return None


@cache
def _by_name() -> dict[str, list[Renamed]]:
    rows: dict[str, list[Renamed]] = {}
    for name, row in _both_ways():
        rows.setdefault(name, []).append(row)
    return rows


def _both_ways() -> Iterator[tuple[str, Renamed]]:
    for row in RENAMED:
        yield row.old, row
    for row in RENAMED:
        if row.new.isidentifier() and row.new not in ("token", "items", "joblib", "setuptools", "importlib"):
            yield row.new, row
