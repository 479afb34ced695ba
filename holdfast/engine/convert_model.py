"""Converts a model to safetensors and tokenizer.json: `python -m holdfast.engine.convert_model SOURCE TARGET`.

Reads GGUF files, pickled weights (with torch's restricted reader, which runs no code) and old tokenizer formats.
"""

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

_OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}


def main(source: Path, target: Path) -> None:
    """Convert the model in `source` into `target`."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    gguf = sorted(source.glob("*.gguf"))
    target.mkdir(parents=True, exist_ok=True)
    if gguf:
        _from_gguf(source, gguf[0].name, target)
        return
    for path in source.iterdir():
        if path.is_file() and path.suffix in (".json", ".txt", ".model", ".jinja", ".safetensors"):
            shutil.copyfile(path, target / path.name)
    if not any(source.glob("*.safetensors")):
        _from_pickles(source, target)
    if not (target / "tokenizer.json").is_file():
        AutoTokenizer.from_pretrained(source).save_pretrained(target)


def _from_gguf(source: Path, name: str, target: Path) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(source, gguf_file=name, dtype=torch.float32)
    config = model.config
    del config.quantization_config  # otherwise save_pretrained takes the weights for quantized ones and refuses
    plain = type(model)(config)
    plain.load_state_dict(model.state_dict())
    plain.to(torch.bfloat16).save_pretrained(target)
    AutoTokenizer.from_pretrained(source, gguf_file=name).save_pretrained(target)


def _from_pickles(source: Path, target: Path) -> None:
    tensors: dict[str, torch.Tensor] = {}
    for file in sorted(source.glob("pytorch_model*.bin")):
        for name, tensor in torch.load(file, map_location="cpu", weights_only=True).items():
            for old, new in _OLD_NAMES.items():
                name = name.replace(old, new)
            tensors[name] = tensor.clone().contiguous()  # safetensors refuses weights that share memory
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    for index in target.glob("*.bin.index.json"):
        index.unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
