"""Trains one model for each fold of the data, and reports the mean and the spread of their scores.

Each fold is a run of its own in `fold-1`, `fold-2`, ... of the run folder, tested on rows that it has not learned from.
A folds run that was killed continues with the fold that was cut off: finished folds are kept, and the fold itself
resumes from its checkpoint. Leaves: metrics.json with the mean and the spread, and result.json.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev

from holdfast.core.event_log import EventSink
from holdfast.core.events import FoldStarted
from holdfast.core.records import Result, read_record, write_record, write_request
from holdfast.core.runfolder import REQUEST, RESULT
from holdfast.core.scores import ModelMetrics, SplitMetrics, read_metrics, write_metrics
from holdfast.core.settings import TrainRequest


def has_folds(request: TrainRequest) -> bool:
    """Whether a request is for one model of each fold."""
    return bool(request.folds and not request.fold)


def fold_folder(run: Path, fold: int) -> Path:
    """The folder of one fold's run."""
    return run / f"fold-{fold}"


def train_folds(run: Path, request: TrainRequest, train: Callable[[Path], Result], on_event: EventSink) -> Result:
    """Train every fold that is not finished; ends early if one fails or is stopped."""
    results: list[Result] = []
    (run / RESULT).unlink(missing_ok=True)  # of an earlier start that was stopped
    for fold in range(1, (request.folds or 0) + 1):
        folder = fold_folder(run, fold)
        known = read_record(folder, Result) if folder.is_dir() else None
        if known is None or known.state != "finished":
            on_event(FoldStarted(fold=fold, folds=request.folds or 0))
            if not (folder / REQUEST).is_file():
                folder.mkdir(exist_ok=True)
                write_request(
                    folder,
                    replace(request, fold=fold, out=str(folder), check_labels=request.check_labels and fold == 1),
                )
            known = train(folder)
        results.append(known)
        if known.state != "finished":
            break
    return _finish(run, request, results)


def _finish(run: Path, request: TrainRequest, results: list[Result]) -> Result:
    """Write the scores of all folds together, or how the last one ended."""
    last, folds = results[-1], [read_metrics(fold_folder(run, number)) for number in range(1, len(results) + 1)]
    if last.state == "finished":
        splits = {split: _together([one.splits[split] for one in folds]) for split in folds[0].splits}
        write_metrics(run, ModelMetrics(splits=splits))
        next_step = f'holdfast predict {fold_folder(run, 1)} "..."'
    else:
        next_step = f"holdfast resume {run}"
    result = Result(
        state=last.state,
        exit_code=last.exit_code,
        error=last.error,
        attempts=sum(one.attempts for one in results),
        seconds=round(sum(one.seconds for one in results), 3),
        remedies=last.remedies,
        slug=last.slug,
        kind="train",
        task=last.task,
        metrics=read_metrics(run).scores,
        next=(next_step,),
    )
    write_record(run, result)
    return result


def _together(folds: list[SplitMetrics]) -> SplitMetrics:
    """The mean of each score, and its standard deviation over the folds."""
    names = [name for name in folds[0].scores if all(name in one.scores for one in folds)]
    values: Mapping[str, list[float]] = {name: [one.scores[name] for one in folds] for name in names}
    spread = {name: stdev(found) for name, found in values.items() if len(found) > 1}
    return SplitMetrics(scores={name: mean(found) for name, found in values.items()}, spread=spread, folds=len(folds))
