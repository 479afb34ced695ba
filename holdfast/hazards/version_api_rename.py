"""A script and a library, or two libraries, do not match: a name was renamed, moved or dropped.

What you see: "got an unexpected keyword argument 'evaluation_strategy'", "cannot import name 'AdamW' from
'transformers'", "module 'numpy' has no attribute 'int'".
Why: libraries rename arguments and move modules between releases, and an install without upper bounds gets the newest.
What we do: name the replacement if it is known; otherwise name the library whose version to change.
"""

import re
from collections.abc import Iterator
from itertools import islice

from holdfast.core.evidence import Evidence, Passage
from holdfast.core.facts import MachineFacts
from holdfast.core.plan import Plan, Remedy
from holdfast.hazards import Hazard, Invited, judged, proves, seen, suggests
from holdfast.hazards.renamed import CLASHES, find_renamed


def invited_by(facts: MachineFacts, plan: Plan) -> Invited | None:
    """Say why this machine and plan invite the hazard; None when they do not."""
    clashing = [
        f"{clash.older} {facts.distributions[clash.older]} with {clash.newer} {facts.distributions[clash.newer]}: {clash.what}"
        for clash in CLASHES
        if facts.has_at_least(clash.newer, clash.since) and facts.has_below(clash.older, clash.below)
    ]
    return Invited("; ".join(clashing)) if clashing else None


