"""What the facts of a machine with NVIDIA cards say before a run, and what the numbers of a message say after it."""

import pytest

from holdfast.core.facts import Gpu, GpuProcess, MachineFacts, TorchBuild
from holdfast.core.plan import Plan
from holdfast.hazards import find_hazard
from holdfast.hazards.diagnose import diagnose
from holdfast.logs.log_text import read_evidence

GIB = 2**30
H200 = Gpu(name="NVIDIA H200", kind="cuda", memory_bytes=141 * GIB, free_bytes=140 * GIB, capability="9.0")
PASCAL = Gpu(name="Tesla P100", kind="cuda", memory_bytes=16 * GIB, free_bytes=16 * GIB, capability="6.0")
BLACKWELL = Gpu(name="RTX 5090", kind="cuda", memory_bytes=32 * GIB, free_bytes=32 * GIB, capability="12.0")


def torch_for(cuda: str | None) -> TorchBuild:
    return TorchBuild(version=f"2.8.0+{'cu' + cuda.replace('.', '') if cuda else 'cpu'}", cuda=cuda)


def invited(slug: str, plan: Plan | None = None, **facts):
    hazard = find_hazard(slug)
    assert hazard is not None
    return hazard.invited_by(MachineFacts(**facts), plan or Plan())


def test_cpu_build_with_a_card_is_reported():
    assert "without CUDA" in invited("torch-cpu-build", torch=torch_for(None), gpus=(H200,)).seen
    assert invited("torch-cpu-build", torch=torch_for("12.8"), gpus=(H200,)) is None
    assert invited("torch-cpu-build", torch=torch_for(None)) is None


@pytest.mark.parametrize(
    ("built_for", "driver", "is_blocked"),
    [("13.0", "12.4", True), ("12.8", "12.2", False), ("12.8", "13.0", False), ("10.2", "10.1", True)],
)
def test_a_driver_runs_every_minor_version_of_its_major_one(built_for, driver, is_blocked):
    found = invited("cuda-driver-mismatch", torch=torch_for(built_for), driver_cuda=driver, gpus=(H200,))
    assert (found is not None) == is_blocked


@pytest.mark.parametrize(
    ("gpu", "built_for", "is_blocked"),
    [
        (BLACKWELL, "12.4", True),
        (BLACKWELL, "12.8", False),
        (PASCAL, "12.6", False),
        (PASCAL, "13.0", True),
        (H200, "11.8", False),
        (H200, "11.1", True),
    ],
)
def test_a_card_needs_a_build_of_its_generation(gpu, built_for, is_blocked):
    found = invited("cuda-no-kernel-image", torch=torch_for(built_for), gpus=(gpu,))
    assert (found is not None) == is_blocked


def test_a_process_that_holds_the_card_is_named():
    holder = GpuProcess(pid=4711, name="python", user="ada", memory_bytes=20 * GIB)
    assert "pid 4711" in invited("zombie-gpu-memory", gpus=(H200,), gpu_processes=(holder,)).seen
    assert invited("zombie-gpu-memory", gpus=(H200,)) is None
    assert invited("zombie-gpu-memory", Plan(device="cpu"), gpus=(H200,), gpu_processes=(holder,)) is None


def test_memory_that_no_process_owns_is_pointed_out():
    half_full = Gpu(name="NVIDIA A40", kind="cuda", memory_bytes=48 * GIB, free_bytes=20 * GIB)
    assert invited("zombie-gpu-memory", gpus=(half_full,)) is not None


@pytest.mark.parametrize(
    ("version", "cuda", "is_invited"),
    [("0.45.2", "12.8", True), ("0.45.3", "12.8", False), ("0.47.0", "13.0", True), ("0.48.0", "13.0", False)],
)
def test_bitsandbytes_carries_libraries_up_to_a_cuda_version(version, cuda, is_invited):
    found = invited("bitsandbytes-cuda", torch=torch_for(cuda), distributions={"bitsandbytes": version})
    assert (found is not None) == is_invited


def test_two_builds_of_faiss_hide_each_other():
    both = {"faiss-cpu": "1.12.0", "faiss-gpu-cu12": "1.12.0"}
    assert "both installed" in invited("faiss-gpu-mismatch", distributions=both, gpus=(H200,)).seen
    assert invited("faiss-gpu-mismatch", distributions={"faiss-cpu": "1.12.0"}, gpus=(H200,)) is None


def test_flash_attention_needs_a_newer_card():
    installed = {"flash-attn": "2.8.3"}
    assert invited("flash-attn-missing", torch=torch_for("12.6"), distributions=installed, gpus=(PASCAL,)) is not None
    assert invited("flash-attn-missing", torch=torch_for("12.6"), distributions=installed, gpus=(H200,)) is None


@pytest.mark.parametrize(
    ("tried", "allocated", "free", "slug"),
    [
        ("60.00 MiB", "0.50 GiB", "0.01 GiB", "zombie-gpu-memory"),  # 10.7 GiB are missing and not ours
        ("60.00 MiB", "10.20 GiB", "0.01 GiB", "cuda-oom"),  # all of it is ours
        ("60.00 MiB", "9.70 GiB", "0.40 GiB", "cuda-oom"),  # a context and a desktop take the rest
        ("20.00 GiB", "0.50 GiB", "9.90 GiB", "cuda-oom"),  # more than the card has
    ],
)
def test_message_figures_show_whose_memory_ran_out(tried, allocated, free, slug):
    message = (
        f"RuntimeError: CUDA out of memory. Tried to allocate {tried} (GPU 0; 11.17 GiB total capacity; "
        f"{allocated} already allocated; {free} free; {allocated} reserved in total by PyTorch)"
    )
    assert diagnose(read_evidence(message)).slug == slug


def test_timeout_after_another_ranks_error_is_fallout():
    log = (
        "[rank1]: ValueError: not enough values to unpack (expected 2, got 1)\n"
        "[rank0]:[E ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL "
        "ran for 600060 milliseconds before timing out."
    )
    assert diagnose(read_evidence(log, "1")).slug == "unknown"
    assert diagnose(read_evidence(log.splitlines()[1], "1")).slug == "nccl-timeout"
