"""A language model's answers to a few prompts with MLX, next to the expected ones."""

from importlib import import_module
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from holdfast.core.scores import SampleAnswer
from holdfast.engine.mlx.mlx_language_model import LanguageModel

_MAX_TOKENS = 60
_OPENING_TOKENS = 16  # used as the prompt of a plain text


def sample_answer(
    model: LanguageModel, tokenizer: Any, text: NDArray[np.int32], learn: NDArray[np.uint8]
) -> SampleAnswer:
    """Let the model continue the prompt, always with the most likely token."""
    prompt = int(learn.argmax()) or min(_OPENING_TOKENS, max(1, len(text) // 2))
    room = int(model.config.get("max_position_embeddings", 10**6)) - prompt
    ends = model.config.get("eos_token_id")
    last = {*ends} if isinstance(ends, list) else {ends}
    cache = import_module("mlx_lm.models.cache").make_prompt_cache(model.net)
    ids, answer = mx.array(text[:prompt])[None], []
    for _ in range(max(1, min(_MAX_TOKENS, room))):
        token = int(mx.argmax(model.net(ids, cache=cache)[0, -1]).item())
        answer.append(token)
        if token in last:
            break
        ids = mx.array([[token]])
    return SampleAnswer(
        prompt=tokenizer.decode(text[:prompt].tolist(), skip_special_tokens=True).strip(),
        answer=tokenizer.decode(answer, skip_special_tokens=True),
        wanted=tokenizer.decode(text[prompt:][learn[prompt:] > 0].tolist(), skip_special_tokens=True),
    )
