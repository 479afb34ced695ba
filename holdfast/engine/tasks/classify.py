"""Fine-tune an encoder to classify texts, with one label each or any number.

B texts of a micro-batch, L labels.
"""

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from transformers import AutoTokenizer

from holdfast.core.artifacts import write_artifact
from holdfast.core.runfolder import MANIFEST
from holdfast.data.shards import TokenArray, open_array, open_tokens
from holdfast.engine.batches import Part, first_text, shared_out
from holdfast.engine.calibration import Calibration, calibration_error, fit
from holdfast.engine.captured import bucket
from holdfast.engine.classifier import Classifier, averaged
from holdfast.engine.crew import make_crew
from holdfast.engine.draws import Draws, replace_dropout
from holdfast.engine.metrics import (
    class_table,
    confusion_matrix,
    label_table,
    multi_label_metrics,
    single_label_metrics,
)
from holdfast.engine.misjudged import Words, where, wrong_labels
from holdfast.engine.order import Indices, step_seed
from holdfast.engine.packing import Pack, packed
from holdfast.engine.ranks import ALONE, Ranks
from holdfast.engine.settings import Settings

CALIBRATION = "calibration.json"  # in the model's folder


def load(settings: Settings, ranks: Ranks = ALONE) -> "Classify":
    """Load the encoder with a fresh head, and open the prepared texts."""
    manifest = json.loads((settings.prepared_path / MANIFEST).read_text(encoding="utf-8"))
    texts = {split: open_tokens(settings.prepared_path, split) for split in manifest["splits"]}
    classifier = Classifier(settings, manifest["labels"], bool(manifest["multi_label"]), texts.values())
    if settings.compile:
        for layer in classifier.model.base_model.encoder.layer[:-1]:
            layer.compile(dynamic=True)
    return Classify(settings, classifier, texts, manifest, ranks)


