"""NCCL, which moves data between GPUs, failed or could not start.

What you see: "NCCL error in: ProcessGroupNCCL.cpp", `ncclSystemError`, `ncclUnhandledCudaError`, `ncclInvalidUsage`,
"Duplicate GPU detected", or "Distributed package doesn't have NCCL built in".
Why: too little shared memory in a container, no peer access between the cards, a wrong network interface, more
processes than cards, two NCCL versions in one environment, or a platform without NCCL. Often it is the consequence of a
rank that died.
What we do: turn off the failing transports one by one, then train on one GPU.
"""

from holdfast.core.facts import MachineFacts
from holdfast.core.observations import ProcessExit
from holdfast.core.plan import Plan, Remedy
from holdfast.core.text import human_bytes
from holdfast.hazards import Case, Hazard, Invited, fallout, observed, proves, seen, suggests

# Healthy runs print these too, about optional parts that are missing.
_OPTIONAL = r"(?:Failed to open libibverbs|No plugin found|NET/Plugin|Failed to find ncclNet|Missing ncclNetPlugin|Could not find real path|No NVLink|NVLS|libnccl-(?:net|tuner|profiler))"


def invited_by(facts: MachineFacts, plan: Plan) -> Invited | None:
    """Say why this machine and plan invite the hazard; None when they do not."""
    cards = sum(gpu.kind == "cuda" for gpu in facts.gpus)
    if cards > 1 and facts.in_container and facts.shm_bytes is not None and facts.shm_bytes <= 64 * 1024 * 1024:
        return Invited(
            f"{cards} GPUs in a container with {human_bytes(facts.shm_bytes)} of shared memory; NCCL needs more"
        )
    return None


HAZARD = Hazard(
    slug="nccl-error",
    title="data could not be moved between the GPUs (NCCL)",
    kind="error",
    invited_by=invited_by,
    signs=(
        proves(
            "log",
            r"NCCL [Ee]rror(?: in:?| \d+:| at |: )|nccl(?:SystemError|UnhandledCudaError|InternalError|InvalidUsage|InvalidArgument)\b|ncclCommInitRank failed|setting up NCCL communicator and retr\w+ ncclUniqueId|Test NCCL failure|Duplicate GPU detected",
        ),
        proves(
            "log",
            r"Distributed package doesn't have NCCL|ProcessGroupNCCL is only supported with GPUs|NCCL (?:backend )?(?:is )?not available|undefined symbol: nccl\w+|unhandled (?:system|cuda) error(?:,| \()",
        ),
        proves("log", rf"NCCL WARN (?!.*{_OPTIONAL})"),
        suggests(
            "error", r"\bNCCL\b", unless=(seen("log", r"Watchdog caught|timed out|Timeout\(ms\)|[Ss]ocket [Tt]imeout"),)
        ),
        suggests(
            "frame",
            r"getNCCLComm|ncclCommInitRank\w*|_broadcast_coalesced \(|_verify_params_across_processes",
            unless=(seen("log", r"timed out|out of memory|Timeout"),),
        ),
        # A peer that closed its connection usually died of something else.
        fallout(
            "log",
            r"ncclRemoteError|NCCL communicator (?:was|encountered)|remote process exit\w+|Connection closed by (?:remote )?peer|Connection reset by peer|[Bb]roken pipe.*(?:nccl|store)|DistBackendError|DistNetworkError",
            unless=(observed(ProcessExit, lambda one: one.rank is not None),),  # seen live: one of the ranks has
        ),
    ),
    remedies=(
        Remedy(
            "turn off direct copies between cards",
            change={"NCCL_P2P_DISABLE": "1"},
            cost="slower exchange of gradients",
        ),
        Remedy(
            "turn off InfiniBand",
            change={"NCCL_P2P_DISABLE": "1", "NCCL_IB_DISABLE": "1"},
            cost="slower between machines",
        ),
        Remedy(
            "turn off NCCL's shared memory",
            change={"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"},
            cost="slower exchange of gradients",
        ),
        Remedy("give the container more shared memory", command="docker run --shm-size=8g --ipc=host ..."),
        Remedy("make NCCL log what failed", command="NCCL_DEBUG=INFO torchrun --nproc-per-node=2 train.py"),
        Remedy(
            "run one process per card",
            command="torchrun --nproc-per-node=$(nvidia-smi -L | wc -l) train.py",
        ),
        Remedy("train on one GPU", command="CUDA_VISIBLE_DEVICES=0 python train.py", cost="slower"),
        Remedy(
            "on platforms without NCCL (Windows, macOS): use gloo",
            command="torch.distributed.init_process_group('gloo')",
        ),
    ),
    sources=(
        "NVIDIA/nccl#328",
        "NVIDIA/nccl#290",
        "NVIDIA/nccl#1024",
        "pytorch/pytorch#45950",
        "verl-project/verl#161",
        "NVIDIA/nccl#293",
    ),
    matches=(
        "RuntimeError: NCCL error in: /pytorch/torch/lib/c10d/ProcessGroupNCCL.cpp:784, unhandled system error, NCCL version 2.7.8\nncclSystemError: System call (socket, malloc, munmap, etc) failed.",
        "RuntimeError: NCCL Error 1: unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:275, invalid usage, NCCL version 2.20.5\nncclInvalidUsage: This usually reflects invalid usage of NCCL library.\n"
        "Last error:\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA device 10",
        "42692884fcba:140:140 [0] include/socket.h:333 NCCL WARN Call to bind failed : Address already in use",
        "RuntimeError: Distributed package doesn't have NCCL built in",
        "gpu004:2200689:2200706 [3] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer gpu004<55693>",
        "torch.distributed.DistBackendError: NCCL error in: /pytorch/ProcessGroupNCCL.cpp:1331, remote process exited or there was a network error, NCCL version 2.19.3\nncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
        '  File "/venv/lib/python3.11/site-packages/torch/nn/parallel/comm.py", line 57, in _broadcast_coalesced\n',
    ),
    near_misses=(
        Case(
            "host:175:175 [0] misc/ibvwrap.cc:63 NCCL WARN Failed to open libibverbs.so[.1]\nhost:175:175 [0] NCCL INFO comm 0x7f rank 0 nranks 2 - Init COMPLETE",
            "0",
        ),
        "[E ProcessGroupNCCL.cpp:475] [Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600888 milliseconds before timing out.",
    ),
)
