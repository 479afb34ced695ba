"""The data loader's workers and the training process are waiting for each other.

What you see: no error and no progress; the main process is in `_try_get_data`, polling an empty queue. The same happens
in `datasets.map(num_proc=...)`. Small datasets often work, because fewer workers or smaller batches take another code
path.
Why: a forked worker inherited a lock that another thread held at that moment, a worker died unnoticed, or a worker is
waiting for a full pipe or another library's thread pool (OpenCV, HDF5, a logger).
What we do: load data in the main process, or start workers with spawn so that they inherit no locks.
"""

from holdfast.core.evidence import Evidence, Passage, Seen
from holdfast.core.observations import MutexWait, RankVerdict, StuckProcess, TreeVerdict, Verdict
from holdfast.core.plan import Remedy
from holdfast.hazards import HUNG, Case, Hazard, fallout, judged, observed, proves, seen, suggests

_WORKER = "pt_data_worker"  # how torch names its loader's workers
_STOPPED_BY_HAND = seen("log", r"KeyboardInterrupt|^\^C")
_OTHER_WAIT = (
    seen(
        "frame", r"(?i)gomp_|__kmp|rayon|nccl|all_reduce|MPSStream|waitUntilCompleted|libcuda|ssl\.py|requests/|httpx"
    ),
    seen("log", r"process just got forked"),
)
_LOADER_WAIT = (
    r"^(?:_try_get_(?:data|batch)|_get_(?:data|batch)|_next_data|_shutdown_workers) \(.*dataloader"
    r"|^\w+ \(.*(?:_utils[/\\]pin_memory|_utils[/\\]worker)\.py"
)
_QUEUE_WAIT = (
    r"^(?:wait|_poll|poll|select|get|_recv|_recv_bytes|recv_bytes) \(.*(?:connection|selectors|queues?)(?:\.py)?\b"
)
_MAP_WAIT = r"^(?:iflatmap_unordered|_map_single|map) \(.*(?:py_utils|arrow_dataset)"


def _waits_for_workers(evidence: Evidence) -> Passage | None:
    """A stack inside the loader's queue, when the process ended by a hang or Ctrl-C only."""
    echoes = ("KeyboardInterrupt", "can only test a child process")
    errors = [passage for passage in evidence.errors if not any(echo in passage.text for echo in echoes)]
    if errors or not (HUNG.find(evidence) or _STOPPED_BY_HAND.find(evidence)):
        return None
    in_loader = seen("frame", r"\(.*dataloader").find(evidence)
    return seen("frame", f"{_LOADER_WAIT}|{_MAP_WAIT}" + (f"|{_QUEUE_WAIT}" if in_loader else "")).find(evidence)


def _worker_stuck_live(evidence: Evidence) -> Seen | None:
    """A deadlock seen live in which a worker blocks everything; older torch does not name its workers."""
    if seen("frame", r"^_worker_loop \(.*worker").find(evidence):
        return observed(TreeVerdict, lambda one: _stuck_command(one) != "").find(evidence)
    return observed(TreeVerdict, lambda one: _stuck_command(one) == _WORKER).find(evidence)


def _stuck_command(verdict: TreeVerdict) -> str:
    """The name of the process in which a deadlock ends; empty when there is none."""
    stuck = verdict.main.stuck if verdict.main and verdict.verdict is Verdict.DEADLOCK else None
    return stuck.command if stuck else ""


