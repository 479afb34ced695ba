"""Processes waited for each other until the timeout.

What you see: "Watchdog caught collective operation timeout ... ran for 600888 milliseconds", "Timed out initializing
process group in store based barrier", or two GPUs at 100% and no step.
Why: one rank was busy with something else (preparing data, saving a checkpoint, an extra batch), died or hung, or
direct copies between the cards never arrive on this machine.
What we do: look for the rank that failed first and name its cause instead. Otherwise turn off direct copies between the
cards, and say how to allow more time for a slow phase.
"""

import re

from holdfast.core.evidence import Evidence, Passage
from holdfast.core.plan import Remedy
from holdfast.hazards import HUNG, Case, Hazard, judged, seen, suggests

_TIMED_OUT = (
    r"Watchdog caught collective operation timeout|milliseconds before timing out|Heartbeat monitor timed out|watchdog got stuck for \d+ seconds"
    r"|Timed out initializing process group|in store based barrier|Timed out after \d+ seconds waiting for clients|client socket has timed out after"
    r"|(?:RuntimeError|DistStoreError|TimeoutError|got error): Socket Timeout|Timed out waiting \d+ ?ms|wait timeout after \d+ ?ms|(?:passed|in) monitoredBarrier"
    r"|[Cc]ollective (?:operation )?(?:timeout|timed out)|Original reason for failure was:.*time|ncclTimeout"
    r"|watchdog thread terminated with exception: .*(?:[Tt]imeout|timed out)|TCPStore.{0,60}(?:timeout|timed out)|Timeout waiting for key|RendezvousTimeoutError|NCCL (?:timeout|timed out)"
)
# Printed for errors and timeouts alike.
_FAILED = r"Some NCCL operations have failed or timed out|[Ee]xception \(either an error or timeout\) detected by watchdog|failure detected by watchdog"
_BROKEN = r"nccl(?:System|UnhandledCuda|Internal|InvalidUsage|Remote)\w*|NCCL error(?: in|:)"
_RAISED = r"(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception)\b(?:: |$)"
_ECHO = r"NCCL|[Ww]atchdog|[Tt]imeout|[Tt]imed out|ChildFailedError|CalledProcessError|SignalException|Dist\w+Error|c10::|ProcessExitedException|ProcessRaisedException"
_RANKS = r"NCCL INFO|NCCL version|ProcessGroupNCCL|distributed_backend=nccl|MEMBER: \d+/(?!1\b)\d+"

_JOINING = r"(?i:initializing (?:distributed|ddp)): GLOBAL_RANK: \d+, MEMBER: \d+/(?!1\b)\d+|NCCL INFO .*(?:Init COMPLETE|Launch mode Parallel|Connected all (?:rings|trees))|distributed init \(rank \d+\)"


def _first_to_fail(evidence: Evidence) -> Passage | None:
    """The timeout, unless a rank raised its own error before; then the timeout is only a consequence."""
    broken = seen("log", _BROKEN).find(evidence)
    for _, passage in evidence.log.search(_TIMED_OUT if broken else f"{_TIMED_OUT}|{_FAILED}"):
        if broken and broken.line < passage.line:
            return None
        for error in evidence.errors:
            if error.line < passage.line and re.match(_RAISED, error.text) and not re.search(_ECHO, error.text):
                return None
        return passage
    return None


def _nothing_after_the_start(evidence: Evidence) -> Passage | None:
    """The last line, if it is one that ranks print as they join and nothing follows it."""
    lines = [passage for passage in evidence.log if passage.text.strip()]
    if lines and re.search(_JOINING, lines[-1].text) and not evidence.errors:
        return lines[-1]
    return None


def _cards_busy_without_a_step(evidence: Evidence) -> Passage | None:
    """Two cards or more at 100% in nvidia-smi while the run hangs: each waits in a collective."""
    busy = [passage for _, passage in evidence.log.search(r"\d+MiB\s*/\s*\d+MiB\s*\|\s*(?:100|9\d)%")]
    return busy[0] if evidence.is_hang and len(busy) > 1 else None


