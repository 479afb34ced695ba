"""A process was forked on a Mac after Apple's frameworks had started, and the child died.

What you see: "+[MPSGraphObject initialize] may have been in progress in another thread when fork() was called",
"crashed on child side of fork pre-exec", XPC_ERROR_CONNECTION_INVALID from Metal, or gunicorn workers, Celery workers
or subprocesses that die one after another with SIGSEGV.
Why: fork copies only the calling thread. Metal, Accelerate, Grand Central Dispatch and Objective-C have threads, locks
and connections that are dead in the child, and macOS kills it on first use.
What we do: start children with spawn, or use none.
"""

from holdfast.core.facts import MachineFacts
from holdfast.core.plan import Plan, Remedy
from holdfast.hazards import Case, Hazard, Invited, ended_by, proves, seen, suggests

_SPAWN = Remedy("start worker processes with spawn", change={"start_method": "spawn"}, cost="a few seconds per worker")
_NO_WORKERS = Remedy("load data in the main process", change={"loader_workers": 0}, cost="slower input")
_FORKS = r"(?i)celery|billiard|gunicorn|multiprocess|popen_fork|ForkPool|ForkProcess|Worker-\d+|\bfork\b|uwsgi"


def invited_by(facts: MachineFacts, plan: Plan) -> Invited | None:
    """Say why this machine and plan invite the hazard; None when they do not."""
    if facts.os != "macos":
        return None
    if facts.start_method == "fork":
        return Invited("processes are started with fork, which Metal does not survive", remedies=(_SPAWN,))
    if any(variable.name == "OBJC_DISABLE_INITIALIZE_FORK_SAFETY" for variable in facts.variables):
        return Invited(
            "OBJC_DISABLE_INITIALIZE_FORK_SAFETY hides one check; a forked child can still hang or crash",
            "note",
            variables=("OBJC_DISABLE_INITIALIZE_FORK_SAFETY",),
        )
    return None


HAZARD = Hazard(
    slug="fork-objc",
    title="a process forked on a Mac died in Apple's frameworks",
    kind="crash",
    invited_by=invited_by,
    over=("celery-worker-lost", "segfault-other"),
    signs=(
        proves("log", r"may have been in progress in another thread when fork\(\) was called"),
        proves("log", r"objc_initializeAfterForkError"),
        proves("frame", r"objc_initializeAfterForkError|performForkChildInitialize"),
        proves("log", r"crashed on child side of fork pre-exec|\*\*\* multi-threaded process forked \*\*\*"),
        proves(
            "log",
            r"(?i)the_?\s?process_?\s?has_?\s?forked_?\s?and_?\s?you_?\s?cannot_?\s?use_?\s?this_?\s?corefoundation",
        ),
        proves("log", r"(?i)\b(?:mps|metal)\b[^\n]{0,80}\bfork(?:ed)? (?:sub)?process"),
        # A forked child has lost the connection to the system's shader compiler (xorbitsai/inference#469).
        proves("log", r"XPC_ERROR_CONNECTION_INVALID"),
        suggests(
            "frame",
            r"getproxies_macosx|_scproxy|SCDynamicStoreCopyProxies|_os_log_preferences_refresh",
            also=(ended_by(),),
        ),
        suggests(
            "frame",
            r"dispatch_(?:group_async|apply|async|sync)|_dispatch_(?:root_queue|continuation|apply)|APL_\w+|libBLAS|vecLib",
            also=(seen("log", _FORKS), seen("log", r"SIGSEGV|signal 11|EXC_BAD_ACCESS|[Ss]egmentation fault")),
        ),
        suggests("log", r"Worker \(pid:\s?\d+\) was sent SIG(?:SEGV|BUS|TRAP)"),
        suggests(
            "log",
            r"(?i)\b(?:sub|child )process\b[^\n]{0,60}(?:exited|died|terminated|failed|exit)[^\n]{0,30}(?:code|status|signal)?\W{0,3}-1[01]\b",
            unless=(seen("log", r"torch\.distributed|torchrun|elastic|local_rank"),),
        ),
        suggests("log", r"Worker with pid \d+ was terminated due to signal (?:5|10|11)\b"),
    ),
    remedies=(
        _SPAWN,
        _NO_WORKERS,
        Remedy(
            "load the application in each worker, not before the fork",
            command="gunicorn --workers 1 app:app   # without --preload",
        ),
        Remedy("let Celery use threads instead of forked processes", command="celery -A app worker --pool=threads"),
        Remedy(
            "let the child continue although its state may be broken",
            command="export OBJC_DISABLE_INITIALIZE_FORK_SAFETY=YES",
            cost="only hides the check; a hang or crash is still possible",
        ),
    ),
    sources=(
        "celery/celery#9897",
        "intel/auto-round#1890",
        "IBM/mcp-context-forge#2837",
        "xorbitsai/inference#469",
        "rq/django-rq#574",
        "python/cpython#74570",
        "benoitc/gunicorn#2478",
    ),
    matches=(
        "objc[21952]: +[MPSGraphObject initialize] may have been in progress in another thread when fork() was called.",
        "objc[11433]: +[__NSCFConstantString initialize] may have been in progress in another thread when fork() was called. We cannot safely call it or ignore it in the fork() child process. Crashing instead. Set a breakpoint on objc_initializeAfterForkError to debug.",
        "Exception Type:        EXC_BAD_ACCESS (SIGSEGV)\nApplication Specific Information:\n*** multi-threaded process forked ***\ncrashed on child side of fork pre-exec",
        "failed assertion `Error getting visible function: (null) Compiler encountered XPC_ERROR_CONNECTION_INVALID (is the OS shutting down?)'",
        Case("[2026-02-11 14:07:39 +0530] [55715] [WARNING] Worker (pid:55773) was sent SIGSEGV!", "SIGSEGV"),
        Case("WARNING dataset.py: preprocessing subprocess exited with code -11, going on in this process", "-11"),
        "[2015-12-14 19:15:06,790: ERROR/MainProcess] Process 'Worker-3' pid:1610 exited with 'signal 11 (SIGSEGV)'\n"
        "* frame #0: 0x00007fff93b4a9b3 libdispatch.dylib`dispatch_group_async + 533\n"
        "  frame #2: 0x00007fff9519b228 libBLAS.dylib`APL_dgemm + 1100",
        "  0   libobjc.A.dylib   0x00000001a0a objc_initializeAfterForkError + 12",
        "__THE_PROCESS_HAS_FORKED_AND_YOU_CANNOT_USE_THIS_COREFOUNDATION_FUNCTIONALITY___YOU_MUST_EXEC__",
        "RuntimeError: MPS does not work in a forked subprocess",
        Case("0   CoreFoundation   0x00000001a0b _scproxy_get + 4", "SIGSEGV"),
        "[2026-02-03 09:14:40 +0000] [7] [WARNING] Worker with pid 81 was terminated due to signal 11",
    ),
    near_misses=(
        "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' start method",
        "billiard.exceptions.WorkerLostError: Worker exited prematurely: signal 9 (SIGKILL) Job: 3.",
        "[2024-02-11 14:07:39 +0000] [55] [CRITICAL] WORKER TIMEOUT (pid:57)",
    ),
)
