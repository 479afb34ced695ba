"""Reads what programs print about themselves: how far their progress bars are, and which versions they use.

Versions come from pip and conda lists, environment reports, banners and paths.
"""

import re
from collections.abc import Iterable, Iterator

from holdfast.core.evidence import ProgressBar
from holdfast.logs.log_lines import Line

_UNITS = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_COUNT = r"(?P<done>\d+(?:\.\d+)?)(?P<unit>[kKMGT]?)i?B?/(?P<total>\d+(?:\.\d+)?|\?)(?P<total_unit>[kKMGT]?)i?B?"
_BARS = (
    # Epoch 1:  45%|████▌     | 45/100 [00:12<00:15,  3.61it/s]      (tqdm)
    re.compile(rf"(?P<text>[^|%]*?)[: ]*\d{{1,3}}%\|[^|]*\|\s*{_COUNT}"),
    # Map: 100 examples [00:01, 95 examples/s] has no total; 45/100 [00:12<00:15 has lost its bar
    re.compile(rf"(?P<text>[^|\[]*?)[: ]*{_COUNT} \[\d+:\d+(?::\d+)?<"),
    # 45/100 [=======>......] - ETA: 3s      45/100 ━━━━━━━━━━ 3s      (Keras)
    re.compile(rf"(?P<text>)\s*{_COUNT} (?:\[[=>.]+\]|━+)"),
    # Training ━━━━━━━╸━━━ 45/100 0:00:12      (rich, Lightning)
    re.compile(rf"(?P<text>[^━╸]*?)[━╸╺]+\s+{_COUNT}"),
)
_BAR_HINT = re.compile(r"%\||\d/[\d?]|━")

# Only these packages are looked for, because other lines look like a row of `pip list` too: "loss    0.25" is a
# metric. A version that is taken from such a line would prove hazards that are not there.
_NAMES = (
    "torch torchvision torchaudio torchtext torchdata torchmetrics triton xformers flash-attn deepspeed fairscale "
    "transformers tokenizers datasets accelerate peft trl bitsandbytes safetensors huggingface-hub optimum evaluate "
    "sentence-transformers diffusers unsloth axolotl lightning pytorch-lightning torchtune fairseq mmcv mmengine timm "
    "ultralytics detectron2 vllm tensorflow tensorflow-macos tensorflow-metal keras jax jaxlib mlx mlx-lm numpy scipy "
    "pandas pyarrow scikit-learn faiss-cpu faiss-gpu xgboost lightgbm protobuf sentencepiece opencv-python h5py numba "
    "llvmlite dill multiprocess celery billiard gunicorn ray mkl intel-openmp llvm-openmp libgomp gradio streamlit "
    "wandb mlflow python cuda cudnn nccl rocm macos windows pydantic setuptools"
)
_KNOWN = {name: name for name in _NAMES.split()} | {
    "pytorch": "torch",
    "sklearn": "scikit-learn",
    "tensorflow-gpu": "tensorflow",
    "driver": "nvidia-driver",
}
_VERSION = r"v?(?P<version>\d+(?:\.\d+)*(?:\.?(?:dev|rc|post|a|b)\d*)?(?:\+[\w.]+)?)"
_NAME = r"(?P<name>[A-Za-z][\w-]*(?:\.[A-Za-z][\w-]*)*)"
_SHAPES = (
    # torch==2.1.0      [pip3] torch==2.1.0      (pip freeze, torch's environment report)
    re.compile(rf"^\s*(?:\[\w+\]\s+)?{_NAME}==+{_VERSION}\s*$"),
    re.compile(rf"^\s*\[\w+\]\s+{_NAME}\s+{_VERSION}(?:\s|$)"),
    # torch      2.1.0      (pip list);      faiss-cpu    1.6.1    py27h6bb024c_0    pytorch      (conda list)
    re.compile(rf"^\s*{_NAME}\s{{2,}}{_VERSION}(?:\s+\S+){{0,2}}\s*$"),
    # - `transformers` version: 4.30.0      PyTorch version (GPU?): 2.0.1+cu118 (True)      CUDA Version: 12.2
    re.compile(
        rf"(?:^|[|(]|\s)[-*•]?\s*[`'\"]?{_NAME}[`'\"]?(?: [Vv]ersion)?(?: \([^)]*\))?\s*[:=]\s*[`'\"]?{_VERSION}"
        r"(?:[\s,;)'\"`|]|$)"
    ),
    # torch.__version__ '2.2.2+cpu'      torch.__version__ = 2.1
    re.compile(rf"\b{_NAME}\.__version__\)?[\s:=]*[`'\"]?{_VERSION}"),
    # torch 2.8.0      PyTorch 2.1.0+cu118 on NVIDIA      Python 3.6.8 (v3.6.8:3c6b436a57      macOS 14.4
    re.compile(
        r"(?:^\s*(?:[-*•]\s*)?|[,;(|]\s*|\d\S* |(?i:using|found|installed|have|running|os:|os version:|version:) )"
        rf"{_NAME}[ -]{_VERSION}(?=[\s,;)]|$)"
    ),
    re.compile(rf"\b(?P<name>[Mm]ac ?OS)(?: X)?[ -]{_VERSION}"),
    # YOLOv8 Python-3.10.6 torch-1.13.1+cu116 CUDA:0
    re.compile(rf"(?:^|\s){_NAME}-{_VERSION}(?=\s|$)"),
)
_PYTHON_PATH = re.compile(r"[/\\]python(?P<version>3\.\d+)[/\\]")
_PROMPT = re.compile(r"(?:>>> |In \[\d+\]: |print\()(?P<name>\w+)\.__version__")
_BARE = re.compile(rf"^(?:Out\[\d+\]: )?[`'\"]?{_VERSION}[`'\"]?\s*$")
_HINT = re.compile(r"\d\.\d")
_DIGITS = re.compile(r"\d+")