HAZARD = Hazard(
    slug="nccl-timeout",
    title="processes waited for each other until the timeout",
    kind="hang",
    signs=(
        judged("proves", _first_to_fail),
        judged("suggests", _cards_busy_without_a_step),
        suggests(
            "frame",
            r"^(?:cuda(?:Stream|Device|Event)Synchronize|cu(?:Stream|Ctx|Event)Synchronize|nccl\w+) |^(?:synchronize|wait_stream|wait_event) \(.*torch[/\\]cuda",
            also=(
                HUNG,
                seen("log", r"(?i)\[rank\d|\brank\b|nccl|distributed|torchrun|world_size|deepspeed|fsdp|megatron"),
            ),
        ),
        suggests(
            "frame",
            r"ProcessGroupNCCL::WorkNCCL::checkTimeout|ProcessGroupNCCL::watchdogHandler",
            unless=(seen("log", r"CUDA error|NCCL error"),),
        ),
        suggests(
            "log",
            r"(?i)waiting for (?:all|the|other) (?:other )?(?:ranks|processes|workers|peers|nodes)|waiting at (?:the )?barrier",
            also=(HUNG,),
        ),
        # Hung inside a collective without a message.
        suggests(
            "frame",
            r"^(?:barrier|all_reduce|broadcast|all_gather\w*|reduce_scatter\w*|_store_based_barrier|monitored_barrier|broadcast_object_list|all_gather_object|wait_for_everyone|_verify_params_across_processes) \(",
            also=(seen("frame", r"distributed|accelerate"),),
            unless=(seen("error", r"Error"),),
        ),
        suggests(HUNG, also=(seen("log", _RANKS),), unless=(seen("frame", r"."),)),
        judged("suggests", _nothing_after_the_start),
    ),
    remedies=(
        Remedy(
            "turn off direct copies between cards",
            change={"NCCL_P2P_DISABLE": "1"},
            cost="slower exchange of gradients",
        ),
        Remedy(
            "prepare data once before the launch, or allow slow phases more time",
            command="TrainingArguments(ddp_timeout=7200)   # or init_process_group(timeout=timedelta(hours=2))",
        ),
        Remedy(
            "find the rank that stopped",
            command="TORCH_NCCL_TRACE_BUFFER_SIZE=2000 TORCH_DISTRIBUTED_DEBUG=DETAIL NCCL_DEBUG=INFO torchrun train.py",
        ),
        Remedy(
            "give every rank the same number of batches",
            command="DataLoader(..., sampler=DistributedSampler(data), drop_last=True)",
            keeps=False,
        ),
        Remedy("train on one GPU", command="CUDA_VISIBLE_DEVICES=0 python train.py", cost="slower"),
    ),
    sources=(
        "huggingface/nanotron#204",
        "hiyouga/LlamaFactory#7396",
        "huggingface/open-r1#620",
        "brandleyzhou/DIFFNet#10",
        "pytorch/pytorch#75658",
    ),
    over=("nccl-error",),
    matches=(
        Case("[RANK 0] saved the sample\n[RANK 0] waiting for all ranks to finish", "hang"),
        Case(
            "| N/A 34C P0 80W / 400W | 30012MiB / 40960MiB | 100%      Default |\n"
            "| N/A 35C P0 81W / 400W | 30012MiB / 40960MiB | 100%      Default |",
            "hang",
        ),
        Case(
            "[rank0] step 40\n#2  0x00007f in cuStreamSynchronize () from /lib/libcuda.so.1\n"
            "#3  0x00007f in cudaStreamSynchronize () from /venv/lib/libcudart.so.12",
            "hang",
        ),
        "[rank0]:[E321 02:07:08.408271257 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, NumelIn=466119168, Timeout(ms)=600000) ran for 600060 milliseconds before timing out.",
        "[E ProcessGroupNCCL.cpp:537] Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels, subsequent GPU operations might run on corrupted/incomplete data.",
        "RuntimeError: Timed out initializing process group in store based barrier on rank: 1, for key: store_based_barrier_key:1 (world_size=2, worker_count=1, timeout=0:30:00)",
        "torch.distributed.DistStoreError: Timed out after 1801 seconds waiting for clients. 1/2 clients joined.",
        "RuntimeError: NCCL communicator was aborted on rank 1. Original reason for failure was: [Rank 1] Watchdog caught collective operation timeout",
        Case(
            "eudoxus:4055976:4056040 [1] NCCL INFO comm 0x7f4400002fb0 rank 1 nranks 4 cudaDev 1 busId 25000 - Init COMPLETE\neudoxus:4055975:4055975 [0] NCCL INFO Launch mode Parallel",
            "hang",
        ),
        "frame #1: c10d::ProcessGroupNCCL::WorkNCCL::checkTimeout(std::optional<long>) + 0x1d4 (0x7f12 in /venv/libtorch_cuda.so)",
        '  File "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3685, in barrier\n',
    ),
    near_misses=(
        "requests.exceptions.ReadTimeout: HTTPSConnectionPool(host='huggingface.co', port=443): Read timed out. (read timeout=10)",
        "[rank1]: KeyError: 'labels'\n[rank0]:[E ProcessGroupNCCL.cpp:475] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3, OpType=ALLREDUCE) ran for 600888 milliseconds before timing out.",
        "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n[rank0]:[E ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3)",
        "[rank1]: RuntimeError: CUDA error: an illegal memory access was encountered\n[rank0]:[E ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3)",
    ),
)