# Ordinary attribute and argument errors are bugs in the program: a name counts only if it belongs to one of these.
_LIBRARIES = (
    r"(?:transformers|trl|peft|accelerate|datasets|huggingface_hub|tokenizers|diffusers|evaluate|sentence_transformers|setfit|optimum|safetensors"
    r"|torch|torchvision|torchaudio|torchtext|torchmetrics|pytorch_lightning|lightning|lightning_fabric|lightning_utilities|torchdata|torch_geometric"
    r"|numpy|scipy|sklearn|pandas|skimage|PIL|matplotlib|networkx|librosa|gensim|nltk|spacy|albumentations|imgaug|seaborn"
    r"|tensorflow|keras|tensorboard|tensorflow_addons|tensorflow_hub|jax|jaxlib|flax|optax|chex|haiku"
    r"|timm|mmcv|mmengine|mmdet|mmseg|mmcls|mmpretrain|fairseq|fastai|allennlp|detectron2|ultralytics|fvcore|kornia|monai|dgl"
    r"|deepspeed|vllm|xformers|Unsloth\w+|unsloth|unsloth_zoo|llamafactory|axolotl|swift|ray|gradio|wandb|hydra|omegaconf|pydantic|typing_extensions"
    r"|google\.protobuf|urllib3|requests|httpx|fsspec|packaging|setuptools|pkg_resources|importlib_metadata|jinja2|markupsafe|werkzeug|flask|triton"
    r"|collections|inspect|fractions|asyncio|pkgutil|time|typing|six)"
)
_COMPILED = r"(?!_C\b|_ext\b|\w*_cuda\b|\w*_ops\b|lib\w+\.so)"  # a missing extension is not a renamed name
_FAMILY = (
    r"(?:Bert|Roberta|XLM\w*|Albert|Electra|Deberta\w*|DistilBert|ModernBert|GPT\w*|OPT|Bloom|Llama|LLaMA|Mistral|Mixtral|Gemma\w*|Phi\w*|Qwen\w*"
    r"|ChatGLM|GLM\w*|Baichuan|InternLM\w*|InternVL\w*|Deepseek\w*|Falcon|RW|MPT|T5|MT5|UMT5|Bart|MBart|Pegasus|Marian|Whisper|Wav2Vec2|Hubert|CLIP\w*|ViT|Swin"
    r"|Llava\w*|MiniCPM\w*|Yi|Cohere|Starcoder\w*|CodeGen|Mamba\w*|Nemotron\w*|LLaDA\w*|Molmo\w*|Florence\w*|Auto)"
)
_LIBRARY_CLASS = (
    rf"(?:\w*TrainingArguments|Trainer|Seq2SeqTrainer|\w{{0,7}}(?:SFT|DPO|ORPO|KTO|CPO|PPO|GRPO|RLOO|BCO|GKD|XPO|Reward)(?:Trainer|Config)"
    rf"|Accelerator(?:State)?|PartialState|\w+Plugin|DataLoader(?:Configuration|Shard|Dispatcher)|(?:Ada)?Lora(?:Config|Model|Layer)|Peft(?:Model\w*|Config)|PromptTuningConfig"
    rf"|{_FAMILY}(?:Config|Tokenizer(?:Fast)?|Model\w*|For\w+|Processor|Attention|PreTrainedModel|ImageProcessor|FeatureExtractor|LMHeadModel)"
    rf"|PreTrained(?:Tokenizer\w*|Model|Config)|PretrainedConfig|\w*TokenizerFast|TokenizersBackend|BitsAndBytesConfig|GenerationConfig|(?:Dynamic|Static|Hybrid|EncoderDecoder|SlidingWindow)Cache"
    rf"|DatasetDict|IterableDataset|DownloadConfig|DatasetInfo|HfApi|HfArgumentParser|SentenceTransformer\w*|CrossEncoder\w*|ModelCheckpoint|EarlyStopping|LightningModule|TensorBoardLogger|WandbLogger"
    rf"|Adam\w?|SGD|RMSprop|\w+LR|ReduceLROnPlateau|CosineAnnealingWarmRestarts|GradScaler|autocast|FullyShardedDataParallel|DeepSpeedEngine|Upsample|GELU|LayerNorm|MultiheadAttention|ConvTranspose2d"
    rf"|Version|DataFrame|Series|FreeTypeFont|OneHotEncoder|Client|DiffusionPipeline|\w+Scheduler|UNet2DConditionModel)"
)
# A subclass of a library class lacks what a newer parent expects; only library code accesses that.
_SUBCLASS = r"\w*(?:Evaluator|Trainer|Callback|Collator|Tokenizer|Cache|Scheduler|Optimizer|TrainingArguments)\w*"
_LIBRARY_FUNCTION = (
    r"(?:dispatch_model|unwrap_model|hf_hub_download|snapshot_download|from_pretrained|save_pretrained|get_peft_model|prepare_model_for_\w+|load_dataset"
    r"|scaled_dot_product_attention|flash_attn_\w+|apply_chat_template|load_checkpoint_and_dispatch|clip_grad_norm_|_register_\w+|on_\w+_(?:begin|end))"
)
# Python's messages for a missing name; a line break may precede the name.
_REFUSED = r"(?:(?P<owner>\w+)\.)?(?P<function>\w+)\(\) got an unexpected keyword argument\s+'(?P<name>\w+)'"
_LACKS = r"(?:type object )?['\"](?P<owner>\w+)['\"](?: object)? has no attribute ['\"](?P<name>\w+)['\"]"
_ASKED = (
    _REFUSED,
    r"cannot import name ['\"]?(?P<name>\w+)['\"]?(?: from ['\"](?P<owner>[\w.]+)['\"])?",
    r"module ['\"](?P<owner>[\w.]+)['\"] has no attribute ['\"](?P<name>\w+)['\"]",
    _LACKS,
    r"No module named ['\"]?(?P<name>[\w.]+)['\"]?",
    r"(?:not used by the (?P<owner>HfArgumentParser):\s*\[|unrecognized arguments:[^\n]*?)[ '\"]*--(?P<name>[\w-]+)",
)
_FRAME = re.compile(r"File \"?(?P<path>[^\",\n]+?)(?:\"|:\d+|,)|^\W*(?P<cell>[\w./\\~:-]+\.py)(?:\]\S*)? in \w+\(")
_IN_LIBRARY = re.compile(
    rf"(?:site|dist)-packages[/\\]{_LIBRARIES}\b|transformers_modules[/\\.]|[/\\](?:transformers|trl|peft|accelerate|pytorch_lightning)[/\\]"
)
_MANY = 20  # the first few tell; a log may repeat one error for ever
_BROKEN_INSTALL = (seen("error", r"partially initialized module|circular import|\(unknown location\)"),)


