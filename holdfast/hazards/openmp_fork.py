"""A forked process waits for OpenMP threads that exist only in its parent.

What you see: no error. A worker, a Celery task or a gunicorn worker stops at its first matrix product, `exp` or sigmoid
and never continues; a native stack shows `GOMP_parallel` or `gomp_team_barrier_wait`. Intel's runtime of 2019 aborts
with "OMP: Error #13: Assertion failure at z_Linux_util.cpp".
Why: the parent had already run something on several threads. Fork copies the runtime's records of those threads but not
the threads, and the child waits for them forever.
What we do: start workers with spawn, use no workers, or use one thread.
"""

import re

from holdfast.core.evidence import Evidence, Passage, Seen, Stack
from holdfast.core.facts import MachineFacts
from holdfast.core.observations import ProcessView, RankVerdict, StuckProcess, TreeVerdict, Verdict, Wait, WaitTarget
from holdfast.core.plan import Plan, Remedy
from holdfast.hazards import HUNG, Case, Hazard, Invited, judged, observed, proves, seen, suggests

_IN_REGION = re.compile(
    r"GOMP_parallel|gomp_team_|gomp_barrier_wait|gomp_\w*wait|do_spin|__kmpc?_fork_call|__kmp_(?:join|fork|hyper|plain|tree)_barrier"
    r"|__kmp_(?:lock_suspend_mx|free_thread|set_num_threads|internal_fork|wait_template)|\bmkl_\w+_omp_driver|omp_driver_v\d"
)
_IN_RUNTIME = re.compile(r"lib(?:gomp|iomp5|omp)\b")
_CPU_KERNEL = re.compile(
    r"at::internal::_?(?:parallel_run|invoke_parallel|lazy_init_num_threads)|at::parallel_(?:for|reduce)|TensorIterator(?:Base)?::(?:for_each|parallel_reduce)"
    r"|_cpu_kernel\b|cpublas::|mkl_blas_|mkl_serv_|mkldnn|dnnl::impl::parallel|faiss::\w+|exec_blas|blas_thread_server|pthreadpool_"
    r"|at::native::\(anonymous namespace\)::\w+_kernel|pthreadpool_destroy|PThreadPool::set_thread_count"
)
# Idle pool threads wait here too, in a healthy process.
_POOL_THREAD = re.compile(r"gomp_thread_start|__kmp_launch_(?:thread|worker)|blas_thread_server|worker_thread_main")
_TORCH_OP = re.compile(
    r"(?:^|/)torch/(?:nn/|functional|_tensor|tensor\.py|autograd/|_jit_internal|jit/)|numpy/linalg|faiss/|scipy/linalg"
)
_SHORT_LOG_LINES = 20
_FORKED = re.compile(r"popen_fork|billiard|concurrent/futures/process|gunicorn/arbiter|os\.fork")


def invited_by(facts: MachineFacts, plan: Plan) -> Invited | None:
    """Say why this machine and plan invite the hazard; None when they do not."""
    if facts.distributions.get("intel-openmp") == "2019.5":
        return Invited("intel-openmp 2019.5 aborts in forked children", remedies=(_NO_FORK_INIT,))
    return None


def _waits_in_region(evidence: Evidence) -> Passage | None:
    """A computing thread, not a pool thread, inside a parallel region of a hung or unexplained process."""
    if any(not status.is_hang for status in evidence.exits):
        return None
    return next((passage for stack in evidence.stacks if (passage := _first(stack, _IN_REGION, _IN_RUNTIME))), None)


def _stands_in_kernel(evidence: Evidence) -> Passage | None:
    """A hung process with a thread inside one of torch's parallel CPU kernels."""
    if not HUNG.find(evidence) or seen("frame", r"at::(?:native::)?mps|MPSStream|cuda|nccl").find(evidence):
        return None
    return next((passage for stack in evidence.stacks if (passage := _first(stack, _CPU_KERNEL))), None)


def _forked_child_in_torch(evidence: Evidence) -> Passage | None:
    """A forked child whose innermost Python frame is a torch operation and that makes no progress."""
    if not (HUNG.find(evidence) or seen("error", r"KeyboardInterrupt").find(evidence)):
        return None
    for stack in evidence.stacks:
        if any(_FORKED.search(frame.module) for frame in stack.frames):
            for frame in (stack.frames[0], stack.frames[-1]):
                if _TORCH_OP.search(frame.module.replace("\\", "/")):
                    return Passage("frame", frame.line, f"{frame.function} ({frame.module}) in a forked process")
    return None