def read_progress(lines: Iterable[Line]) -> tuple[ProgressBar, ...]:
    """The last state of each progress bar; the one drawn last comes last."""
    bars: dict[tuple[str, float | None], ProgressBar] = {}
    for number, line in lines:
        if not _BAR_HINT.search(line):
            continue
        for shape in _BARS:
            if match := shape.match(line[:400]):
                done = float(match["done"]) * _UNITS[match["unit"]]
                total = None if match["total"] == "?" else float(match["total"]) * _UNITS[match["total_unit"]]
                bar = ProgressBar(match["text"].strip(), done, total, number)
                bars.pop((bar.text, total), None)
                bars[bar.text, total] = bar
                break
    return tuple(bars.values())


def read_versions(lines: Iterable[Line]) -> Iterator[Line]:
    """Each stated version once, as "name version" in lower case."""
    seen: set[str] = set()
    idle_shapes: set[str] = set()  # of lines without a version, which have none with other numbers either
    asked = ""
    for number, line in lines:
        found: list[str] = []
        if asked and (answer := _BARE.match(line)):
            found = [f"{asked} {answer['version']}"]
        elif _HINT.search(line) and (shape := _DIGITS.sub("0", line[:1000])) not in idle_shapes:
            found = list(_stated(line[:1000]))
            if not found:
                idle_shapes.add(shape)
        asked = _known(prompt["name"]) if (prompt := _PROMPT.search(line)) else ""
        for banner in found:
            if banner not in seen:
                seen.add(banner)
                yield number, banner


def _stated(line: str) -> Iterator[str]:
    for shape in _SHAPES:
        for match in shape.finditer(line):
            if name := _known(match["name"]):
                yield f"{name} {match['version'].lower()}"
    if path := _PYTHON_PATH.search(line):
        yield f"python {path['version']}"


def _known(name: str) -> str:
    return _KNOWN.get(name.lower().replace("_", "-").replace(" ", "").removesuffix("-version"), "")