def _known_rename(evidence: Evidence) -> Passage | None:
    """An error that names an entry of the table; its line then says what to write instead."""
    for shape in _ASKED:
        for asked, passage in _places(evidence, shape):
            owner = asked.groupdict().get("owner") or _called_before(evidence, passage.line)
            if row := find_renamed(asked["name"], owner):
                return Passage(passage.source, passage.line, f"{passage.text}  [{row.advice_on(asked['name'])}]")
    return None


def _library_was_asked(evidence: Evidence) -> Passage | None:
    """A library class that lacks an attribute or rejects an argument, used by library code or visible in the traceback."""
    for asked, passage in _places(evidence, _REFUSED):
        owner = asked["owner"] or _called_before(evidence, passage.line)
        is_plain_init = not asked["owner"] and asked["function"] == "__init__"
        if re.fullmatch(_LIBRARY_FUNCTION, asked["function"]):
            return passage
        if re.fullmatch(_LIBRARY_CLASS, owner) and asked["function"] != "forward":  # forward gets a data set's columns
            return passage
        if is_plain_init and _is_in_library(_running_file(evidence, passage.line)):
            return passage
    for asked, passage in _places(evidence, _LACKS):
        file = _running_file(evidence, passage.line)
        is_plainly_theirs = not file and asked["owner"] not in ("Trainer", "DataFrame", "Series")
        if re.fullmatch(_LIBRARY_CLASS, asked["owner"]) and (is_plainly_theirs or _is_in_library(file)):
            return passage
        if re.fullmatch(_SUBCLASS, asked["owner"]) and _is_in_library(file):
            return passage
    return None


def _places(evidence: Evidence, pattern: str) -> Iterator[tuple[re.Match[str], Passage]]:
    """Matches in errors, then in other lines, because loggers print an exception's text without its type."""
    yield from islice(evidence.errors.search(pattern), _MANY)
    if not evidence.ended_well:
        yield from islice(evidence.log.search(pattern), _MANY)


def _is_in_library(file: str) -> bool:
    return bool(_IN_LIBRARY.search(file))


def _lines_above(evidence: Evidence, line: int, count: int) -> list[str]:
    return [passage.text for passage in evidence.log if line - count <= passage.line < line][::-1]


def _running_file(evidence: Evidence, line: int) -> str:
    """The file of the innermost frame above a line, without torch's attribute lookup; empty if there is none."""
    for text in _lines_above(evidence, line, 16):
        if (frame := _FRAME.search(text)) and "__getattr__" not in text:
            return frame["path"] or frame["cell"] or ""
    return ""


def _called_before(evidence: Evidence, line: int) -> str:
    """The class that the nearest source line above calls, for Python versions whose message omits it."""
    for text in _lines_above(evidence, line, 6):
        if called := re.search(rf"\b({_LIBRARY_CLASS})\(", text):
            return called[1]
    return ""


