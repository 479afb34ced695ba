"""Labels for texts, with calibrated probabilities."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.core.plan import USUAL_LENGTH
from holdfast.core.records import ModelInfo, PredictOptions
from holdfast.data.prepare_classify import windows
from holdfast.data.tokenizer import ModelTokenizer
from holdfast.engine.attempt_settings import AttemptSettings
from holdfast.engine.calibration import probabilities, read_calibration
from holdfast.engine.classifier import Classifier
from holdfast.engine.labeled_texts import averaged
from holdfast.engine.predict.predictor import Row, as_array

_DIGITS = 4


def load(folder: Path, info: ModelInfo | None, options: PredictOptions) -> "LabelPredictor":
    """Load a classifier: ours, or any that transformers has saved."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    by_number = config.get("id2label") or {}
    info = info or ModelInfo(
        task="classify",
        labels=tuple(by_number[key] for key in sorted(by_number, key=int)),
        multi_label=config.get("problem_type") == "multi_label_classification",
    )
    settings = AttemptSettings(task="classify", model=str(folder), prepared="", run="", device=options.device)
    tokens = ModelTokenizer(folder)
    length = info.max_length or min(tokens.limit or USUAL_LENGTH["classify"], USUAL_LENGTH["classify"])
    calibration = read_calibration(folder)
    temperature = calibration.temperature if calibration else 1.0
    classifier = Classifier(settings, list(info.labels), info.multi_label)
    return LabelPredictor(classifier, tokens, info, length, temperature)


class LabelPredictor:
    """A loaded classifier."""

    rows_at_once = 8192

    def __init__(
        self,
        classifier: Classifier,
        tokens: ModelTokenizer,
        info: ModelInfo,
        length: int,
        temperature: float,
    ):
        self._classifier, self._tokens, self._names, self._is_multi = classifier, tokens, info.labels, info.multi_label
        self._has_windows, self._temperature = info.overlong == "window", temperature
        self._before, self._after = tokens.marks
        self._room = length - len(self._before) - len(self._after)

    def predict(self, rows: Sequence[Row]) -> list[dict[str, Any]]:
        """The label or labels of each text, and the probability of every label, the most likely first."""
        scores = self.scores([str(row["text"]) for row in rows])
        return [self._answer(chances) for chances in probabilities(scores / self._temperature, self._is_multi)]

    def scores(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """The model's scores for each text, before they become probabilities."""
        pieces: list[list[int]] = []
        starts = [0]
        for body in self._tokens.encode(texts):
            parts = windows(body, self._room) if self._has_windows else [body[: self._room]]
            pieces += [[*self._before, *part, *self._after] for part in parts]
            starts.append(len(pieces))
        return averaged(self._classifier.scores(as_array(pieces)), np.asarray(starts))

    def _answer(self, chances: NDArray[np.float64]) -> dict[str, Any]:
        order = np.argsort(-chances, kind="stable").tolist()
        named = {self._names[at]: round(float(chances[at]), _DIGITS) for at in order}
        if self._is_multi:
            return {"predicted": [name for name, at in zip(named, order, strict=True) if chances[at] > 0.5]} | {
                "probabilities": named
            }
        best = next(iter(named))
        return {"predicted": best, "probability": named[best], "probabilities": named}
