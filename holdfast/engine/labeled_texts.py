"""The prepared texts and labels of a classifier, and what its scores say: metrics, tables, mistakes, calibration.

numpy only: every backend evaluates and reports with it.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.core.records import Mistakes, WrongLabels
from holdfast.data.shards import TokenArray, open_array, open_tokens, require_manifest
from holdfast.engine.attempt_settings import AttemptSettings
from holdfast.engine.calibration import Calibration, calibration_error, fit, write_calibration
from holdfast.engine.data_order import Indices
from holdfast.engine.intervals import classifier_intervals
from holdfast.engine.metrics import (
    class_table,
    confusion_matrix,
    label_table,
    multi_label_metrics,
    single_label_metrics,
)
from holdfast.engine.mistakes import TextView, row_in_file, wrong_labels

Scores = NDArray[np.float64]
Predict = Callable[[str], Scores]  # the scores of a split's rows


class LabeledTexts:
    """Texts with one label each or any number of labels."""

    def __init__(self, settings: AttemptSettings):
        self._folder, self._seed = settings.prepared_path, settings.seed
        manifest = require_manifest(self._folder)
        self.names, self.is_multi = list(manifest.labels), manifest.multi_label
        self.metric = "micro_f1" if self.is_multi else "accuracy"
        self.texts: dict[str, TokenArray] = {split: open_tokens(self._folder, split) for split in manifest.splits}
        self.labels = {split: np.asarray(open_array(self._folder, f"{split}.labels")) for split in manifest.splits}
        self.lengths = self.texts["train"].lengths
        weights: Any = settings.options.get("class_weights")
        self.class_weights = np.array(weights, dtype=np.float32) if weights else None
        self._has_windows = manifest.overlong == "window"
        self._text_view = TextView(settings.model, self._folder)
        self._calibration: Calibration | None = None
        self._reported: dict[str, Scores] = {}  # scores of the finished model

    def total_weight(self, examples: Indices) -> float:
        """What the step's loss is divided by: the class weights of its texts, summed."""
        if self.class_weights is None:
            return float(len(examples))
        return float(self.class_weights[self.labels["train"][examples]].sum())

    def by_row(self, split: str, scores: Scores) -> Scores:
        """The scores of each row; those of a long text's windows are averaged."""
        return averaged(scores, self._windows(split)) if self._has_windows else scores

    def evaluate(self, split: str, predict: Predict) -> dict[str, float]:
        """Metrics on a split; empty if the split does not exist."""
        if split not in self.texts:
            return {}
        scores_BL, truth = predict(split), self._truth(split)
        return multi_label_metrics(scores_BL, truth) if self.is_multi else single_label_metrics(scores_BL, truth)

    def report(self, split: str, predict: Predict) -> dict[str, object]:
        """Metrics, a table by label, the confusion matrix and the calibration error."""
        if split not in self.texts:
            return {}
        scores_BL, truth = predict(split), self._truth(split)
        self._reported[split] = scores_BL
        if split == "validation":
            self._calibration = fit(scores_BL, truth, self.is_multi)
        found: dict[str, object] = {}
        if self.is_multi:
            found |= multi_label_metrics(scores_BL, truth)
            rows = label_table(scores_BL > 0, truth > 0.5)
        else:
            predicted = scores_BL.argmax(1)
            found |= single_label_metrics(scores_BL, truth)
            found["confusion"] = confusion_matrix(predicted, truth, len(self.names)).tolist()
            rows = class_table(predicted, truth, len(self.names))
        found["classes"] = [{"label": name, **row} for name, row in zip(self.names, rows, strict=True)]
        found["intervals"] = classifier_intervals(scores_BL, truth, self.is_multi, self._seed)
        if self._calibration:
            calibrated_BL = scores_BL / self._calibration.temperature
            found["calibration_error"] = calibration_error(scores_BL, truth, self.is_multi)
            found["calibrated_error"] = calibration_error(calibrated_BL, truth, self.is_multi)
        return found

    def mistakes(self, split: str) -> Mistakes:
        """Texts that the finished model labels wrongly, the most confident mistakes first."""
        if split not in self._reported:
            return Mistakes(split=split)
        scores_BL = self._reported[split] / (self._calibration.temperature if self._calibration else 1.0)
        texts, starts = self.texts[split], self._windows(split) if self._has_windows else None
        folder, names = self._folder, self.names
        found = [
            WrongLabels(
                text=self._text_view.text(split, one.row, texts[one.row if starts is None else int(starts[one.row])]),
                expected=tuple(names[at] for at in one.expected),
                predicted=tuple(names[at] for at in one.predicted),
                probabilities={names[at]: chance for at, chance in one.probabilities.items()},
                row=row_in_file(folder, split, one.row),
            )
            for one in wrong_labels(scores_BL, self._truth(split), self.is_multi)
        ]
        return Mistakes(split=split, labels=tuple(found))

    def show(self, examples: Indices) -> object:
        """The texts' tokens and labels, of training examples."""
        texts, labels = self.texts["train"], self.labels["train"]
        return [
            {"example": int(at), "tokens": texts[int(at)].tolist(), "label": labels[at].tolist()} for at in examples
        ]

    def write_calibration(self, folder: Path) -> None:
        """Write the temperature that was fitted on the validation split, if there is one."""
        if self._calibration:
            write_calibration(folder, self._calibration)

    def _windows(self, split: str) -> NDArray[np.int64]:
        return np.asarray(open_array(self._folder, f"{split}.windows"), dtype=np.int64)

    def _truth(self, split: str) -> NDArray[Any]:
        """The labels of each row."""
        labels: NDArray[Any] = self.labels[split]
        return labels[self._windows(split)[:-1]] if self._has_windows else labels


def averaged(scores: Scores, windows: NDArray[np.int64]) -> Scores:
    """The mean scores of each row's windows; `windows` has the first window of each row."""
    mean: Scores = np.add.reduceat(scores, windows[:-1]) / np.diff(windows)[:, None]
    return mean
