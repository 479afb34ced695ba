"""Answers of a language model to a chat, rendered by its template, or continuations of a text.

B prompts of a batch, T tokens of the longest.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import AutoModelForCausalLM

from holdfast.core.errors import RequestError
from holdfast.core.records import ModelInfo, PredictOptions
from holdfast.data.chat import CannotRender, Chat
from holdfast.data.tokenizer import ModelTokenizer
from holdfast.engine.predict.predictor import Row

_MAX_PROMPTS = 16
_MAX_TOKENS = 16_384  # of a batch, prompts and answers


def load(folder: Path, info: ModelInfo | None, options: PredictOptions) -> "ChatPredictor":
    """Load a language model: ours, or any that transformers has saved."""
    device = options.device
    stored_dtype = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("dtype")
    is_half = device.startswith("cuda") and stored_dtype == "bfloat16"
    dtype = torch.bfloat16 if is_half else torch.float32
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, use_safetensors=True)
    return ChatPredictor(model.to(device).eval(), ModelTokenizer(folder), info.chat_template if info else "", options)


class ChatPredictor:
    """A loaded language model."""

    rows_at_once = 64

    def __init__(self, model: Any, tokens: ModelTokenizer, template: str, options: PredictOptions):
        self._model, self._tokens, self._template = model, tokens, template
        self._chat: Chat | None = None
        self._new_tokens = options.max_new_tokens
        self._temperature, self._seed = options.temperature, options.seed
        self._limit = getattr(model.config, "max_position_embeddings", None) or 10**6
        self._pad, self._ends = _marks(model, tokens)

    def predict(self, rows: Sequence[Row]) -> list[dict[str, Any]]:
        """The answer to each row: the most likely tokens, or sampled ones if a temperature is given."""
        prompts = [self._prompt(row) for row in rows]
        found: list[dict[str, Any]] = [{} for _ in rows]
        for batch in self._batches(prompts):
            torch.manual_seed(self._seed)
            for at, answer in zip(batch, self._answer([prompts[at] for at in batch]), strict=True):
                found[at] = answer
        return found

    def _prompt(self, row: Row) -> list[int]:
        if "turns" not in row:
            return [*self._tokens.marks[0], *self._tokens.encode([str(row["text"])])[0]]
        self._chat = self._chat or Chat(self._tokens, self._template or None)
        try:
            text = self._chat.prompt([(str(role), str(content)) for role, content in row["turns"]])
        except CannotRender as error:
            raise RequestError(str(error), found=json.dumps(row["turns"], ensure_ascii=False)[:200]) from error
        return list(self._tokens.encode_with_places([text])[0][0])

    def _batches(self, prompts: list[list[int]]) -> Iterator[list[int]]:
        """Batches of prompts with similar length."""
        held: list[int] = []
        for at in sorted(range(len(prompts)), key=lambda at: -len(prompts[at])):
            longest = len(prompts[held[0]]) if held else len(prompts[at])
            if held and (len(held) == _MAX_PROMPTS or (longest + self._new_tokens) * (len(held) + 1) > _MAX_TOKENS):
                yield held
                held = []
            held.append(at)
        if held:
            yield held

    @torch.no_grad()
    def _answer(self, prompts: list[list[int]]) -> Iterator[dict[str, Any]]:
        room = min(self._new_tokens, self._limit - 1)
        kept = [prompt[-(self._limit - room) :] for prompt in prompts]
        ids_BT, mask_BT = self._padded(kept)
        sampling = {"do_sample": True, "temperature": self._temperature} if self._temperature else {"do_sample": False}
        found_BT = self._model.generate(
            ids_BT, attention_mask=mask_BT, max_new_tokens=room, pad_token_id=self._pad, **sampling
        )
        for prompt, whole, row in zip(prompts, kept, found_BT[:, ids_BT.shape[1] :].tolist(), strict=True):
            end = next((at for at, token in enumerate(row) if token in self._ends), None)
            answer = row if end is None else row[:end]
            text = self._tokens.tokenizer.decode(answer, skip_special_tokens=True)
            cut = {"prompt_cut": True} if len(whole) < len(prompt) else {}
            yield {"answer": text.strip(), "tokens": len(answer), "ended": end is not None, **cut}

    def _padded(self, prompts: list[list[int]]) -> tuple[Tensor, Tensor]:
        """Left-padded prompts and their attention mask."""
        longest = max(map(len, prompts))
        ids: NDArray[np.int64] = np.full((len(prompts), longest), self._pad, dtype=np.int64)
        mask = np.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, longest - len(prompt) :] = prompt
            mask[row, longest - len(prompt) :] = 1
        device = self._model.device
        return torch.from_numpy(ids).to(device), torch.from_numpy(mask).to(device)


def _marks(model: Any, tokens: ModelTokenizer) -> tuple[int, set[int]]:
    """The padding id, and the ids that end an answer."""
    eos = model.generation_config.eos_token_id
    ends = set(eos if isinstance(eos, list) else [] if eos is None else [eos])
    ends |= set(tokens.id_of(tokens.special("eos_token")))
    pad = model.generation_config.pad_token_id
    return int(pad if pad is not None else min(ends, default=0)), ends
