"""The machine, container or job ran out of main memory, and the system killed the process.

What you see: "Killed", "zsh: killed", exit code -9 or 137, no traceback; or "can't allocate memory", MemoryError, "The
paging file is too small". With torchrun only "exitcode: -9".
Why: weights, optimizer state, copies made while loading, cached datasets and every loader worker share one limit. It is
often a container's or batch job's limit, far below the machine's memory.
What we do: process fewer examples at once, stop using loader workers, and say how to raise the limit.
"""

from holdfast.core.evidence import Evidence, Seen
from holdfast.core.facts import MachineFacts
from holdfast.core.observations import (
    ExitStatus,
    JetsamKill,
    KernelKill,
    KilledExternally,
    OomKill,
    OomKillerOff,
    ProcessExit,
    RankVerdict,
    TreeVerdict,
    Verdict,
    Wait,
    WaitTarget,
)
from holdfast.core.plan import Plan, Remedy
from holdfast.core.text import human_bytes
from holdfast.hazards import Case, Hazard, Invited, ended_by, judged, observed, proves, seen, suggests

MEMORY_GUARDS = ("systemd-oomd", "earlyoom")  # they kill before the kernel would
_LOW_FREE_BYTES = 2_000_000_000
_SMALL_BYTES = 8_000_000_000

# What shells print for SIGKILL, in the languages seen so far.
_KILLED = (
    r"^(?:\S+: (?:line \d+: +)?(?:\d+ +)?|\[\d+\]\s*[+-]?\s*(?:\d+\s+)?)?(?:zsh: )?"
    r"(?:Killed(?:: 9)?|killed|Getötet|Processus arrêté|Tué|Terminado \(killed\)|Matado|Morto|Убито|已杀死|已殺死|強制終了|죽었음)(?:$|\s{2,}|\s+(?:python|\S*/python|torchrun|accelerate))"
)


def invited_by(facts: MachineFacts, plan: Plan) -> Invited | None:
    """Say why this machine and plan invite the hazard; None when they do not."""
    memory, free = facts.memory_bytes, facts.memory_free_bytes
    if free is not None and free < _LOW_FREE_BYTES:
        return Invited(f"only {human_bytes(free)} of memory is free")
    if memory is None:
        return None
    if facts.memory_physical_bytes is not None and memory < facts.memory_physical_bytes / 2:
        limit = (
            f"this process may use {human_bytes(memory)} of the machine's {human_bytes(facts.memory_physical_bytes)}"
        )
        return Invited(limit, "note")
    if memory < _SMALL_BYTES:
        return Invited(f"{human_bytes(memory)} of memory; full fine-tuning takes about 16 bytes per parameter", "note")
    return None


def _killed_without_a_word(evidence: Evidence) -> Seen | None:
    """SIGKILL without an exception before it: mostly the kernel's or the container's memory limit."""
    if evidence.errors.joined and "Error" in evidence.errors.joined:
        return None
    return ended_by("SIGKILL").find(evidence)


def _kernel_killed_it(evidence: Evidence) -> Seen | None:
    """The kernel's line about a Python process that it killed, when ours was killed: other programs have such lines too."""
    named = r"(?i:out of memory): Kill(?:ed)? process \d+ \((?:python|pt_|ray|torchrun|jupyter|ipykernel)[^)]*\)"
    line = seen("log", named).find(evidence)
    was_killed = evidence.has_signal("SIGKILL") or not evidence.exits
    return line if was_killed else None


_COUNTED = observed(OomKill, lambda one: bool(one.cgroup))
_VICTIM_IN_LOG = seen(
    "error", r"DataLoader worker|ConnectionResetError|EOFError|lost sys\.stderr|BrokenProcessPool|exitcode: -9"
)


def _kill_was_counted(evidence: Evidence) -> Seen | None:
    """The run's control group counted an OOM kill, and one of the run's processes was the victim."""
    killed = evidence.has_signal("SIGKILL")
    killed = killed or any(one.status.signal == "SIGKILL" for one in evidence.observed(ProcessExit))
    return _COUNTED.find(evidence) if killed or _VICTIM_IN_LOG.find(evidence) else None


