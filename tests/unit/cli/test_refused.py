"""What is refused leaves nothing behind; what only cannot go on at the moment stays, to be resumed."""

import pytest

from holdfast.cli.train import train
from holdfast.core.errors import HoldfastError, MachineError, NotNow, RequestError
from holdfast.runs.lease import AlreadyHeld


@pytest.mark.parametrize(
    ("error", "stays"),
    [
        (RequestError("refused", try_next=("not with holdfast resume",)), False),
        (MachineError("refused"), False),
        (NotNow("the disk is full"), True),
        (AlreadyHeld("another machine has it"), True),
    ],
)
def test_a_refused_run_leaves_no_folder(tmp_path, monkeypatch, error, stays):
    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("holdfast.runs.train_run.resume_train", refuse)
    data, run = tmp_path / "x.csv", tmp_path / "run"
    data.write_text("text,label\nfine,good\n")
    with pytest.raises(HoldfastError):
        train.main([str(data), "--out", str(run)], standalone_mode=False)
    assert (run / "request.json").exists() is stays
