"""A script and a library, or two libraries, do not match: a name was renamed, moved or dropped.

What you see: "got an unexpected keyword argument 'evaluation_strategy'", "cannot import name 'AdamW' from
'transformers'", "module 'numpy' has no attribute 'int'".
Why: libraries rename arguments and move modules between releases, and an install without upper bounds gets the newest.
What we do: name the replacement if it is known; otherwise name the library whose version to change.
"""

import re
from collections.abc import Iterator
from difflib import SequenceMatcher
from itertools import islice

from holdfast.core.evidence import Evidence, Passage
from holdfast.core.facts import MachineFacts
from holdfast.core.plan import Plan, Remedy
from holdfast.hazards import Hazard, Invited, judged, proves, seen, suggests
from holdfast.hazards.renamed import CLASHES, find_renamed
from holdfast.hazards.tracebacks import LIBRARIES, PYTHON, REMOTE, exceptions, owner_of, raised_by


def invited_by(facts: MachineFacts, plan: Plan) -> Invited | None:
    """Say why this machine and plan invite the hazard; None when they do not."""
    clashing = [
        f"{clash.older} {facts.distributions[clash.older]} with {clash.newer} {facts.distributions[clash.newer]}: {clash.what}"
        for clash in CLASHES
        if facts.has_at_least(clash.newer, clash.since) and facts.has_below(clash.older, clash.below)
    ]
    unmet = [
        f"{one.by} {one.by_version} needs {one.name}{one.specifier}; {facts.distributions.get(one.name, '')} is installed"
        for one in facts.unmet
        if one.name.replace("-", "_") in LIBRARIES
    ]
    return Invited("; ".join(clashing or unmet)) if clashing or unmet else None


# Of Python itself; everything else is in LIBRARIES, or known by its path.
_OF_PYTHON_NAMES = (
    "collections inspect fractions asyncio pkgutil time typing math array base64 locale gettext distutils"
)
_OF_PYTHON = frozenset(_OF_PYTHON_NAMES.split())
_BUILT_IN = r"(?:NoneType|str|list|dict|tuple|set|int|float|bool|bytes|function|method|Tensor|ndarray|Namespace|Parameter|generator)"
_MESSAGE = r"['\"](?P<owner>[\w.]+)['\"]"
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
# The forward of a whole model gets the data's columns; that of a part is called by library code only.
_INNER = r"Attention|Layer|Block|MLP|Embedding"
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
# Arguments that two signatures disagree about, and attributes of objects that are not Python's own.
_ARGUMENTS = r"got an unexpected keyword argument|got multiple values for|takes (?:from )?\d+ [^\n]*positional|missing \d+ required"
_ATTRIBUTE = (
    rf"^(?:type object )?'(?!{_BUILT_IN}')\w+'(?: object)? has no attribute '|can't set attribute|has no setter"
)
_MANY = 20  # the first few tell; a log may repeat one error for ever


def asked_name(evidence: Evidence) -> tuple[str, str] | None:
    """The module or class that was asked, and the name that it does not have."""
    for shape in _ASKED:
        for asked, passage in _places(evidence, shape):
            found = asked.groupdict()
            owner = found.get("owner") or _called_before(evidence, passage.line) or asked["name"].rpartition(".")[0]
            if owner:
                return owner, asked["name"]
    return None


def _known_rename(evidence: Evidence) -> Passage | None:
    """An error that names an entry of the table; its line then says what to write instead."""
    for shape in _ASKED:
        for asked, passage in _places(evidence, shape):
            owner = asked.groupdict().get("owner") or _called_before(evidence, passage.line)
            if row := find_renamed(asked["name"], owner):
                return Passage(passage.source, passage.line, f"{passage.text}  [{row.advice_on(asked['name'])}]")
    return None


def _missing_in_a_library(evidence: Evidence) -> Passage | None:
    """A name that an import or another library's code expects in an installed package, and that is not there."""
    for asked, passage in evidence.errors.search(
        rf"cannot import name ['\"]?{_COMPILED}\w+['\"]? from {_MESSAGE}(?: \((?P<path>[^)\n]+)\))?"
    ):
        top, path = asked["owner"].partition(".")[0], asked["path"] or ""
        is_installed = bool(owner_of(path)) if path else top in LIBRARIES or top in _OF_PYTHON
        if is_installed and not _is_broken_install(passage):
            return passage
    for asked, passage in evidence.errors.search(
        rf"No module named ['\"]?(?P<top>\w+)\.(?!(?:_core|core)\b|[\w.]*(?:_C|_ext|_cuda)\b){_COMPILED}[\w.]+"
    ):
        if asked["top"] in LIBRARIES and not _is_broken_install(passage):
            return passage
    for raised, passage in exceptions(evidence, "AttributeError"):
        lacks = re.match(rf"module {_MESSAGE} has no attribute", raised.message)
        if lacks and _is_package(lacks["owner"]) and raised_by(raised) and not _is_broken_install(passage):
            return passage
    return None


