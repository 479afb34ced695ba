"""The explanation of a renamed name says what to write instead, and leaves other names alone."""

import pytest

from holdfast.core.facts import MachineFacts
from holdfast.core.plan import Plan
from holdfast.hazards.diagnose import diagnose
from holdfast.hazards.renamed import RENAMED, find_renamed
from holdfast.hazards.version_api_rename import invited_by
from holdfast.logs.log_text import read_evidence


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        (
            "TypeError: TrainingArguments.__init__() got an unexpected keyword argument 'evaluation_strategy'",
            "eval_strategy",
        ),
        ("ImportError: cannot import name 'AdamW' from 'transformers'", "torch.optim.AdamW"),
        ("AttributeError: 'DynamicCache' object has no attribute 'get_max_length'", "get_max_cache_shape"),
        ("ModuleNotFoundError: No module named 'torch._six'", "collections.abc"),
        ("TypeError: Trainer.__init__() got an unexpected keyword argument 'gpus'", "devices"),
        (
            "TypeError: TrainingArguments.__init__() got an unexpected keyword argument 'eval_strategy'",
            "evaluation_strategy: use that, or upgrade transformers",
        ),
    ],
)
def test_explanation_names_the_replacement(line, instead):
    diagnosis = diagnose(read_evidence(line))
    assert diagnosis.slug == "version-api-rename"
    assert instead in diagnosis.because[0].text


def test_a_new_name_on_an_old_library_is_found_too():
    assert find_renamed("eval_strategy", "TrainingArguments") == find_renamed("evaluation_strategy", "")


def test_a_common_word_counts_only_with_its_owner():
    assert find_renamed("verbose", "ReduceLROnPlateau")
    assert not find_renamed("verbose", "MyLoader")
    assert not find_renamed("verbose", "")


def test_every_row_says_where_it_was_read():
    assert all(row.source and row.since and row.library for row in RENAMED)


def test_incompatible_pair_is_reported_before_the_run():
    invited = invited_by(MachineFacts(distributions={"transformers": "5.3.0", "trl": "0.9.6"}), Plan())
    assert invited is not None
    assert "trl 0.9.6" in invited.seen
    assert invited_by(MachineFacts(distributions={"transformers": "5.3.0", "trl": "0.27.0"}), Plan()) is None