def _forked_child_in_region(evidence: Evidence) -> Seen | None:
    """A process seen live that was forked without exec and whose main thread is inside a parallel region."""
    for view in evidence.observed(ProcessView):
        for stack in evidence.stacks if view.is_fork_in_lock else ():
            if re.search(rf"\b{view.pid}\b", stack.thread) and _first(stack, _IN_REGION, _IN_RUNTIME):
                return view
    return None


def _waits_in_runtime(view: ProcessView) -> bool:
    """True for a forked child with one thread that waits without a timeout in a call of OpenMP's own runtime."""
    in_futex = view.system_call == "futex" and not view.has_timeout
    return view.is_fork_in_lock and view.threads == 1 and in_futex and _IN_RUNTIME.match(view.caller) is not None


def _first(stack: Stack, functions: re.Pattern[str], modules: re.Pattern[str] | None = None) -> Passage | None:
    if any(_POOL_THREAD.search(frame.function) for frame in stack.frames):
        return None
    for frame in stack.frames:
        if functions.search(frame.function) or (modules and modules.search(frame.module)):
            return Passage("frame", frame.line, f"{frame.function} ({frame.module})")
    return None


def _task_without_an_end(evidence: Evidence) -> Passage | None:
    """A task that a prefork worker received and never finished."""
    if not HUNG.find(evidence) or not seen("log", r"ForkPoolWorker|celery@|MainProcess").find(evidence):
        return None
    if seen("log", r"\b(?:succeeded in|raised unexpected|retry:)").find(evidence):
        return None
    return seen("log", r"(?:Received task: |Task )[\w.]+\[[0-9a-f-]{8,}\]").find(evidence)


def _workers_began_and_no_more(evidence: Evidence) -> Passage | None:
    """Several workers logged a start, none logged an end, and no other cause of a hang is visible."""
    if (
        not HUNG.find(evidence)
        or evidence.errors
        or evidence.stacks
        or evidence.log.joined.count("\n") > _SHORT_LOG_LINES
    ):
        return None
    if seen("log", r"(?i)cuda|nccl|\bmps\b|gpu|%\||\bdone\b|finish|dataloader|torchrun").find(evidence):
        return None
    began: dict[str, set[str]] = {}
    for passage in evidence.log:
        if re.search(r"(?i)\b(?:start|begin|launch|worker|child|process)", passage.text):
            numbers = began.setdefault(re.sub(r"\d+", "0", passage.text), set())
            numbers.add(passage.text)
            if len(numbers) > 1:
                return passage
    return None


_NO_FORK_INIT = Remedy(
    "keep Intel's runtime from starting itself in forked children", change={"KMP_INIT_AT_FORK": "FALSE"}
)