def _missing_name_in_own_code(evidence: Evidence) -> Passage | None:
    """A module of a library lacks what the user's own code asks for, and it does not look like a slip of the pen."""
    for lacks, passage in _places(evidence, r"module ['\"](?P<owner>[\w.]+)['\"] has no attribute ['\"](?P<name>\w+)"):
        if (
            _is_package(lacks["owner"])
            and not _is_broken_install(passage)
            and not _is_misspelled(evidence, lacks["name"])
        ):
            return passage
    return None


def _library_was_asked(evidence: Evidence) -> Passage | None:
    """A library class that lacks an attribute or rejects an argument, in a log without a traceback."""
    for asked, passage in _places(evidence, _REFUSED):
        owner = asked["owner"] or _called_before(evidence, passage.line)
        if re.fullmatch(_LIBRARY_FUNCTION, asked["function"]):
            return passage
        if re.fullmatch(_LIBRARY_CLASS, owner) and (asked["function"] != "forward" or re.search(_INNER, owner)):
            return passage
    has_place = {raised.line for raised in evidence.exceptions if raised.frames}
    for asked, passage in _places(evidence, _LACKS):
        is_plainly_theirs = asked["owner"] not in ("Trainer", "DataFrame", "Series") and passage.line not in has_place
        if re.fullmatch(_LIBRARY_CLASS, asked["owner"]) and is_plainly_theirs:
            return passage
    return None


def _library_code_failed(evidence: Evidence) -> Passage | None:
    """A library's code that passes arguments or reads attributes which the other side does not have."""
    kinds = ("TypeError", "AttributeError", "ImportError", "NameError", "KeyError", "ModuleNotFoundError")
    for raised, passage in exceptions(evidence, *kinds):
        owner = raised_by(raised)
        if owner in (None, "", PYTHON):
            continue
        if owner == REMOTE and raised.kind != "ModuleNotFoundError":
            return passage
        if raised.kind == "TypeError" and re.search(_ARGUMENTS, raised.message) and "forward()" not in raised.message:
            return passage
        if raised.kind == "AttributeError" and re.search(_ATTRIBUTE, raised.message):
            return passage
    return None


def _is_package(module: str) -> bool:
    top = module.partition(".")[0]
    is_build = module.startswith(("torch._C", "torch.cuda", "torch.version", "torch.mps", "torch.backends"))
    return (top in LIBRARIES or top in _OF_PYTHON) and not is_build


def _is_broken_install(passage: Passage) -> bool:
    return bool(
        re.search(r"partially initialized|circular import|\(unknown location\)|consider renaming", passage.text)
    )


def _is_misspelled(evidence: Evidence, name: str) -> bool:
    """True if the log has a name that differs in one or two letters: the program wrote it right elsewhere."""
    near = (word for word in set(re.findall(r"\w+", evidence.log.joined[-20_000:])) if abs(len(word) - len(name)) < 3)
    return len(name) > 4 and any(word != name and SequenceMatcher(None, word, name).ratio() > 0.86 for word in near)


def _places(evidence: Evidence, pattern: str) -> Iterator[tuple[re.Match[str], Passage]]:
    """Matches in errors, then in other lines, because loggers print an exception's text without its type."""
    yield from islice(evidence.errors.search(pattern), _MANY)
    if not evidence.ended_well:
        yield from islice(evidence.log.search(pattern), _MANY)


