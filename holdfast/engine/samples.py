"""A language model's answers to a few prompts, next to the expected ones."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from holdfast.core.scores import SampleAnswer
from holdfast.engine.fast.packing import ATTENTION
from holdfast.engine.language_model import plain_model
from holdfast.engine.row_layout import compiles_every_shape, round_up

_MAX_TOKENS = 60
_ROW_UNIT = 64  # tokens
_OPENING_TOKENS = 16  # used as the prompt of a plain text


@torch.no_grad()
def sample_answer(
    model: Any, tokenizer: Any, text: NDArray[np.int32], learn: NDArray[np.uint8], device: str
) -> SampleAnswer:
    """Let the model continue the prompt, always with the most likely token."""
    prompt = int(learn.argmax()) or min(_OPENING_TOKENS, max(1, len(text) // 2))
    limit = getattr(plain_model(model).config, "max_position_embeddings", 10**6)
    most = max(1, min(_MAX_TOKENS, limit - prompt))
    if compiles_every_shape(device):
        answer = _continued(model, text[:prompt], most, limit)
    else:
        answer = _generated(model, tokenizer, text[:prompt], most)
    return SampleAnswer(
        prompt=tokenizer.decode(text[:prompt], skip_special_tokens=True).strip(),
        answer=tokenizer.decode(answer, skip_special_tokens=True),
        wanted=tokenizer.decode(text[prompt:][learn[prompt:] > 0], skip_special_tokens=True),
    )


def _generated(model: Any, tokenizer: Any, prompt: NDArray[np.int32], most: int) -> list[int]:
    prompt_1T = torch.from_numpy(prompt.astype(np.int64))[None].to(model.device)
    found_1T = model.generate(
        prompt_1T,
        attention_mask=torch.ones_like(prompt_1T),
        max_new_tokens=most,
        do_sample=False,
        pad_token_id=tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id,
    )
    tokens: list[int] = found_1T[0, len(prompt) :].tolist()
    return tokens


def _continued(model: Any, prompt: NDArray[np.int32], most: int, limit: int) -> list[int]:
    """The same without a cache of keys and values, whose shapes grow with each token: all tokens have one shape."""
    ends = model.generation_config.eos_token_id
    ids_1T = np.zeros((1, min(limit, round_up(len(prompt) + most, _ROW_UNIT))), dtype=np.int64)
    ids_1T[0, : len(prompt)] = prompt
    for at in range(len(prompt), len(prompt) + most):
        logits_TV = model(input_ids=torch.from_numpy(ids_1T).to(model.device), use_cache=False).logits[0]
        token = int(logits_TV.argmax(-1)[torch.tensor(at - 1, device=model.device)])
        ids_1T[0, at] = token
        if token in (ends if isinstance(ends, list) else [ends]):
            break
    answer: list[int] = ids_1T[0, len(prompt) : at + 1].tolist()
    return answer


@contextmanager
def ready_to_answer(model: nn.Module) -> Iterator[None]:
    """In this context the model takes one text at a time, without dropout."""
    plain, was_training = plain_model(model), model.training
    is_packed = plain.config._attn_implementation == ATTENTION
    model.eval()
    if is_packed:
        plain.set_attn_implementation("sdpa" if getattr(plain, "_supports_sdpa", False) else "eager")
    try:
        yield
    finally:
        if is_packed:
            plain.set_attn_implementation(ATTENTION)
        model.train(was_training)