HAZARD = Hazard(
    slug="host-oom",
    title="main memory ran out",
    kind="crash",
    invited_by=invited_by,
    signs=(
        judged("proves", _kernel_killed_it),
        suggests(
            "log", r"(?i)out of memory: kill(?:ed)? process|invoked oom-killer|oom_reaper: reaped|oom-kill:constraint"
        ),
        proves("log", r"(?i)oom[-_ ]kill(?:ed)? event|cgroup out-of-memory handler"),
        proves(
            "log",
            r"task \S+: Out Of Memory|OUT_OF_ME(?:MORY|\+)|[Ee]xceeded (?:job|step|virtual) memory limit|OOM ?[Kk]illed",
        ),
        proves("log", r"(?i)exceeded memory limit[^\n]*being killed|job killed: (?:memory|mem) usage|TERM_MEMLIMIT"),
        proves(
            "log", r"ray\.exceptions\.OutOfMemoryError|killed due to (?:the node running low on memory|memory pressure)"
        ),
        proves(
            "log",
            r"DefaultCPUAllocator: (?:can't allocate|not enough) memory|Torch: (?:not enough memory|unable to mmap memory)",
        ),
        proves(
            "log",
            r"Unable to allocate (?:array with shape|[\d.]+ ?[KMGTP]i?B for an array|output buffer)|_ArrayMemoryError",
        ),
        proves("log", r"ArrowMemoryError|malloc of size \d+ failed"),
        proves(
            "log", r"WinError 1455|os error 1455|paging file is too small|页面文件太小|DefaultCPUAllocator: not enough"
        ),
        proves(
            "log",
            r"using all available RAM|run out of application memory|memorystatus: killing|low swap: killing|JETSAM_REASON_MEMORY",
        ),
        # gunicorn's guess: it sends SIGKILL itself when a worker is too slow.
        suggests(
            "log", r"was sent SIGKILL! Perhaps out of memory|Worker with pid \d+ was terminated due to signal 9\b"
        ),
        judged("proves", _kill_was_counted),
        proves(observed(KernelKill)),
        proves(observed(JetsamKill)),
        proves(observed(KilledExternally, lambda one: one.sender in MEMORY_GUARDS)),
        proves(observed(OomKillerOff)),
        suggests(observed(OomKill, lambda one: not one.cgroup), also=(ended_by("SIGKILL"),)),
        suggests("error", r"(?:^|[\s.])MemoryError\b", unless=(seen("error", r"(?i)cuda|cupy|gpu"),)),
        suggests("log", r"std::bad_alloc|LLVM ERROR: out of memory"),
        suggests(
            "log",
            r"Cannot allocate memory|cannot allocate memory(?! in static TLS)|os error 12\)",
            unless=(seen("log", r"NCCL|ibv_"),),
        ),
        suggests("log", _KILLED),
        suggests("log", r"zsh: killed\b"),
        suggests("log", r"exit ?code ?[:=]? ?-9\b|exits? with (?:return )?code ?=? ?-9\b|died with <Signals\.SIGKILL"),
        suggests(
            "log", r"(?i)exit(?:ed)?(?: with)?(?: status| code)?:? 137\b|non-zero code: 137|interrupted by signal 9"
        ),
        suggests(
            "log",
            r"Signal 9 \(SIGKILL\) received by PID|terminated with signal SIGKILL|exitcode=-SIGKILL|exited with signal 9\b",
        ),
        judged("fallout", _killed_without_a_word),
    ),
    remedies=(
        Remedy("load data in the main process", change={"loader_workers": 0}, cost="slower input"),
        Remedy(
            "train on fewer examples at once, with the same effective batch",
            change={"micro_batch": "halve"},
            cost="a little slower",
        ),
        Remedy("evaluate on fewer examples at once", change={"eval_micro_batch": "halve"}, cost="slower evaluation"),
        Remedy(
            "recompute activations instead of keeping them",
            change={"gradient_checkpointing": True},
            cost="about a third slower",
        ),
        Remedy(
            "give the container or job more memory",
            command="docker run --memory=32g ...   # or: sbatch --mem=64G job.sh",
        ),
        Remedy(
            "on Windows, let the paging file grow",
            command="SystemPropertiesPerformance.exe   # Advanced, Virtual memory, System managed size",
        ),
    ),
    sources=(
        "xxayt/MGSV#2",
        "rumca-js/Django-link-archive#395",
        "2U1/Qwen-VL-Series-Finetune#79",
        "bghira/SimpleTuner#653",
        "ZwwWayne/K-Net#30",
        "ultralytics/yolov5#11418",
        "mattmireles/gemma-tuner-multimodal#19",
    ),
    matches=(
        "[89075.584285] Out of memory: Killed process 116013 (python) total-vm:1452108kB, anon-rss:1217700kB",
        "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=191.batch cgroup. Some of your processes may have been killed by the cgroup out-of-memory handler.",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=11300781.0. Some of the step tasks have been OOM Killed.",
        "/var/spool/slurmd/job00191/slurm_script: line 28:  8156 Killed                  python3 main.py --epochs 400",
        "Loading checkpoint shards:  33%|###       | 1/3 [00:12<00:25, 12.5s/it]\nKilled",
        "zsh: killed     python train.py",
        "Writing metrics: metrics.jsonl\n已杀死",
        "Killed: 9",
        "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) local_rank: 0 (pid: 178) of binary: /opt/conda/bin/python",
        "[2025-03-20 10:00:00,000] [ERROR] [launch.py:325:sigkill_handler] ['python', 'train.py'] exits with return code = -9",
        "subprocess.CalledProcessError: Command '['python', 'train.py']' died with <Signals.SIGKILL: 9>.",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:75] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 35896320000 bytes. Error code 12 (Cannot allocate memory)",
        "RuntimeError: $ Torch: not enough memory: you tried to allocate 6GB. Buy new RAM! at ..\\aten\\src\\TH\\THGeneral.cpp:201",
        "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 7.91 GiB for an array with shape (1396913, 190, 4) and data type float64",
        'OSError: [WinError 1455] The paging file is too small for this operation to complete. Error loading "torch\\lib\\shm.dll" or one of its dependencies.',
        "Process finished with exit code 137 (interrupted by signal 9: SIGKILL)",
        "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc",
        Case("Epoch 0:  12%|#2        | 120/1000 [00:40<05:00,  2.9it/s]", "SIGKILL"),
        Case("step 40 loss 0.91", "SIGKILL", (KilledExternally(signal="SIGKILL", sender="systemd-oomd"),)),
        Case(
            "step 40 loss 0.91",
            "SIGKILL",
            (OomKill(kills=1, cgroup="/sys/fs/cgroup/job", limit_bytes=4_000_000_000, peak_bytes=4_000_000_000),),
        ),
        Case(
            "RuntimeError: DataLoader worker (pid(s) 31) exited unexpectedly",
            "1",
            (
                ProcessExit(pid=31, name="pt_data_worker", status=ExitStatus(signal="SIGKILL")),
                OomKill(kills=1, cgroup="/sys/fs/cgroup/job", limit_bytes=4_000_000_000, peak_bytes=4_000_000_000),
            ),
        ),
        Case(
            "step 40 loss 0.91",
            "hang",
            (
                TreeVerdict(
                    verdict=Verdict.KERNEL,
                    main=RankVerdict(
                        pid=41,
                        verdict=Verdict.KERNEL,
                        wait=Wait(kind="kernel", target=WaitTarget.KERNEL, name="mem_cgroup_oom_synchronize"),
                    ),
                ),
                OomKillerOff(cgroup="/sys/fs/cgroup/memory/job", limit_bytes=600_000_000),
            ),
        ),
        "slurmstepd: error: Step 81.0 exceeded memory limit (8400000 > 8388608), being killed",
        "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",
        "pyarrow.lib.ArrowMemoryError: malloc of size 4294967296 failed",
        "Your notebook tried to allocate more memory than is available: your session crashed after using all available RAM.",
        "[2026-02-03 09:14:41 +0000] [7] [ERROR] Worker (pid:81) was sent SIGKILL! Perhaps out of memory?",
        Case("", "SIGKILL", (KernelKill(text="Out of memory: Killed process 91 (python)", pid=91, name="python"),)),
        Case("", "SIGKILL", (JetsamKill(pid=91, name="python", reason="highwater"),)),
        Case("", "SIGKILL", (OomKill(kills=1),)),
        'Traceback (most recent call last):\n  File "train.py", line 4, in <module>\n    rows = list(reader)\nMemoryError',
        "torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGKILL",
    ),
    near_misses=(
        "RuntimeError: DataLoader worker (pid 19597) is killed by signal: Killed.",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.69 GiB",
        "MPS backend out of memory (MPS allocated: 33.48 GB, other allocations: 2.45 GB, max allowed: 36.27 GB)",
        "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: 1) local_rank: 0 (pid: 178) of binary: /opt/conda/bin/python",
        "W tensorflow/core/framework/allocator.cc:122] Allocation of 5825757184 exceeds 10% of system memory.",
        Case("KeyError: 'text'", "1", (OomKill(kills=1, cgroup="/sys/fs/cgroup/job", limit_bytes=4_000_000_000),)),
        Case("step 40 loss 0.91", "SIGKILL", (KilledExternally(signal="SIGKILL"),)),
    ),
    reproduced_by="tests/lab/test_evidence.py",
)
