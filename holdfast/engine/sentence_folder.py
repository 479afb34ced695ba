"""The folder layout of sentence-transformers: read to know how a model pools, written so that it loads ours.

The older spelling of these files is written: every version since 2.0 reads it.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from holdfast.core.artifacts import write_artifact
from holdfast.core.errors import RequestError

_POOLING_FOLDER = "1_Pooling"
_MODULES = (("", "Transformer"), (_POOLING_FOLDER, "Pooling"), ("2_Normalize", "Normalize"))
_FLAGS = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
_KNOWN = ("mean", "cls")


def read_pooling(folder: Path) -> str:
    """How the model of a folder pools its token states: "mean" or "cls"; the mean where nothing is said."""
    config = folder / _POOLING_FOLDER / "config.json"
    if not config.is_file():
        return "mean"
    said = json.loads(config.read_text(encoding="utf-8"))
    modes = (
        [said["pooling_mode"]] if "pooling_mode" in said else [name for name, flag in _FLAGS.items() if said.get(flag)]
    )
    if len(modes) != 1 or modes[0] not in _KNOWN:
        raise RequestError(
            "the model pools its token states in a way that this task does not know",
            seen=f"{config}: {', '.join(map(str, modes)) or 'nothing'}; known: {', '.join(_KNOWN)}",
        )
    return str(modes[0])


def write_sentence_folder(
    folder: Path,
    body: Any,
    tokenizer: PreTrainedTokenizerBase,
    pooling: str,
    max_length: int,
    prefixes: Mapping[str, str],
) -> None:
    """Write an encoder so that `SentenceTransformer(folder)` and `AutoModel.from_pretrained(folder)` load it."""
    body.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / _POOLING_FOLDER).mkdir(exist_ok=True)
    modules = [
        {"idx": at, "name": str(at), "path": path, "type": f"sentence_transformers.models.{name}"}
        for at, (path, name) in enumerate(_MODULES)
    ]
    write_artifact(folder, "modules.json", modules)
    flags = {flag: name == pooling for name, flag in _FLAGS.items()}
    write_artifact(
        folder / _POOLING_FOLDER, "config.json", {"word_embedding_dimension": body.config.hidden_size, **flags}
    )
    write_artifact(folder, "sentence_bert_config.json", {"max_seq_length": max_length, "do_lower_case": False})
    prompts = {"query": prefixes.get("query", ""), "document": prefixes.get("passage", "")}
    about = {"similarity_fn_name": "cosine", "prompts": prompts, "default_prompt_name": None}
    write_artifact(folder, "config_sentence_transformers.json", about)
