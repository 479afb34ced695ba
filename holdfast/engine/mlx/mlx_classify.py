"""Fine-tune an encoder to classify texts with MLX, with one label each or any number of labels.

B texts of a micro-batch, L labels.
"""

from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from numpy.typing import NDArray

from holdfast.core.errors import RequestError
from holdfast.core.records import Mistakes
from holdfast.engine.attempt_settings import AttemptSettings
from holdfast.engine.batches import BatchPart, micro_batches, split_step
from holdfast.engine.data_order import Indices
from holdfast.engine.labeled_texts import LabeledTexts
from holdfast.engine.mlx.hf_folder import read_config, read_weights, write_model
from holdfast.engine.mlx.mlx_adamw import Weights
from holdfast.engine.mlx.mlx_dropout import StepMasks
from holdfast.engine.mlx.mlx_encoder import Encoder
from holdfast.engine.mlx.mlx_vocabulary import UsedTable
from holdfast.engine.mlx.text_rows import TextRows, pack_rows
from holdfast.engine.new_weights import normal_weight

_CLASSES = {
    "bert": "BertForSequenceClassification",
    "roberta": "RobertaForSequenceClassification",
    "xlm-roberta": "XLMRobertaForSequenceClassification",
    "camembert": "CamembertForSequenceClassification",
    "electra": "ElectraForSequenceClassification",
    "mpnet": "MPNetForSequenceClassification",
    "distilbert": "DistilBertForSequenceClassification",
}


def load(settings: AttemptSettings) -> "MlxClassify":
    """Load the encoder with its head, and open the prepared texts."""
    return MlxClassify(settings, LabeledTexts(settings))


