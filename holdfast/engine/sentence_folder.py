"""What a folder says about its towers, and the files of sentence-transformers. Imports no torch.

A shared tower over texts is a sentence-transformers folder; separate towers are in `query` and `passage`.
`two_tower.json` says which kind it is, so that a later run can start from it. Files of sentence-transformers are
written in their older form, which every version since 2.0 reads.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from holdfast.core.artifacts import write_artifact
from holdfast.core.errors import RequestError
from holdfast.engine.attempt_settings import AttemptSettings

SIDES = ("query", "passage")
ABOUT = "two_tower.json"


class TowerFolder(msgspec.Struct, frozen=True, kw_only=True):
    """What `two_tower.json` says about a model folder; the defaults are those of a plain encoder."""

    towers: Literal["shared", "separate"] = "shared"
    temperature: float = 0.05

    @property
    def is_separate(self) -> bool:
        """Whether queries and passages have different towers."""
        return self.towers == "separate"


def tokenizer_folder(settings: AttemptSettings) -> Path:
    """The folder of the base model's tokenizer."""
    model = Path(settings.model)
    return model / SIDES[0] if read_tower_folder(model).is_separate else model


def read_tower_folder(model: Path) -> TowerFolder:
    """What a model folder says about its towers."""
    file = model / ABOUT
    return msgspec.json.decode(file.read_bytes(), type=TowerFolder) if file.is_file() else TowerFolder()


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
_KNOWN_POOLING = ("mean", "cls")


def read_pooling(folder: Path) -> str:
    """How the model of a folder pools its token states: "mean" (the default) or "cls"."""
    config = folder / _POOLING_FOLDER / "config.json"
    if not config.is_file():
        return "mean"
    found = json.loads(config.read_text(encoding="utf-8"))
    flagged = [name for name, flag in _FLAGS.items() if found.get(flag)]
    modes = [found["pooling_mode"]] if "pooling_mode" in found else flagged
    if len(modes) != 1 or modes[0] not in _KNOWN_POOLING:
        raise RequestError(
            "the model's pooling is not supported",
            found=f"{config}: {', '.join(map(str, modes)) or 'nothing'}; known: {', '.join(_KNOWN_POOLING)}",
        )
    return str(modes[0])


def write_sentence_files(folder: Path, size: int, pooling: str, max_length: int, prefixes: Mapping[str, str]) -> None:
    """Write what `SentenceTransformer(folder)` reads, next to an encoder and its tokenizer."""
    (folder / _POOLING_FOLDER).mkdir(exist_ok=True)
    modules = [
        {"idx": at, "name": str(at), "path": path, "type": f"sentence_transformers.models.{name}"}
        for at, (path, name) in enumerate(_MODULES)
    ]
    write_artifact(folder, "modules.json", modules)
    flags = {flag: name == pooling for name, flag in _FLAGS.items()}
    write_artifact(folder / _POOLING_FOLDER, "config.json", {"word_embedding_dimension": size, **flags})
    write_artifact(folder, "sentence_bert_config.json", {"max_seq_length": max_length, "do_lower_case": False})
    prompts = {"query": prefixes.get("query", ""), "document": prefixes.get("passage", "")}
    about = {"similarity_fn_name": "cosine", "prompts": prompts, "default_prompt_name": None}
    write_artifact(folder, "config_sentence_transformers.json", about)
