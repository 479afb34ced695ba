"""An encoder with a classification head. Texts are packed if that gives the same scores, and padded otherwise.

B texts of a micro-batch, T tokens of the longest, L labels.
"""

import json
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification

from holdfast.data.shards import TokenArray
from holdfast.engine.attempt_settings import AttemptSettings
from holdfast.engine.batches import micro_batches
from holdfast.engine.data_order import Indices
from holdfast.engine.fast.encoder_layer import narrow_last_layer, write_out_layers
from holdfast.engine.fast.packing import ATTENTION, pack, pack_base, packed
from holdfast.engine.fast.recompute import recompute_layers
from holdfast.engine.fast.rng import DropoutRng
from holdfast.engine.fast.vocabulary import RowEmbedding, keep_used_rows
from holdfast.engine.new_weights import normal_weight
from holdfast.engine.padding import pad
from holdfast.engine.ranks import ALONE, Ranks

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Inputs = dict[str, Tensor]

_TRIALS = ((300, 7), (40, 19, 7))  # tokens; long and short texts take different paths through attention


class Classifier:
    """The model, and how it takes texts."""

    def __init__(
        self, settings: AttemptSettings, labels: list[str], is_multi: bool, texts: Iterable[TokenArray] | None = None
    ):
        self._settings, self._device = settings, settings.device
        self.model: Any
        self.model, loaded = AutoModelForSequenceClassification.from_pretrained(
            settings.model,
            num_labels=len(labels),
            id2label=dict(enumerate(labels)),
            label2id={label: at for at, label in enumerate(labels)},
            problem_type="multi_label_classification" if is_multi else "single_label_classification",
            dtype=torch.float32,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # a head for other labels is replaced
            output_loading_info=True,
        )
        self.model = self.model.to(settings.load_device)
        new = {*loaded["missing_keys"], *(name for name, *_ in loaded["mismatched_keys"])}
        _start_head(self.model, new | _of_other_labels(self.model, Path(settings.model), labels), settings.seed)
        if settings.gradient_checkpointing:
            recompute_layers(self.model, settings.device)
        self.position_offset = proven_head_offset(self.model) if settings.packing else None
        self.rows = None
        if texts is not None:  # also without packing: a checkpoint must fit with and without it
            kind = RowEmbedding if settings.device == "cpu" and not settings.shard else nn.Embedding
            self.rows = keep_used_rows(self.model, [array.tokens for array in texts], kind)
        self.new_ids = self.rows.new_ids if self.rows and self.is_packed else None
        if self.rows and not self.is_packed:
            self.rows.take_old_ids()  # padded models detect padding by its id

    @property
    def is_packed(self) -> bool:
        """Whether the model computes without padding."""
        return self.position_offset is not None

    def take(
        self, tokens: TokenArray, examples: Indices, rng: DropoutRng | None
    ) -> tuple[AbstractContextManager[None], Inputs]:
        """The model's inputs for some texts, and a context to hold during forward and backward."""
        if self.position_offset is None:
            return nullcontext(), self._padded(tokens, examples)
        texts = pack(tokens, examples, self._device, self.position_offset, self.new_ids)
        return packed(texts, rng), {"input_ids": texts.ids_RT, "position_ids": texts.positions_RT}

    def logits(self, inputs: Inputs) -> Tensor:
        """The model's scores, (B, L); rows that fill up the shape may follow."""
        with self._settings.autocast():
            logits_BL: Tensor = self.model(**inputs).logits
        return logits_BL.float()

    @torch.no_grad()
    def scores(self, texts: TokenArray, ranks: Ranks = ALONE) -> NDArray[np.float64]:
        """The model's scores for every text, in order; texts of similar length are computed together."""
        self.model.eval()
        found = np.zeros((len(texts), self.model.config.num_labels))
        micros = list(micro_batches(np.arange(len(texts)), texts.lengths, self._settings.micro_tokens))

        def score() -> None:
            for micro, counts in ranks.own_share(micros):
                held, inputs = self.take(texts, micro, None)
                with held:
                    scores_BL = self.logits(inputs).cpu().numpy()[: len(micro)]
                if counts:
                    found[micro] = scores_BL

        ranks.independently(score)
        ranks.all_reduce(torch.from_numpy(found))
        return found

    def exportable_model(self) -> "PreTrainedModel":
        """The model to export, with the complete embedding table."""
        if self.rows:
            self.rows.restore()
        model: PreTrainedModel = self.model
        return model

    def _padded(self, tokens: TokenArray, examples: Indices) -> Inputs:
        return _pad([tokens[int(at)] for at in examples], self.model)