HAZARD = Hazard(
    slug="version-api-rename",
    title="a library renamed, moved or dropped a name that the program uses",
    kind="error",
    invited_by=invited_by,
    signs=(
        judged("proves", _known_rename),
        proves(
            "error",
            rf"cannot import name ['\"]?{_COMPILED}\w+['\"]? from ['\"]{_LIBRARIES}(?:\.[\w.]+)?['\"]",
            unless=_BROKEN_INSTALL,
        ),
        proves(
            "error",
            rf"module ['\"](?!torch\._C\b|torch\.cuda|torch\.version){_LIBRARIES}(?:\.[\w.]+)?['\"] has no attribute",
            unless=_BROKEN_INSTALL,
        ),
        proves(
            "error",
            rf"No module named ['\"]?(?!numpy\.(?:_core|core)\b){_LIBRARIES}\.{_COMPILED}(?!_C)[\w.]+",
            unless=(seen("error", r"No module named '[\w.]*(?:_C|_ext|_cuda)\b"),),
        ),
        proves(
            "log",
            r"`?np\.\w+`? was (?:a deprecated alias|removed in the NumPy)|was deprecated in NumPy 1\.20 and removed",
        ),
        proves(
            "error",
            r"(?:[Ss]upport for|The|Argument|Passing|`\w+`)[^\n]{0,80}(?:has been|was|were) removed (?:in|from|since) (?:v(?:ersion)? ?)?\d",
        ),
        proves(
            "log",
            r"Legacy autograd function with non-static forward|invalid index of a 0-dim tensor|Integer division of tensors using div or / is no longer supported",
        ),
        proves(
            "log",
            r"Dataset scripts are no longer supported|Feature type '\w+' not found|trust_remote_code`? is not supported anymore",
        ),
        proves(
            "log",
            r"Loading a dataset cached in a LocalFileSystem is not supported|Invalid pattern: '\*\*' can only be an entire path component",
        ),
        proves(
            "log",
            r"Transformers does not recognize this architecture|Tokenizer class \w+ does not exist or is not currently imported",
        ),
        proves(
            "log",
            r"`?rope_scaling`? must be a dictionary with (?:two|with two) fields|is required for a normal functioning of this module, but found",
        ),
        proves(
            "log",
            r"data did not match any variant of untagged enum|Unrecognized keyword arguments?(?: passed to \w+)?:|Argument\(s\) not recognized: \{'lr'",
        ),
        proves(
            "error",
            r"(?:compute_loss|training_step|_save_checkpoint|_maybe_log_save_evaluate|_get_train_sampler|prediction_step|optimizer_step|lr_scheduler_step|on_\w+_end)\(\) (?:takes|missing|got an unexpected)",
        ),
        proves(
            "log",
            r"\blog\(\) takes 2 positional arguments but 3 were given|__new__\(\) missing 1 required positional argument: 'task'|\bmel\(\) takes \d+ positional arguments?",
        ),
        proves(
            "error",
            r"(?:can't set attribute|property) '?(?:\w+_token)'?(?: of '\w*Tokenizer\w*' object has no setter)?|vocab attribute was removed from KeyedVector",
        ),
        proves(
            "error",
            r"_set_gradient_checkpointing\(\) got an unexpected keyword|'list' object has no attribute '(?:keys|update)'",
            also=(seen("log", r"tied_weights?_keys|_set_gradient_checkpointing"),),
        ),
        proves("log", r"is used but incompatible|[`']\w+[`'] has (?:been )?moved to (?:the )?[`']"),
        proves("error", r"requires? (?:a source install|(?:a )?minimum version of \d)|VersionConflict"),
        suggests("log", r"^(?!.*[Ww]arning)[^\n]*[Ss]upport for [^\n]{0,60}has been removed in v?\d"),
        suggests("error", r"can't set attribute", also=(seen("log", r"tokenization_|Tokenizer"),)),
        judged("suggests", _library_was_asked),
        suggests(
            "error",
            r"^KeyError: ['\"]\w+['\"]",
            also=(seen("log", r"CONFIG_MAPPING\[|_config_mapping|model_type\"\]\]"),),
        ),
        suggests(
            "error",
            r"(?:AttributeError|TypeError|ImportError|NameError): ",
            also=(seen("log", r"transformers_modules[/\\.]"),),
        ),
        suggests(
            "error", r"'module' object has no attribute '(?:no_grad|device|tensor|inference_mode|compile|nan_to_num)'"
        ),
        suggests(
            "error",
            r"result type Float can't be cast to the desired output type (?:__int64|long int|Long)",
            also=(seen("log", r"clamp_\(|build_targets"),),
        ),
        suggests(
            "log",
            r"Can't get attribute '\w+' on <?module '(?:ultralytics|models\.(?:common|yolo)|torch|transformers|timm)[\w.]*'",
        ),
        suggests("error", r"^SyntaxError: invalid syntax", also=(seen("log", r"\basync ?= ?True"),)),
        suggests(
            "error",
            r"'\w+' object has no attribute '(?:_flat_weights|proj_size|_padding_repeated_twice|padding_mode|batch_first|_qkv_same_embed_dim|num_batches_tracked|_non_persistent_buffers_set|sp_model)'",
        ),
        suggests("error", r"No module named ['\"]?(?:pkg_resources|distutils|imp|asynchat|cgi)['\"]?$"),
        suggests(
            "log",
            r"^(?!.*[Ww]arning)[^\n]*\b(?:module 'numpy' has no attribute|cannot import name '\w+' from '(?:transformers|trl|peft|torch\w*|huggingface_hub|datasets)[\w.]*')",
        ),
    ),
    remedies=(
        Remedy(
            "use the new name shown next to the error",
            command="python -m pip show LIBRARY   # then the release notes of that version",
            cost="none",
        ),
        Remedy(
            "upgrade the libraries that belong together",
            command="python -m pip install --upgrade transformers trl peft accelerate datasets huggingface_hub",
        ),
        Remedy(
            "go back to the release that the program was written for",
            command="python -m pip install 'transformers<5'",
            cost="without later fixes",
        ),
    ),
    sources=(
        "huggingface/setfit#528",
        "huggingface/trl#6168",
        "huggingface/transformers#36946",
        "huggingface/transformers#34714",
        "acids-ircam/RAVE#219",
        "serengil/retinaface#53",
        "huggingface/transformers#44861",
    ),
    matches=(
        "TypeError: TrainingArguments.__init__() got an unexpected keyword argument 'evaluation_strategy'",
        "TypeError: __init__() got an unexpected keyword argument 'evaluation_strategy'",
        "    trainer = pl.Trainer(**trainer_params)\nTypeError: __init__() got an unexpected keyword argument 'gpus'",
        "ImportError: cannot import name 'AutoModelForVision2Seq' from 'transformers' (/usr/local/lib/python3.12/dist-packages/transformers/__init__.py)",
        "AttributeError: module 'numpy' has no attribute 'int'.\n`np.int` was a deprecated alias for the builtin `int`.",
        "AttributeError: 'DynamicCache' object has no attribute 'get_max_length'. Did you mean: 'get_seq_length'?",
        "ModuleNotFoundError: No module named 'torch._six'",
        "NotImplementedError: Support for `validation_epoch_end` has been removed in v2.0.0. `RAVE` implements this method.",
        "TypeError: LogitsTrainer.compute_loss() got an unexpected keyword argument 'num_items_in_batch'",
        "  File \"/venv/lib/python3.10/site-packages/transformers/trainer.py\", line 3883, in create_accelerator_and_postprocess\n    self.accelerator = Accelerator(\nTypeError: __init__() got an unexpected keyword argument 'use_seedable_sampler'",
        "IndexError: invalid index of a 0-dim tensor. Use `tensor.item()` in Python to convert a 0-dim tensor to a number",
        "ValueError: The checkpoint you are trying to load has model type `qwen3` but Transformers does not recognize this architecture.",
        "  File \"/home/user/.cache/huggingface/modules/transformers_modules/phi3/modeling_phi3.py\", line 1292, in prepare\nAttributeError: 'Phi3Config' object has no attribute 'rope_theta'",
    ),
    near_misses=(
        "AttributeError: 'Trainer' object has no attribute 'meta_val_interval'",
        "AttributeError: 'NoneType' object has no attribute 'shape'",
        "TypeError: Net.forward() got an unexpected keyword argument 'labels'",
        "TypeError: __init__() got an unexpected keyword argument 'hidden_dim'",
        "ImportError: cannot import name 'helper' from 'utils' (/home/user/utils.py)",
        "ImportError: cannot import name 'Tensor' from partially initialized module 'torch' (most likely due to a circular import)",
        "AttributeError: 'module' object has no attribute 'StandardGpuResources'",
        "FutureWarning: `evaluation_strategy` is deprecated and will be removed in version 4.46 of Transformers. Use `eval_strategy` instead",
        "AttributeError: 'DistributedDataParallel' object has no attribute 'config'",
        "  File \"/home/user/train.py\", line 8, in <module>\n    print(model.foo)\n  File \"/venv/lib/python3.10/site-packages/torch/nn/modules/module.py\", line 1614, in __getattr__\nAttributeError: 'LlamaForCausalLM' object has no attribute 'foo'",
        "KeyError: 'response '",
    ),
)
