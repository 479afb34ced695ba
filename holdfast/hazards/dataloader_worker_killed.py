"""A data loader worker died.

What you see: "DataLoader worker (pid N) is killed by signal: Killed", or "exited unexpectedly". Sometimes only the
consequence is visible: a `ConnectionResetError` or `EOFError` while the main process reads from a worker that is gone.
Why: mostly memory. Each worker holds its own batches and, after a while, its own copy of the dataset's Python objects;
the kernel kills the largest process. A segmentation fault in a decoder looks the same from outside.
What we do: load data in the main process, where the dataset exists once and a crash shows its own traceback.
"""

import re

from holdfast.core.observations import ExitStatus, KernelKill, OomKill, ProcessExit
from holdfast.core.plan import Remedy
from holdfast.hazards import HUNG, Case, Hazard, observed, proves, seen, suggests

_WORKER = r"DataLoader worker\s*\(?(?:pid)?(?:\(s\))?[^)\n]{0,80}\)?"
_READS_FROM_WORKER = (
    seen("frame", r"_try_get_(?:data|batch)|rebuild_storage_(?:fd|filename)|_pin_memory_loop|do_one_step"),
)


# The kernel killed it for memory, so the memory shortage is the cause.
_MEMORY_KILL = (observed(OomKill, lambda one: bool(one.cgroup)), observed(KernelKill))
# Ctrl-C reaches the workers too.
_STOPPED_BY_HAND = (seen("log", r"^\^C|^KeyboardInterrupt"),)


def _is_crash_of_python(one: ProcessExit) -> bool:
    """Older torch gives its workers no name."""
    is_python = one.rank is None and re.fullmatch(r"python[\d.]*", one.name)
    return bool(is_python) and one.status.signal in ("SIGSEGV", "SIGABRT", "SIGFPE", "SIGILL", "SIGKILL")


HAZARD = Hazard(
    slug="dataloader-worker-killed",
    title="a data loader worker was killed or crashed",
    kind="crash",
    signs=(
        proves("log", rf"{_WORKER} is killed by signal: (?!Bus error)\w"),
        proves("log", r"Unexpected (?:segmentation fault|floating-point exception) encountered in worker"),
        proves(
            observed(ProcessExit, lambda one: one.is_loader_worker and one.status.signal not in ("", "SIGBUS")),
            unless=_MEMORY_KILL,
        ),
        proves(observed(ProcessExit, _is_crash_of_python), also=_READS_FROM_WORKER, unless=_MEMORY_KILL),
        suggests(observed(ProcessExit, lambda one: one.is_loader_worker and bool(one.status.code))),
        # Often a consequence of an exception in the worker, printed before it.
        suggests("error", rf"{_WORKER} exited unexpectedly", unless=_STOPPED_BY_HAND),
        suggests("log", rf"{_WORKER} exited unexpectedly", unless=_STOPPED_BY_HAND),
        suggests(
            "error",
            r"(?i)background workers are no longer alive",
            unless=(
                *_STOPPED_BY_HAND,
                seen("error", r"^(?!RuntimeError: (?:One or more|Some) background)\w+(?:Error|Exception)\b"),
            ),
        ),
        suggests("error", r"Pin memory thread exited unexpectedly"),
        suggests("error", r"One of the subprocesses has abruptly died during map operation"),
        suggests("error", r"BrokenProcessPool|TerminatedWorkerError|process pool was terminated abruptly"),
        suggests(
            "error", r"ConnectionResetError|EOFError$|ConnectionRefusedError|lost sys\.stderr", also=_READS_FROM_WORKER
        ),
        suggests(
            "error",
            r"unable to open shared memory object.*No such file or directory|could not unlink the shared memory file",
            unless=(HUNG,),
        ),
        suggests("frame", r"^_error_if_any_worker_fails", unless=(seen("log", r"Bus error|bus error"),)),
    ),
    remedies=(
        Remedy("use fewer workers", change={"loader_workers": "halve"}, cost="slower input"),
        Remedy("load data in the main process", change={"loader_workers": 0}, cost="slower input"),
        Remedy("check whether the kernel killed it for memory", command="dmesg | grep -i 'killed process'"),
    ),
    sources=(
        "pytorch/pytorch#8976",
        "pytorch/pytorch#4507",
        "hezhangsprinter/DCPDN#12",
        "STVIR/pysot#140",
        "facebookresearch/SlowFast#443",
    ),
    matches=(
        "RuntimeError: DataLoader worker (pid 19597) is killed by signal: Killed.",
        "RuntimeError: DataLoader worker (pid 8102) is killed by signal: Terminated.",
        "RuntimeError: DataLoader worker (pid 7699) is killed by signal: Segmentation fault. Details are lost due to multiprocessing.",
        "RuntimeError: DataLoader worker (pid(s) 11208, 3676, 5316) exited unexpectedly",
        "RuntimeError: DataLoader worker (pid(s) 4120) exited unexpectedly with exit code 3221225477.",
        "ERROR: Unexpected segmentation fault encountered in worker.",
        Case("EOFError", "1", (ProcessExit(pid=31, name="pt_data_worker", status=ExitStatus(signal="SIGSEGV")),)),
        "RuntimeError: Pin memory thread exited unexpectedly",
        "RuntimeError: One of the subprocesses has abruptly died during map operation.To debug the error, disable multiprocessing.",
        '  File "/lib/torch/utils/data/dataloader.py", line 1133, in _try_get_data\n    data = self._data_queue.get(timeout=timeout)\n'
        '  File "/lib/torch/multiprocessing/reductions.py", line 496, in rebuild_storage_fd\n    fd = df.detach()\n'
        "ConnectionResetError: [Errno 104] Connection reset by peer",
        "RuntimeError: One or more background workers are no longer alive. Exiting.",
        "concurrent.futures.process.BrokenProcessPool: A process in the process pool was terminated abruptly while the future was running or pending.",
        "RuntimeError: unable to open shared memory object </torch_4211_99> in read-write mode: No such file or directory",
        '  File "/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 1299, in _error_if_any_worker_fails\n',
        Case(
            'Traceback (most recent call last):\n  File "/venv/lib/python3.6/site-packages/torch/utils/data/dataloader.py", line 511, in _try_get_batch\n    data = self.data_queue.get(timeout=timeout)\n',
            "1",
            (ProcessExit(pid=91, name="python3.6", status=ExitStatus(signal="SIGSEGV")),),
        ),
        Case("", "1", (ProcessExit(pid=91, name="pt_data_worker", status=ExitStatus(code=1)),)),
    ),
    near_misses=(
        "RuntimeError: DataLoader worker (pid 325) is killed by signal: Bus error.",
        "KeyError: Caught KeyError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
        '  File "train.py", line 9, in __getitem__\n    return self.rows[index]["answer"]\nKeyError: \'answer\'',
        "ConnectionResetError: [Errno 104] Connection reset by peer",
    ),
    reproduced_by="tests/lab/test_evidence.py",
)
