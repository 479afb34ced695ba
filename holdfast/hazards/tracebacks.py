"""Whose code raised an exception: the user's, a library's, Python's own, or a model's remote code.

Hazards whose sign is the place of an error, not its message, ask here.
"""

import re
from collections.abc import Iterator

from holdfast.core.evidence import Evidence, Frame, Passage, Raised

REMOTE = "a model's remote code"
PYTHON = "Python"

# Modules that people name in code and libraries name in messages. Paths under site-packages need no such list.
_LIBRARIES_NAMES = (
    "transformers trl peft accelerate datasets huggingface_hub tokenizers diffusers evaluate "
    "sentence_transformers setfit optimum safetensors torch torchvision torchaudio torchtext torchdata "
    "torchmetrics torch_geometric pytorch_lightning lightning lightning_fabric lightning_utilities numpy scipy "
    "sklearn pandas skimage PIL matplotlib networkx librosa gensim nltk spacy albumentations imgaug seaborn "
    "tensorflow keras tensorboard tensorflow_addons tensorflow_hub jax jaxlib flax optax chex haiku timm mmcv "
    "mmengine mmdet mmseg mmcls mmpretrain fairseq fastai allennlp detectron2 ultralytics fvcore kornia monai dgl "
    "deepspeed vllm xformers unsloth unsloth_zoo llamafactory axolotl swift ray gradio wandb hydra omegaconf "
    "pydantic typing_extensions google urllib3 requests httpx fsspec packaging setuptools pkg_resources "
    "importlib_metadata jinja2 markupsafe werkzeug flask triton mlx mlx_lm bitsandbytes cv2 einops openai "
    "langchain litgpt torchtune colossalai apex flash_attn onnx onnxruntime xgboost lightgbm catboost faiss numba "
    "h5py pyarrow polars tiktoken sentencepiece six absl tqdm loguru click typer fire yaml protobuf dill "
    "multiprocess"
)
LIBRARIES = frozenset(_LIBRARIES_NAMES.split())
# People have folders with these names too: `project/datasets/loader.py` is their own file.
_COMMON_WORDS = frozenset(
    [
        "accelerate",
        "apex",
        "click",
        "datasets",
        "evaluate",
        "fire",
        "google",
        "haiku",
        "hydra",
        "lightning",
        "optimum",
        "packaging",
        "ray",
        "requests",
        "six",
        "spacy",
        "swift",
        "yaml",
    ]
)
_INSTALLED = re.compile(r"(?:site|dist)-packages/(?:[^/]+\.egg/)?(?P<package>[\w-]+)")
_REMOTE_CODE = re.compile(r"(?:^|/)transformers_modules/|/\.cache/torch/hub/")
_PYTHON_CODE = re.compile(
    r"<frozen |^<string>$|(?i:/lib(?:64)?/python3?[.\d]*/(?!(?:site|dist)-packages)|/(?:ana|mini)conda3?(?:/envs/[^/]+)?/lib/\w+\.py$)"
    r"|(?i:python[\d.]*/lib/(?!site-packages))|(?:^|/)(?:runpy|threading|contextlib|codecs|socket|subprocess)\.py$"
    r"|(?:^|/)(?:multiprocessing|importlib|concurrent|asyncio|encodings)/\w+\.py$"
)


def owner_of(path: str) -> str:
    """The package that a source file belongs to; empty for the user's own code."""
    path = path.replace("\\", "/")
    if _REMOTE_CODE.search(path):
        return REMOTE
    if installed := _INSTALLED.search(path):
        return installed["package"]
    folders = path.split("/")[:-1]
    for before, folder in zip(("", *folders), folders, strict=False):
        # A library's own repository is `trl/trl/...` or `trl/src/...`, and a shortened path starts with the library.
        if folder in LIBRARIES and (folder not in _COMMON_WORDS or before in (folder, "src") or folder == folders[0]):
            return folder
    return PYTHON if _PYTHON_CODE.search(path) else ""


def raised_by(raised: Raised) -> str | None:
    """The package whose code raised an exception, empty for the user's own; None without a traceback."""
    for frame in raised.frames:
        if frame.function not in ("__getattr__", "__getattribute__", "_call_impl", "_wrapped_call_impl"):
            return owner_of(frame.module)
    return None


def own_frame(raised: Raised) -> tuple[Frame, str] | None:
    """The innermost frame in the user's own code, with its source line."""
    for frame, source in zip(raised.frames, raised.sources, strict=True):
        if frame.module and not owner_of(frame.module):
            return frame, source
    return None


def exceptions(evidence: Evidence, *kinds: str) -> Iterator[tuple[Raised, Passage]]:
    """The exceptions of these types, each with its line in the errors."""
    by_line = {passage.line: passage for passage in evidence.errors}
    for raised in evidence.exceptions:
        if raised.kind in kinds and (passage := by_line.get(raised.line)):
            yield raised, passage


def error_raised_in(evidence: Evidence, kind: str) -> tuple[Passage, list[Frame]] | None:
    """The first exception of that kind with the frames that led to it; the last frame raised it."""
    found = next(exceptions(evidence, kind), None)
    return (found[1], list(reversed(found[0].frames))) if found else None


def is_in_torch_loader(frame: Frame) -> bool:
    """True for a frame in torch's data loading code."""
    return "torch/utils/data" in frame.module.replace("\\", "/")