HAZARD = Hazard(
    slug="openmp-fork",
    title="a forked process waits for OpenMP threads that exist only in its parent",
    kind="hang",
    invited_by=invited_by,
    over=("dataloader-deadlock", "thread-deadlock"),
    signs=(
        proves("log", r"OMP: Error #13: Assertion failure at z_Linux_util"),
        proves("log", r"fork\(\) called from a process already using GNU OpenMP"),
        # The runtime calls the kernel directly, so the wait location identifies it without a stack.
        proves(observed(ProcessView, _waits_in_runtime)),
        judged("proves", _forked_child_in_region),
        suggests("log", r"OMP: Error #13\b"),
        judged("suggests", _waits_in_region),
        judged("suggests", _stands_in_kernel),
        judged("suggests", _forked_child_in_torch),
        judged("suggests", _task_without_an_end),
        judged("fallout", _workers_began_and_no_more),
        suggests("frame", r"pthreadpool_destroy|PThreadPool::set_thread_count"),
    ),
    remedies=(
        Remedy("start worker processes with spawn", change={"start_method": "spawn"}, cost="a few seconds per worker"),
        Remedy("load data in the main process", change={"loader_workers": 0}, cost="slower input"),
        Remedy("compute on one thread", change={"threads": 1, "OMP_NUM_THREADS": "1"}, cost="slower on the CPU"),
        _NO_FORK_INIT,
        Remedy(
            "load and use the model only after the fork", command="gunicorn --workers 1 app:app   # without --preload"
        ),
        Remedy("let Celery use threads instead of forked processes", command="celery -A app worker --pool=threads"),
    ),
    sources=(
        "pytorch/pytorch#17199",
        "pytorch/pytorch#17225",
        "pytorch/pytorch#75147",
        "pytorch/pytorch#54752",
        "facebookresearch/fairseq#1591",
        "benoitc/gunicorn#2478",
        "huggingface/transformers#7516",
        "pytorch/pytorch#58962",
    ),
    matches=(
        "OMP: Error #13: Assertion failure at z_Linux_util.cpp(2361).",
        "Terminating: fork() called from a process already using GNU OpenMP, this is unsafe.",
        Case(
            "#0  0x00007f12 in ?? () from /lib/libgomp.so.1\n#1  0x00007f13 in gomp_team_barrier_wait_end () from /lib/libgomp.so.1\n#2  0x00007f14 in GOMP_parallel () from /lib/libgomp.so.1\n",
            "hang",
        ),
        Case(
            "#0  __lll_lock_wait () at lowlevellock.S:135\n#2  0x00007fc733b1b7b1 in __kmp_lock_suspend_mx () from /opt/libiomp5.so\n#3  0x00007fc733acd435 in __kmp_free_thread () from /opt/libiomp5.so\n#5  0x00007fc70f72ee95 in at::set_num_threads(int) () from libtorch_cpu.so\n",
            "hang",
        ),
        Case(
            'Process 26346: python worker\nThread 26346 (idle): "MainThread"\n    at::TensorIteratorBase::for_each (libtorch_cpu.so)\n    exp (train.py:12)\n',
            "hang",
        ),
        Case(
            "2 torch::autograd::THPVariable_sigmoid(_object*, _object*)  (in libtorch_python.dylib) + 299  [0x114a3ec1b]\n"
            "3 at::native::(anonymous namespace)::sigmoid_cpu_kernel(at::Tensor&)  (in libtorch_cpu.dylib) + 994  [0x118f31f52]\n",
            "hang",
        ),
        Case(
            'Thread 7 (idle): "MainThread"\n    linear (torch/nn/functional.py:1690)\n    forward (torch/nn/modules/linear.py:94)\n    run (multiprocessing/process.py:99)\n    _launch (multiprocessing/popen_fork.py:75)\n',
            "hang",
        ),
        Case("Started Worker 0\nStarted Worker 1\nbuilding the model\n", "hang"),
        Case(
            "",
            "hang",
            (
                TreeVerdict(
                    verdict=Verdict.DEADLOCK,
                    main=RankVerdict(
                        pid=12, verdict=Verdict.DEADLOCK, stuck=StuckProcess(pid=31, command="pt_data_worker")
                    ),
                ),
                ProcessView(
                    pid=31,
                    command="pt_data_worker",
                    wait=Wait(kind="lock", target=WaitTarget.LOCK),
                    system_call="futex",
                    has_timeout=False,
                    caller="libgomp.so.1",
                    forked_from=12,
                    parent_threads=3,
                    libraries=("libtorch_cpu", "libgomp"),
                ),
            ),
        ),
        Case(
            "[2015-06-15 21:26:58,947: WARNING/MainProcess] celery@server ready.\n[2015-06-15 21:27:32,515: INFO/MainProcess] Received task: tasks.embed[0383dc0b-0c17-413f-a360-b1e4301b35ba]",
            "hang",
        ),
        Case("#1  0x00007f12 in pthreadpool_destroy () from /venv/lib/libtorch_cpu.so", "hang"),
        Case(
            "Thread 91 (most recent call first):\n#0  0x00007f12 in futex_wait () from /lib/libc.so.6\n#1  0x00007f13 in GOMP_parallel () from /venv/lib/libgomp.so.1",
            "hang",
            (ProcessView(pid=91, command="python", wait=Wait(kind="lock", target=WaitTarget.LOCK), forked_from=80),),
        ),
    ),
    near_misses=(
        "OMP: Error #15: Initializing libiomp5.so, but found libomp.so.5 already initialized.",
        Case(
            "#0  futex_wait () at futex.h:45\n#2  gomp_barrier_wait_end () at bar.c:48\n#3  0x00007f58 in gomp_thread_start () at team.c:122\n",
            "hang",
        ),
        "libgomp: Thread creation failed: Resource temporarily unavailable",
        Case(
            "",
            "hang",
            (
                TreeVerdict(
                    verdict=Verdict.DEADLOCK,
                    main=RankVerdict(
                        pid=12, verdict=Verdict.DEADLOCK, stuck=StuckProcess(pid=31, command="pt_data_worker")
                    ),
                ),
                ProcessView(
                    pid=31,
                    command="pt_data_worker",
                    wait=Wait(kind="lock", target=WaitTarget.LOCK),
                    system_call="futex",
                    has_timeout=False,
                    caller="libc.so.6",
                    forked_from=12,
                    parent_threads=3,
                    libraries=("libtorch_cpu", "libgomp"),
                ),
            ),
        ),
        "[W pthreadpool-cpp.cc:90] Warning: Leaking Caffe2 thread-pool after fork. (function pthreadpool)",
    ),
    reproduced_by="tests/lab/test_evidence.py",
)
