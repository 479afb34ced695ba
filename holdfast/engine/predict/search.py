"""Searches a corpus with the towers of a finished model: the run's own passages, or those of a given file.

The embeddings of a run's corpus are cached in its folder, so that the second query is answered at once.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from holdfast.core.errors import RequestError
from holdfast.core.records import ModelInfo, PredictOptions
from holdfast.data import names
from holdfast.data.badrows import BadRows
from holdfast.data.data_request import DataRequest
from holdfast.data.examples import optional_text
from holdfast.data.read import open_rows
from holdfast.data.shards import TokenArray, open_tokens, read_manifest
from holdfast.data.tokenizer import ModelTokenizer
from holdfast.engine.attempt_settings import AttemptSettings
from holdfast.engine.corpus_search import search
from holdfast.engine.mistakes import TextView
from holdfast.engine.predict.predictor import Row, token_array
from holdfast.engine.tower_folder import finished_text_towers
from holdfast.engine.towers import TextTower, embed_all

_CACHE = "search"  # folder of cached embeddings, in the run folder
_DIGITS = 4


def load(folder: Path, info: ModelInfo | None, options: PredictOptions) -> "CorpusSearch":
    """Load the towers, and open the corpus."""
    if info and info.form == "vectors":
        raise RequestError(
            "this model takes vectors, not texts", found=str(folder), try_next=("load its towers in your own script",)
        )
    settings = AttemptSettings(task="two-tower", model=str(folder), prepared="", run="", device=options.device)
    towers = finished_text_towers(settings)
    tokens = ModelTokenizer(folder / "query" if (folder / "query").is_dir() else folder)
    prefixes = (info.prefixes if info else None) or _prompts(folder)
    length = (info.max_length if info else 0) or min(tokens.limit or 256, 256)
    model = CorpusSearch(towers, tokens, length, prefixes, settings, options.top)
    if options.corpus:
        model.read_corpus(Path(options.corpus))
    elif options.prepared and Path(options.prepared).is_dir():
        model.open_corpus(Path(options.prepared), Path(options.run) / _CACHE if options.run else None)
    else:
        raise RequestError("there is no corpus to search", try_next=("add --corpus FILE, with one passage per row",))
    return model


class CorpusSearch:
    """Loaded towers with a corpus."""

    rows_at_once = 1024

    def __init__(
        self,
        towers: list[TextTower],
        tokens: ModelTokenizer,
        length: int,
        prefixes: Mapping[str, str],
        settings: AttemptSettings,
        top: int,
    ):
        self._towers, self._tokens, self._length, self._prefixes = towers, tokens, length, prefixes
        self._settings, self._top = settings, top
        self._corpus_PH: Tensor | None = None
        self._passages: list[str] | None = None
        self._shown: tuple[TokenArray, TextView] | None = None

    def predict(self, rows: Sequence[Row]) -> list[dict[str, Any]]:
        """The passages nearest to each query, the best first."""
        assert self._corpus_PH is not None
        queries_QH = self.embed([str(row["text"]) for row in rows], "query")
        scores_QK, rows_QK = search(queries_QH, self._corpus_PH, self._top)
        return [
            {
                "found": [
                    {"score": round(float(score), _DIGITS), "passage": int(at), "text": self._text(int(at))}
                    for score, at in zip(scores, found, strict=True)
                ]
            }
            for scores, found in zip(scores_QK.tolist(), rows_QK.tolist(), strict=True)
        ]

    def embed(self, texts: Sequence[str], side: str) -> Tensor:
        """Embeddings of texts as queries or as passages."""
        prefix = self._prefixes.get(side) or ""
        items = token_array(self._tokens, [prefix + text for text in texts], self._length)
        return embed_all(self._towers[0 if side == "query" else -1], items, self._settings)

    def read_corpus(self, path: Path) -> None:
        """Use the passages of a file."""
        source = open_rows(path, DataRequest(path=path))
        column = names.find(names.TEXT + names.POSITIVE, source.columns)
        if column is None and len(source.columns) != 1:
            raise RequestError(
                f"cannot tell which column of {path.name} holds the passages",
                found=f"columns: {', '.join(source.columns)}",
                try_next=("name that column text",),
            )
        column = column or source.columns[0]
        title = names.find(("title",), source.columns) if column != "title" else None
        texts = [
            f"{optional_text(row, title)} {optional_text(row, column)}".strip() for _, row in source.rows(BadRows(1.0))
        ]
        self._passages = [text for text in texts if text]
        if not self._passages:
            raise RequestError(f"{path.name} has no passages", found=f"column {column!r} is empty in every row")
        self._corpus_PH = self.embed(self._passages, "passage")

    def open_corpus(self, prepared: Path, kept: Path | None) -> None:
        """Use the passages that the run was prepared with."""
        manifest = read_manifest(prepared)
        corpus = open_tokens(prepared, "corpus")
        self._shown = corpus, TextView(self._tokens.folder, prepared)
        fingerprint = manifest.fingerprint if manifest else ""
        key = _key(fingerprint, Path(self._settings.model), self._settings.device)
        file = kept / f"{key}.safetensors" if kept and fingerprint else None
        if file and file.is_file():
            self._corpus_PH = load_file(file, device=self._settings.device)["corpus"]
            return
        self._corpus_PH = embed_all(self._towers[-1], corpus, self._settings)
        if file:
            _write_cache(file, self._corpus_PH)

    def _text(self, at: int) -> str:
        if self._passages is not None:
            return self._passages[at]
        assert self._shown is not None
        corpus, words = self._shown
        text, prefix = words.text("corpus", at, corpus[at]), str(self._prefixes.get("passage") or "")
        return text.removeprefix(prefix).removeprefix(prefix.lower())


def _prompts(folder: Path) -> dict[str, str]:
    """The prompts of other models, from the file of sentence-transformers."""
    file = folder / "config_sentence_transformers.json"
    found = json.loads(file.read_text(encoding="utf-8")).get("prompts") or {} if file.is_file() else {}
    return {"query": found.get("query") or "", "passage": found.get("document") or found.get("passage") or ""}


def _key(data: str, model: Path, device: str) -> str:
    digest = hashlib.sha256(f"{data} {device.partition(':')[0]}".encode())
    for file in sorted(model.rglob("*.safetensors")):
        digest.update(f"{file.name} {file.stat().st_size} {file.stat().st_mtime_ns}".encode())
    return digest.hexdigest()[:24]


def _write_cache(file: Path, corpus_PH: Tensor) -> None:
    """Cache embeddings for the next query; a failure only makes that slower."""
    draft = file.with_suffix(".draft")
    try:
        file.parent.mkdir(exist_ok=True)
        save_file({"corpus": corpus_PH.contiguous().cpu()}, draft)
        draft.replace(file)
    except OSError:
        draft.unlink(missing_ok=True)