class MlxClassify:
    """A classifier in training."""

    def __init__(self, settings: AttemptSettings, data: LabeledTexts):
        self._settings, self._data = settings, data
        self.metric, self.lengths = data.metric, data.lengths
        self._base = Path(settings.model)
        self._config = read_config(self._base)
        self._encoder = Encoder(
            self._config, is_half=settings.precision == "bf16", checkpointing=settings.gradient_checkpointing
        )
        self.weights = _with_head(read_weights(self._base), self._encoder, data.names, settings.seed)
        padding = int(self._config.get("pad_token_id") or 0)
        texts = [array.tokens for array in data.texts.values()]
        self._table = UsedTable(self.weights, self._encoder.embedding, texts, padding)
        self._class_weights = None if data.class_weights is None else mx.array(data.class_weights)
        mx.eval(self.weights)

    def begin_epoch(self, epoch: int) -> dict[str, int]:
        """Nothing depends on the epoch."""
        return {}

    def loss_and_gradients(self, step: int, examples: Indices) -> tuple[mx.array, Weights]:
        """The loss of one step, the mean over all its texts, and its gradient."""
        divisor = self._data.total_weight(examples)
        step_loss, total = mx.array(0.0), None
        for (part,) in split_step(examples, self.lengths, self._settings.micro_tokens):
            rows = self._pack("train", part)
            masks = StepMasks(self._settings.seed, step, rows)
            loss, gradients = mx.value_and_grad(self._loss)(self.weights, rows, masks, part.examples, divisor)
            total = gradients if total is None else {name: total[name] + one for name, one in gradients.items()}
            step_loss = step_loss + loss
            mx.eval(step_loss, total)
        assert total is not None
        return step_loss, total

    def evaluate(self, split: str) -> dict[str, float]:
        """Metrics on a split; empty if the split does not exist."""
        return self._data.evaluate(split, self.predict)

    def report(self, split: str) -> dict[str, object]:
        """Metrics, a table by label, the confusion matrix and the calibration error."""
        return self._data.report(split, self.predict)

    def mistakes(self, split: str) -> Mistakes:
        """Texts that the finished model labels wrongly, the most confident mistakes first."""
        return self._data.mistakes(split)

    def predict(self, split: str) -> NDArray[np.float64]:
        """The model's scores for every row of a split; the scores of a long text's windows are averaged."""
        texts = self._data.texts[split]
        scores = np.zeros((len(texts), len(self._data.names)))
        for micro in micro_batches(np.arange(len(texts)), texts.lengths, self._settings.micro_tokens):
            rows = self._pack(split, BatchPart(micro, micro, micro))
            found_BL = self._encoder.scores(self.weights, rows, None, None)[: rows.count]
            scores[micro] = np.asarray(found_BL.astype(mx.float32))
        return self._data.by_row(split, scores)

    def state(self) -> dict[str, Any]:
        """All weights: every one is trained."""
        return dict(self.weights)

    def load_state(self, tensors: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        load_weights(self.weights, tensors)

    def show(self, examples: Indices) -> object:
        """The texts' tokens and labels."""
        return self._data.show(examples)

    def export(self, folder: Path) -> None:
        """Write the model and its tokenizer as transformers does, and the calibration temperature."""
        names = self._data.names
        config = self._config | {
            "architectures": [_CLASSES[self._config["model_type"]]],
            "id2label": {str(at): name for at, name in enumerate(names)},
            "label2id": {name: at for at, name in enumerate(names)},
            "problem_type": "multi_label_classification" if self._data.is_multi else "single_label_classification",
            "dtype": "float32",
        }
        write_model(folder, self._base, config, self._table.restored(self.weights))
        self._data.write_calibration(folder)

    def _pack(self, split: str, part: BatchPart) -> TextRows:
        texts = self._data.texts[split]
        return pack_rows([self._table.new_ids[texts[int(at)]] for at in part.examples], part)

    def _loss(self, weights: Weights, rows: TextRows, masks: StepMasks, examples: Indices, divisor: float) -> mx.array:
        """A part's share of the step's loss."""
        scores_BL = self._encoder.scores(weights, rows, masks, self._table.padding)[: rows.count]
        truth = mx.array(self._data.labels["train"][examples])
        if self._data.is_multi:
            summed = nn.losses.binary_cross_entropy(scores_BL, truth, with_logits=True, reduction="sum")
            return summed / (scores_BL.shape[1] * divisor)
        losses_B = nn.losses.cross_entropy(scores_BL, truth)
        if self._class_weights is not None:
            losses_B = losses_B * self._class_weights[truth]
        return mx.sum(losses_B) / divisor


def load_weights(weights: Weights, tensors: dict[str, Any]) -> None:
    """Replace the weights by those of a checkpoint."""
    for name, weight in weights.items():
        found = tensors.pop(name)
        if found.shape != weight.shape:
            raise ValueError(f"{name} has shape {found.shape} in the checkpoint and {weight.shape} in this model")
        weights[name] = found
    if tensors:
        raise ValueError(f"the checkpoint has weights that this model lacks: {sorted(tensors)[:3]}")
    mx.eval(weights)  # while the file exists: a later save may delete it


def encoder_weights(found: Weights, encoder: Encoder) -> Weights:
    """The weights of the encoder alone, under their names in a model with a head."""
    prefix = f"{encoder.kind.prefix}."
    own = {name: weight for name, weight in found.items() if name.startswith(prefix)}
    if not own:
        other = ("classifier.", "pre_classifier.", "cls.", "lm_head.", "discriminator_", "generator_", "qa_outputs.")
        own = {prefix + name: weight for name, weight in found.items() if not name.startswith(other)}
    own = {name: weight for name, weight in own.items() if not name.endswith("position_ids")}
    if encoder.embedding not in own:
        raise RequestError(
            "the model's weights have unknown names", found=f"{encoder.embedding} is missing", setting="model"
        )
    return {name: weight.astype(mx.float32) for name, weight in own.items()}


def _with_head(found: Weights, encoder: Encoder, labels: list[str], seed: int) -> Weights:
    """The encoder's weights and those of the head; what the model lacks, or has for other labels, starts new."""
    weights = encoder_weights(found, encoder)
    kind, hidden = encoder.kind, int(encoder.setting("hidden_size"))
    known = list((encoder.config.get("id2label") or {}).values())
    shapes = {f"{kind.pooled}.weight": (hidden, hidden), f"{kind.pooled}.bias": (hidden,)}
    shapes |= {f"{kind.head}.weight": (len(labels), hidden), f"{kind.head}.bias": (len(labels),)}
    std = float(encoder.setting("initializer_range", 0.02))
    for name, shape in shapes.items():
        weight = found.get(name, weights.get(name))
        if name.startswith(f"{kind.head}.") and known != labels:
            weight = None
        if weight is None or weight.shape != shape:
            weight = mx.array(normal_weight(seed, name, shape, std))
        weights[name] = weight.astype(mx.float32)
    return weights