HAZARD = Hazard(
    slug="dataloader-deadlock",
    title="the data loader's workers stopped responding and the main process waits forever",
    kind="hang",
    signs=(
        proves("error", r"DataLoader timed out after \d"),
        proves(observed(MutexWait, lambda one: one.command == _WORKER and one.how == "orphaned_by_fork")),
        judged("proves", _worker_stuck_live),
        judged("suggests", _waits_for_workers),
        suggests("frame", _LOADER_WAIT, also=(HUNG,), unless=_OTHER_WAIT),
        suggests("frame", _QUEUE_WAIT, also=(HUNG,), unless=_OTHER_WAIT),
        suggests(
            "log",
            r"select_poll_poll|select_epoll_poll|multiprocessing/(?:connection|queues)",
            also=(HUNG,),
            unless=_OTHER_WAIT,
        ),
        suggests("log", r"could not unlink the shared memory file", also=(HUNG,)),
        suggests("log", r"\(num_proc=\d+\)|num_proc[= ]+\d+|#\d+: +\d+%\|", also=(HUNG,), unless=_OTHER_WAIT),
        suggests(
            "log",
            r"(?i)\b\d+ dataloader workers|num_workers['\"]?\s*[=:]\s*[1-9]|DataLoader will create \d+ worker processes",
            also=(HUNG,),
            unless=_OTHER_WAIT,
        ),
        suggests(
            "log", r"resource_sharer|pt_data_worker|_MultiProcessingDataLoaderIter", also=(HUNG,), unless=_OTHER_WAIT
        ),
        # A frozen progress bar only shows that the loop over the loader does not advance.
        fallout(
            "log",
            r"(?<!\d)\d+/\d+ \[[\d:]+<[\d:?]+, +[\d.?]+ ?(?:it|batch\w*|ex\w*)/s",
            also=(HUNG,),
            unless=_OTHER_WAIT,
        ),
    ),
    remedies=(
        Remedy("load data in the main process", change={"loader_workers": 0}, cost="slower input"),
        Remedy(
            "start workers with spawn, so that they inherit no locks",
            change={"start_method": "spawn"},
            cost="slower start",
        ),
        Remedy(
            "let the loader time out instead of waiting forever",
            command="DataLoader(..., timeout=120)",
            cost="the run ends with an error that names the loader",
        ),
        Remedy(
            "turn off OpenCV's threads in workers",
            command="cv2.setNumThreads(0)",
            cost="none in most loaders",
        ),
    ),
    sources=(
        "pytorch/pytorch#1355",
        "pytorch/pytorch#75147",
        "pytorch/pytorch#45198",
        "RolnickLab/ami-data-companion#140",
        "huggingface/datasets#5094",
    ),
    matches=(
        Case(
            'Thread 0x7f (idle): "MainThread"\n    wait (threading.py:331)\n    get (queue.py:180)\n'
            "    _try_get_data (torch/utils/data/dataloader.py:1133)\n    _next_data (torch/utils/data/dataloader.py:1329)\n",
            "hang",
        ),
        Case("poll (libc.so.6)\n    select (selectors.py:415)\n    wait (multiprocessing/connection.py:931)\n", "hang"),
        "RuntimeError: DataLoader timed out after 60 seconds",
        Case(
            "step 40 loss 0.91",
            "hang",
            (
                TreeVerdict(
                    verdict=Verdict.DEADLOCK,
                    main=RankVerdict(
                        pid=12, verdict=Verdict.DEADLOCK, stuck=StuckProcess(pid=31, command="pt_data_worker")
                    ),
                ),
            ),
        ),
        Case("Map (num_proc=8):  97%|#########7| 9700/9988 [00:12<00:00, 801.21 examples/s]", "hang"),
        "^CTraceback (most recent call last):\n"
        '  File "train.py", line 40, in <module>\n    for batch in loader:\n'
        '  File "/lib/python3.10/site-packages/torch/utils/data/dataloader.py", line 1284, in _get_data\n'
        "    success, data = self._try_get_data()\n"
        '  File "/lib/python3.10/site-packages/torch/utils/data/dataloader.py", line 1132, in _try_get_data\n'
        "    data = self._data_queue.get(timeout=timeout)\n"
        '  File "/lib/python3.10/multiprocessing/connection.py", line 931, in wait\n'
        "    ready = selector.select(timeout)\nKeyboardInterrupt",
        Case(
            "",
            "hang",
            (MutexWait(pid=91, command="pt_data_worker", tid=91, owner_tid=80, how="orphaned_by_fork", parent_pid=80),),
        ),
        Case("torch_shm_manager: error: could not unlink the shared memory file /torch_91_2", "hang"),
        Case("num_workers=8", "hang"),
        Case("91 pt_data_worker S futex_wait_queue", "hang"),
    ),
    near_misses=(
        'Traceback (most recent call last):\n  File "/lib/torch/utils/data/dataloader.py", line 1132, in _try_get_data\n'
        "    data = self._data_queue.get(timeout=timeout)\nRuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.",
        Case("Map (num_proc=8): 100%|##########| 9988/9988 [00:12<00:00, 801.21 examples/s]", "0"),
        Case(
            "#0  futex_wait () from /lib/libc.so.6\n#1  gomp_team_barrier_wait_end () from /lib/libgomp.so.1\n", "hang"
        ),
    ),
    reproduced_by="tests/lab/test_evidence.py",
)