def _lines_above(evidence: Evidence, line: int, count: int) -> list[str]:
    return [passage.text for passage in evidence.log if line - count <= passage.line < line][::-1]


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
        judged("proves", _missing_in_a_library),
        proves(
            "log",
            r"`?np\.\w+`? was (?:a deprecated alias|removed in the NumPy)|was deprecated in NumPy 1\.20 and removed",
        ),
        proves(
            "error",
            r"(?:[Ss]upport for|The|Argument|Passing|`\w+`)[^\n]{0,80}(?:has been|was|were) removed (?:in|from|since) (?:v(?:ersion)? ?)?\d",
        ),
        proves(
            "error",
            r"Legacy autograd function with non-static forward|invalid index of a 0-dim tensor|Integer division of tensors using div or / is no longer supported",
        ),
        proves("error", r"Dataset scripts are no longer supported|trust_remote_code`? is not supported anymore"),
        proves("error", r"Feature type '\w+' not found|data did not match any variant of untagged enum"),
        proves(
            "error",
            r"Loading a dataset cached in a LocalFileSystem is not supported|Invalid pattern: '\*\*' can only be",
        ),
        proves(
            "error", r"Transformers does not recognize this architecture|Tokenizer class \w+ does not exist or is not"
        ),
        proves(
            "error", r"`?rope_scaling`? must be a dictionary with|is required for a normal functioning of this module"
        ),
        proves("error", r"[Uu]nrecognized keyword arguments?(?: passed to \w+)?:|Argument\(s\) not recognized: \{'"),
        proves(
            "error",
            r"(?:compute_loss|training_step|_save_checkpoint|_maybe_log_save_evaluate|_get_train_sampler|prediction_step|optimizer_step|lr_scheduler_step|on_\w+_end)\(\) (?:takes|missing|got an unexpected)",
        ),
        proves(
            "error",
            r"\blog\(\) takes 2 positional arguments but 3 were given|__new__\(\) missing 1 required positional argument: 'task'",
        ),
        proves(
            "error",
            r"requires? (?:a source install|(?:a )?minimum version of \d)|VersionConflict|[`']\w+[`'] has (?:been )?moved to",
        ),
        judged("suggests", _missing_name_in_own_code),
        judged("suggests", _library_was_asked),
        judged("suggests", _library_code_failed),
        # Without a traceback; a property of the user's own class is rarer.
        suggests("error", r"^AttributeError: can't set attribute$", unless=(seen("frame", r"."),)),
        suggests(
            "error",
            r"can't set attribute|property '\w+' of '\w*Tokenizer\w*' object has no setter",
            also=(seen("log", r"[Tt]oken"),),
        ),
        suggests(
            "error",
            r"^KeyError: ['\"]\w+['\"]",
            also=(seen("log", r"CONFIG_MAPPING\[|_config_mapping|model_type\"\]\]"),),
        ),
        suggests(
            "error", r"(?:Attribute|Type|Import|Name|Key)Error: ", also=(seen("log", r"transformers_modules[/\\.]"),)
        ),
        suggests("error", r"Can't get attribute '\w+' on <?module '(?:ultralytics|models\.|torch|transformers|timm)"),
        suggests(
            "error",
            r"'\w+' object has no attribute '(?:_flat_weights|proj_size|padding_mode|batch_first|_qkv_same_embed_dim|num_batches_tracked|_non_persistent_buffers_set|sp_model)'",
        ),
        suggests("error", r"No module named ['\"]?(?:pkg_resources|distutils|imp|asynchat|asyncore|cgi)['\"]?$"),
        suggests(
            "log",
            r"^(?!.*[Ww]arning)[^\n]*\b(?:module 'numpy' has no attribute|cannot import name '\w+' from '(?:transformers|trl|peft|torch\w*|huggingface_hub|datasets)[\w.]*')",
        ),
        # A model type that this transformers does not know.
        suggests(
            "error",
            r"^KeyError: '(?:qwen|llama|mistral|mixtral|gemma|phi|chatglm|baichuan|internlm|deepseek|falcon|starcoder|stablelm|mpt|yi)[\w-]*'$",
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
        "KeyError: 'qwen9'",
        "TypeError: LlamaAttention.forward() got an unexpected keyword argument 'padding_mask'",
        "AttributeError: can't set attribute",
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
        "AttributeError: module 'transformers' has no attribute 'TFTrainer'",
        "RuntimeError: Dataset scripts are no longer supported, but found emotions.py",
        "ValueError: Feature type 'List' not found. Available feature types: ['Value', 'ClassLabel', 'Sequence']",
        "NotImplementedError: Loading a dataset cached in a LocalFileSystem is not supported.",
        "ValueError: `rope_scaling` must be a dictionary with two fields, `type` and `factor`, got {'factor': 8.0, 'rope_type': 'llama3'}",
        "TypeError: ('Keyword argument not understood:', 'lr')\nValueError: Argument(s) not recognized: {'lr': 0.001}",
        "TypeError: __new__() missing 1 required positional argument: 'task'",
        "ImportError: This example requires a source install from HuggingFace Transformers (see `https://huggingface.co/docs/transformers/installation#install-from-source`)",
        "    self.mask_token = mask_token\n  File \"tokenization_chat.py\", line 108, in __init__\nAttributeError: can't set attribute 'mask_token'",
        "    config = CONFIG_MAPPING[config_dict[\"model_type\"]]\nKeyError: 'qwen9'",
        "AttributeError: Can't get attribute 'C3k2' on <module 'ultralytics.nn.modules.block'>",
        "AttributeError: 'LSTM' object has no attribute '_flat_weights'",
        "ModuleNotFoundError: No module named 'pkg_resources'",
        "2026-02-03 09:14:40 - could not start: cannot import name 'SFTConfig' from 'trl' (/venv/lib/python3.11/site-packages/trl/__init__.py)",
        "  File \"/venv/lib/python3.11/site-packages/oldtool/patch.py\", line 7, in patch\n    sampler.rebuild(seed=seed)\nTypeError: rebuild() got an unexpected keyword argument 'seed'",
        "TypeError: BitsAndBytesConfig.__init__() got an unexpected keyword argument 'bnb_8bit_fancy'",
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
