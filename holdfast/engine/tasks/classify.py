"""Fine-tune an encoder to classify texts, with one label each or any number of labels.

B texts of a micro-batch, L labels.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from transformers import AutoTokenizer

from holdfast.core.records import Mistakes
from holdfast.engine.attempt_settings import AttemptSettings
from holdfast.engine.batches import BatchPart, first_example, split_step
from holdfast.engine.classifier import Classifier
from holdfast.engine.data_order import Indices, step_seed
from holdfast.engine.fast.captured import bucket
from holdfast.engine.fast.packing import Pack, packed
from holdfast.engine.fast.rng import DropoutRng, replace_dropout
from holdfast.engine.labeled_texts import LabeledTexts
from holdfast.engine.ranks import ALONE, Ranks
from holdfast.engine.sharding import make_gradient_threads

_NO_LABEL = -100  # of a row that does not count


def load(settings: AttemptSettings, ranks: Ranks = ALONE) -> "Classify":
    """Load the encoder with a new head, and open the prepared texts."""
    data = LabeledTexts(settings)
    classifier = Classifier(settings, data.names, data.is_multi, data.texts.values())
    if settings.compile:
        for layer in classifier.model.base_model.encoder.layer[:-1]:
            layer.compile(dynamic=True)
    return Classify(settings, classifier, data, ranks)


class Classify:
    """A classifier in training."""

    needs_collectives = False

    def __init__(self, settings: AttemptSettings, classifier: Classifier, data: LabeledTexts, ranks: Ranks = ALONE):
        self._settings, self._classifier, self.model, self._ranks = settings, classifier, classifier.model, ranks
        self._data, self.metric, self.lengths = data, data.metric, data.lengths
        self.is_packed = classifier.is_packed
        self._rng = None if settings.uses_device_rng else DropoutRng(settings.seed)
        if self._rng:
            replace_dropout(self.model, self._rng)
        threads = settings.worker_threads if self.is_packed else 1
        self._threads = make_gradient_threads(self.model, threads, ranks, [self.model])
        weights = data.class_weights
        self._class_weights = None if weights is None else torch.tensor(weights, device=settings.device)
        self._threads.try_out(first_example(), lambda part: self._loss_of(0, part, 1.0))

    def begin_epoch(self, epoch: int) -> dict[str, int]:
        """Nothing depends on the epoch."""
        return {}

    def forward_backward(self, step: int, examples: Indices) -> Tensor:
        """Add the gradient of one step: the mean over all its texts, however they are split."""
        self.model.train()
        divisor = self._data.total_weight(examples)
        step_loss = torch.zeros((), device=self._settings.device)
        max_tokens, workers = self._settings.micro_tokens, self._threads.workers
        for parts in split_step(examples, self.lengths, max_tokens, workers, self._ranks):
            step_loss += self._threads.backward(parts, lambda part: self._loss_of(step, part, divisor))
        return step_loss

    def step_arrays(self, step: int, examples: Indices) -> dict[str, NDArray[np.int64]] | None:
        """One step for `fast.captured`: all texts in a row, filled up to a bucket by one text that is never read.

        None where the step is too large to compute at once.
        """
        ordered = examples[np.argsort(self.lengths[examples], kind="stable")]
        lengths = self.lengths[ordered]
        tokens = int(lengths.sum())
        if tokens > self._settings.micro_tokens:
            return None
        filler = bucket(tokens) - tokens
        bounds = np.concatenate([[0], np.cumsum(lengths), [tokens + filler]])
        ids = np.concatenate([self._data.texts["train"][int(at)] for at in ordered])
        new_ids, offset = self._classifier.new_ids, self._classifier.position_offset or 0
        ids = ids.astype(np.int64) if new_ids is None else new_ids[ids]
        positions = np.arange(tokens) - np.repeat(bounds[:-2], lengths) + offset
        return {
            "ids": np.pad(ids, (0, filler)),
            "positions": np.concatenate([positions, np.arange(filler) % int(lengths.max()) + offset]),
            "bounds": bounds,
            "labels": np.asarray(self._data.labels["train"][ordered]).astype(np.int64).reshape(-1),
        }

    def step_loss(self, arrays: Mapping[str, Tensor]) -> Tensor:
        """The loss of those arrays, which are on the GPU."""
        bounds = arrays["bounds"]
        size = len(bounds) - 2
        longest = max(int(self.lengths.max()), bucket(1))
        texts = Pack(arrays["ids"][None], arrays["positions"][None], [], bounds[:size], bounds.int(), longest)
        with packed(texts):
            logits_BL = self._classifier.logits({"input_ids": texts.ids_RT, "position_ids": texts.positions_RT})
        if self._data.is_multi:
            truth_BL = arrays["labels"].view(size, -1).float()
            return functional.binary_cross_entropy_with_logits(logits_BL, truth_BL)
        return functional.cross_entropy(logits_BL, arrays["labels"], weight=self._class_weights)

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
        return self._data.by_row(split, self._classifier.scores(self._data.texts[split], self._ranks))

    def state(self) -> dict[str, Tensor]:
        """All weights: every one is trained."""
        return dict(self.model.state_dict())

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Restore what `state` returned."""
        self.model.load_state_dict(tensors)

    def show(self, examples: Indices) -> object:
        """The texts' tokens and labels."""
        return self._data.show(examples)

    def export(self, folder: Path) -> None:
        """Write the model and its tokenizer as transformers does, and the calibration temperature."""
        self._classifier.exportable_model().save_pretrained(folder)
        AutoTokenizer.from_pretrained(self._settings.model).save_pretrained(folder)
        self._data.write_calibration(folder)

    @contextmanager
    def _loss_of(self, step: int, part: BatchPart, divisor: float) -> Iterator[Tensor]:
        """A part's share of the step's loss. The texts stay packed until its backward pass is done."""
        if self._threads.workers == 1:  # the model may draw from torch's own generator
            torch.manual_seed(step_seed(self._settings.seed, step) + int(part.places[0]))
        if self._rng:
            self._rng.at_part(step, part.places, part.first_tokens, self.lengths[part.examples])
        context, inputs = self._classifier.take(self._data.texts["train"], part.examples, self._rng)
        with context:
            share = self._summed_loss(self._classifier.logits(inputs), part.examples)
            yield share / (math.inf if part.is_idle else divisor)

    def _summed_loss(self, logits_BL: Tensor, examples: Indices) -> Tensor:
        labels, device = np.asarray(self._data.labels["train"][examples]), logits_BL.device
        counts_B1 = None
        if idle := len(logits_BL) - len(labels):  # rows that only fill up the shape
            counts = np.repeat(np.array([1, 0], dtype=np.float32), [len(labels), idle])
            counts_B1 = torch.from_numpy(counts[:, None]).to(device)
            labels = np.concatenate([labels, np.full((idle, *labels.shape[1:]), _NO_LABEL, dtype=labels.dtype)])
        truth = torch.from_numpy(labels).to(device)
        if self._data.is_multi:
            summed = functional.binary_cross_entropy_with_logits(logits_BL, truth, counts_B1, reduction="sum")
            return summed / logits_BL.shape[1]
        return functional.cross_entropy(
            logits_BL, truth, weight=self._class_weights, ignore_index=_NO_LABEL, reduction="sum"
        )
