"""A split batch learns what the whole one would, also where the Trainer trusts a model that forgets to divide."""

from types import SimpleNamespace

import pytest
from holdfast_preload.trainer_changes import keep_mean


class Counts:
    def forward(self, labels=None, **kwargs):
        return self.loss_function(
            self.head(labels), labels, size=len(self.config), **kwargs
        )  # the number of items is in kwargs


class Forgets:
    def forward(self, labels=None, **kwargs):
        return self.loss(self.head(**kwargs), labels)


@pytest.mark.parametrize(
    ("model", "is_split", "left_to_model"), [(Counts, 1, True), (Forgets, 1, False), (Forgets, 0, True)]
)
def test_scaled_division_is_skipped_only_for_its_model(model, is_split, left_to_model):
    trainer = SimpleNamespace(model=model(), model_accepts_loss_kwargs=True, _holdfast_is_split=bool(is_split))
    keep_mean(trainer)
    assert trainer.model_accepts_loss_kwargs is left_to_model