@torch.no_grad()
def _start_head(model: Any, new: set[str], seed: int) -> None:
    """Give new weights their first values, the same ones in every backend."""
    std = getattr(model.config, "initializer_range", 0.02)
    for name, weight in model.named_parameters():
        if name in new:
            weight.copy_(torch.from_numpy(normal_weight(seed, name, tuple(weight.shape), std)))


def _of_other_labels(model: Any, folder: Path, labels: list[str]) -> set[str]:
    """The weights of the model's own head if it scores other labels, or the same labels in another order."""
    known = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("id2label") or {}
    if list(known.values()) == list(labels) or len(known) != len(labels):
        return set()  # the model's own head fits, or was already replaced
    return {
        f"{name}.{kind}"
        for name, part in model.named_modules()
        if isinstance(part, nn.Linear) and part.out_features == len(labels)
        for kind in ("weight", "bias")
        if not name.startswith(model.base_model_prefix)
    }


@torch.no_grad()
def proven_head_offset(model: Any) -> int | None:
    """Where this model's positions start when texts are packed, or None if it cannot be packed.

    A model may ignore our attention, mask parts of a text or pool more than its first token, without any error. So it
    is tried against the same texts alone. Leaves the model set up for packed texts, or else for padded ones.
    """
    model.eval()
    rng = np.random.default_rng(0)
    longest = getattr(model.config, "max_position_embeddings", 10**6) - 4
    low = model.config.vocab_size // 2  # above the ids that mean padding
    trials = [
        [rng.integers(low, model.config.vocab_size, min(length, longest)) for length in lengths] for lengths in _TRIALS
    ]
    expected = [torch.cat([model(**_pad([text], model)).logits[:1] for text in texts]) for texts in trials]
    found = None
    if getattr(model, "_supports_attention_backend", False):
        before = model.config._attn_implementation
        model.set_attn_implementation(ATTENTION)
        is_narrow = narrow_last_layer(model.base_model)
        pack_base(model, is_narrow=is_narrow)
        write_out_layers(model.base_model, is_narrow=is_narrow)
        offsets = dict.fromkeys((0, (getattr(model.config, "pad_token_id", None) or 0) + 1))
        found = next((offset for offset in offsets if _agrees(model, trials, offset, expected)), None)
        if found is None:
            model.set_attn_implementation(before)
    return found


def _agrees(model: Any, trials: list[list[NDArray[np.int64]]], offset: int, expected: list[Tensor]) -> bool:
    for texts, expected_BL in zip(trials, expected, strict=True):
        starts = np.cumsum([0, *map(len, texts)])
        array = TokenArray(np.concatenate(texts).astype(np.int32), starts)
        row = pack(array, np.arange(len(texts)), str(model.device), offset)
        try:
            with packed(row):
                logits_BL = model(input_ids=row.ids_RT, position_ids=row.positions_RT).logits
        except (TypeError, RuntimeError, ValueError, IndexError, AttributeError):
            return False
        logits_BL = logits_BL[: len(texts)]
        if logits_BL.shape != expected_BL.shape:
            return False
        if not torch.allclose(logits_BL, expected_BL, rtol=1e-3, atol=1e-3 * float(expected_BL.abs().max())):
            return False
    return True


def _pad(texts: list[NDArray[Any]], model: Any) -> Inputs:
    ids_BT, mask_BT = pad(texts, getattr(model.config, "pad_token_id", None) or 0, str(model.device))
    return {"input_ids": ids_BT, "attention_mask": mask_BT}
