"""A classifier that goes on from an earlier one keeps its head only where that scores the same labels."""

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from holdfast.engine.attempt_settings import AttemptSettings
from holdfast.engine.classifier import Classifier
from tests.tiny import tiny_bert


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A tiny model with a head for the labels a, b, c."""
    folder = tiny_bert(tmp_path_factory.mktemp("models") / "first")
    torch.manual_seed(5)
    names = dict(enumerate("abc"))
    model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=3, id2label=names)
    model.save_pretrained(folder)
    return folder, model.classifier.weight.detach().clone()


def head_for(folder, labels):
    settings = AttemptSettings(task="classify", model=str(folder), prepared="", run="", threads=1)
    return Classifier(settings, list(labels), False).model.classifier.weight.detach()


def test_same_labels_keep_the_head(trained):
    folder, head = trained
    assert torch.equal(head_for(folder, "abc"), head)


@pytest.mark.parametrize("labels", ["acb", "xyz", "abcd", "ab"])
def test_other_labels_get_a_new_head(trained, labels):
    folder, head = trained
    found = head_for(folder, labels)
    assert len(found) == len(labels)
    assert found.shape != head.shape or not torch.equal(found, head)
