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

_MAX_TOKENS = 60
_OPENING_TOKENS = 16  # used as the prompt of a plain text


@torch.no_grad()
def sample_answer(
    model: Any, tokenizer: Any, text: NDArray[np.int32], learn: NDArray[np.uint8], device: str
) -> SampleAnswer:
    """Let the model continue the prompt, always with the most likely token."""
    prompt = int(learn.argmax()) or min(_OPENING_TOKENS, max(1, len(text) // 2))
    prompt_1T = torch.from_numpy(text[:prompt].astype(np.int64))[None].to(device)
    room = getattr(plain_model(model).config, "max_position_embeddings", 10**6) - prompt
    found_1T = model.generate(
        prompt_1T,
        attention_mask=torch.ones_like(prompt_1T),
        max_new_tokens=max(1, min(_MAX_TOKENS, room)),
        do_sample=False,
        pad_token_id=tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id,
    )
    return SampleAnswer(
        prompt=tokenizer.decode(text[:prompt], skip_special_tokens=True).strip(),
        answer=tokenizer.decode(found_1T[0, prompt:], skip_special_tokens=True),
        wanted=tokenizer.decode(text[prompt:][learn[prompt:] > 0], skip_special_tokens=True),
    )


@contextmanager
def ready_to_answer(model: nn.Module) -> Iterator[None]:
    """In this context the model takes one text at a time, without dropout."""
    plain, was_training = plain_model(model), model.training
    is_packed = plain.config._attn_implementation == ATTENTION
    model.eval()
    if is_packed:
        plain.set_attn_implementation("sdpa")
    try:
        yield
    finally:
        if is_packed:
            plain.set_attn_implementation(ATTENTION)
        model.train(was_training)