class Classify:
    """A classifier in training."""

    meets_within_steps = False

    def __init__(
        self,
        settings: Settings,
        classifier: Classifier,
        texts: dict[str, TokenArray],
        manifest: Mapping[str, Any],
        ranks: Ranks = ALONE,
    ):
        self._settings, self._classifier, self.model, self._ranks = settings, classifier, classifier.model, ranks
        self._texts, self._names, self._is_multi = texts, manifest["labels"], bool(manifest["multi_label"])
        self.metric = "micro_f1" if self._is_multi else "accuracy"
        self.is_packed = classifier.is_packed
        self._draws = None if settings.card_draws else Draws(settings.seed)
        if self._draws:
            replace_dropout(self.model, self._draws)
        self._crew = make_crew(self.model, settings.hands if self.is_packed else 1, ranks, [self.model])
        self._labels = {split: np.asarray(open_array(settings.prepared_path, f"{split}.labels")) for split in texts}
        self.lengths = texts["train"].lengths
        self._has_windows = manifest.get("overlong") == "window"
        weights = settings.options.get("class_weights")
        self._class_weights = torch.tensor(weights, device=settings.device) if weights else None
        self._calibration: Calibration | None = None
        self._words = Words(settings.model, settings.prepared_path)
        self._reported: dict[str, NDArray[np.float64]] = {}  # scores of the finished model
        self._crew.try_out(first_text(), lambda part: self._loss_of(0, part, 1.0))

    def begin_epoch(self, epoch: int) -> dict[str, object]:
        """Nothing depends on the epoch."""
        return {}

    def forward_backward(self, step: int, examples: Indices) -> Tensor:
        """Add the gradient of one step: the mean over all its texts, however they are split."""
        self.model.train()
        whole = self._weight_of(examples)
        step_loss = torch.zeros((), device=self._settings.device)
        for parts in shared_out(examples, self.lengths, self._settings.micro_tokens, self._crew.hands, self._ranks):
            step_loss += self._crew.backward(parts, lambda part: self._loss_of(step, part, whole))
        return step_loss

    def step_arrays(self, step: int, examples: Indices) -> dict[str, NDArray[np.int64]] | None:
        """One step for `engine.captured`: all texts in a row, filled up to a bucket by one text that nobody reads.

        None where it is too large to be computed at once.
        """
        ordered = examples[np.argsort(self.lengths[examples], kind="stable")]
        lengths = self.lengths[ordered]
        tokens = int(lengths.sum())
        if tokens > self._settings.micro_tokens:
            return None
        filler = bucket(tokens) - tokens
        bounds = np.concatenate([[0], np.cumsum(lengths), [tokens + filler]])
        ids = np.concatenate([self._texts["train"][int(at)] for at in ordered])
        new_ids, offset = self._classifier.new_ids, self._classifier.position_offset or 0
        ids = ids.astype(np.int64) if new_ids is None else new_ids[ids]
        positions = np.arange(tokens) - np.repeat(bounds[:-2], lengths) + offset
        return {
            "ids": np.pad(ids, (0, filler)),
            "positions": np.concatenate([positions, np.arange(filler) % int(lengths.max()) + offset]),
            "bounds": bounds,
            "labels": np.asarray(self._labels["train"][ordered]).astype(np.int64).reshape(-1),
        }

    def step_loss(self, arrays: Mapping[str, Tensor]) -> Tensor:
        """The loss of those arrays, which lie on the card."""
        bounds = arrays["bounds"]
        size = len(bounds) - 2
        longest = max(int(self.lengths.max()), bucket(1))
        texts = Pack(arrays["ids"][None], arrays["positions"][None], [], bounds[:size], bounds.int(), longest)
        with packed(texts):
            logits_BL = self._classifier.logits({"input_ids": texts.ids_1N, "position_ids": texts.positions_1N})
        if self._is_multi:
            truth_BL = arrays["labels"].view(size, -1).float()
            return functional.binary_cross_entropy_with_logits(logits_BL, truth_BL)
        return functional.cross_entropy(logits_BL, arrays["labels"], weight=self._class_weights)

    def evaluate(self, split: str) -> dict[str, float]:
        """Metrics on a split; empty where there is no such split."""
        if split not in self._texts:
            return {}
        scores_BL, truth = self.predict(split), self._truth(split)
        return multi_label_metrics(scores_BL, truth) if self._is_multi else single_label_metrics(scores_BL, truth)

    def report(self, split: str) -> dict[str, object]:
        """Metrics, a table of the labels, which were taken for which, and how far probabilities can be trusted."""
        if split not in self._texts:
            return {}
        scores_BL, truth = self.predict(split), self._truth(split)
        self._reported[split] = scores_BL
        if split == "validation":
            self._calibration = fit(scores_BL, truth, self._is_multi)
        found: dict[str, object] = {}
        if self._is_multi:
            found |= multi_label_metrics(scores_BL, truth)
            rows = label_table(scores_BL > 0, truth > 0.5)
        else:
            guesses = scores_BL.argmax(1)
            found |= single_label_metrics(scores_BL, truth)
            found["confusion"] = confusion_matrix(guesses, truth, len(self._names)).tolist()
            rows = class_table(guesses, truth, len(self._names))
        found["classes"] = [{"label": name, **row} for name, row in zip(self._names, rows, strict=True)]
        if self._calibration:
            calm_BL = scores_BL / self._calibration.temperature
            found["calibration_error"] = calibration_error(scores_BL, truth, self._is_multi)
            found["calibrated_error"] = calibration_error(calm_BL, truth, self._is_multi)
        return found

    def misjudged(self, split: str) -> list[dict[str, object]]:
        """Texts that the finished model gives other labels than they have, those it is surest of first."""
        if split not in self._reported:
            return []
        scores_BL = self._reported[split] / (self._calibration.temperature if self._calibration else 1.0)
        texts, starts = self._texts[split], self._windows(split) if self._has_windows else None
        return [
            {**found, "text": self._words.text(split, row, texts[row if starts is None else int(starts[row])])}
            | where(self._settings.prepared_path, split, row)
            for row, found in wrong_labels(scores_BL, self._truth(split), self._names, self._is_multi)
        ]

    def predict(self, split: str) -> NDArray[np.float64]:
        """The model's scores for every row of a split; those of a long text's windows are averaged."""
        scores = self._classifier.scores(self._texts[split], self._ranks)
        return averaged(scores, self._windows(split)) if self._has_windows else scores

    def state(self) -> dict[str, Tensor]:
        """All weights: every one is trained."""
        return dict(self.model.state_dict())

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Put them back."""
        self.model.load_state_dict(tensors)

    def show(self, examples: Indices) -> object:
        """The texts' tokens and labels."""
        texts, labels = self._texts["train"], self._labels["train"]
        return [
            {"example": int(at), "tokens": texts[int(at)].tolist(), "label": labels[at].tolist()} for at in examples
        ]

    def export(self, folder: Path) -> None:
        """Write the model and its tokenizer as transformers does, and the temperature of its probabilities."""
        self._classifier.whole_model().save_pretrained(folder)
        AutoTokenizer.from_pretrained(self._settings.model).save_pretrained(folder)
        if self._calibration:
            write_artifact(folder, CALIBRATION, self._calibration)

    def _windows(self, split: str) -> NDArray[np.int64]:
        return np.asarray(open_array(self._settings.prepared_path, f"{split}.windows"), dtype=np.int64)

    def _truth(self, split: str) -> NDArray[Any]:
        """The labels of each row."""
        labels: NDArray[Any] = self._labels[split]
        return labels[self._windows(split)[:-1]] if self._has_windows else labels

    @contextmanager
    def _loss_of(self, step: int, part: Part, whole: float) -> Iterator[Tensor]:
        """A part's share of the step's loss; what it holds is held for the backward pass too."""
        if self._crew.hands == 1:  # something may draw from torch's own generator
            torch.manual_seed(step_seed(self._settings.seed, step) + int(part.places[0]))
        if self._draws:
            self._draws.at_part(step, part.places, part.first_tokens, self.lengths[part.examples])
        held, inputs = self._classifier.take(self._texts["train"], part.examples, self._draws)
        with held:
            share = self._summed_loss(self._classifier.logits(inputs), part.examples)
            yield share / (math.inf if part.is_idle else whole)

    def _summed_loss(self, logits_BL: Tensor, examples: Indices) -> Tensor:
        truth = torch.from_numpy(np.asarray(self._labels["train"][examples])).to(logits_BL.device)
        if self._is_multi:
            return functional.binary_cross_entropy_with_logits(logits_BL, truth, reduction="sum") / logits_BL.shape[1]
        return functional.cross_entropy(logits_BL, truth, weight=self._class_weights, reduction="sum")

    def _weight_of(self, examples: Indices) -> float:
        """What the step's loss is divided by: its texts, each counted with its class's weight."""
        if self._class_weights is None:
            return float(len(examples))
        return float(self._class_weights.cpu().numpy()[self._labels["train"][examples]].sum())
