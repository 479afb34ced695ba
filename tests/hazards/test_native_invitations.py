"""What a machine must look like before `doctor` warns of the hazards of native code, forks, memory and threads."""

import pytest

from holdfast.core.facts import Gpu, MachineFacts, NativeConflict, Power, TorchBuild, Variable
from holdfast.core.plan import Plan
from holdfast.hazards import Invited, find_hazard


def invitation(slug: str, plan: Plan | None = None, **facts) -> Invited | None:
    hazard = find_hazard(slug)
    assert hazard is not None
    return hazard.invited_by(MachineFacts(**facts), plan or Plan())


def openmp(first: str, second: str, outcome: str = "crash") -> NativeConflict:
    return NativeConflict(
        runtime="openmp", first=first, second=second, copies=2, outcome=outcome, because="both wait on the same symbol"
    )


@pytest.mark.parametrize(
    "slug",
    [
        "abseil-mutex",
        "arch-mismatch",
        "celery-worker-lost",
        "fork-objc",
        "host-oom",
        "illegal-instruction",
        "machine-sleep",
        "native-lib-missing",
        "numpy-abi",
        "openmp-duplicate",
        "openmp-fork",
        "package-malicious",
        "permission-denied",
        "segfault-other",
        "slow-cpu-training",
        "thread-oversubscription",
        "tokenizers-build",
        "tokenizers-fork",
        "too-many-open-files",
    ],
)
def test_an_unknown_machine_invites_nothing(slug):
    assert invitation(slug) is None


def test_two_openmp_copies_are_named_in_their_order():
    invited = invitation("openmp-duplicate", conflicts=(openmp("torch 2.8.0", "faiss-cpu 1.12.0"),))
    assert invited is not None
    assert 0 <= invited.seen.find("torch 2.8.0") < invited.seen.find("faiss-cpu 1.12.0")
    assert "2 copies" in invited.seen
    assert invited.severity == "warning"


def test_tolerated_and_shared_copies_are_not_findings():
    for outcome in ("shared", "coexists", "tolerated"):
        assert invitation("openmp-duplicate", conflicts=(openmp("torch 2.8.0", "scikit-learn 1.7.2", outcome),)) is None


def test_silencing_variable_is_reported():
    def kmp(value: str, verdict: str) -> Variable:
        return Variable(name="KMP_DUPLICATE_LIB_OK", value=value, effect="", verdict=verdict)

    invited = invitation("openmp-duplicate", variables=(kmp("TRUE", "harmful"),))
    assert invited is not None
    assert invited.severity == "note"
    assert "KMP_DUPLICATE_LIB_OK=TRUE" in invited.seen
    assert [remedy.command for remedy in invited.remedies] == ["unset KMP_DUPLICATE_LIB_OK"]
    assert invitation("openmp-duplicate", variables=(kmp("FALSE", "works"),)) is None


def test_protobuf_clash_blocks_when_transformers_imports_both():
    clash = NativeConflict(
        runtime="protobuf",
        first="pyarrow 21.0.0",
        second="tensorflow 2.20.0",
        copies=2,
        outcome="hang",
        because="old protobuf first",
    )
    installed = {"transformers": "4.57.0", "tensorflow": "2.20.0"}
    invited = invitation("abseil-mutex", conflicts=(clash,), distributions=installed)
    assert invited is not None
    assert invited.severity == "blocker"
    assert invitation("abseil-mutex", conflicts=(clash,)).severity == "warning"


def test_openmp_conflict_is_not_a_protobuf_clash():
    assert invitation("abseil-mutex", conflicts=(openmp("torch 2.8.0", "faiss-cpu 1.12.0"),)) is None


def test_numpy_2_blocks_only_with_old_torch():
    invited = invitation("numpy-abi", distributions={"numpy": "2.1.0", "torch": "2.2.2+cpu"})
    assert invited is not None
    assert invited.severity == "blocker"
    assert invitation("numpy-abi", distributions={"numpy": "2.1.0", "torch": "2.3.0"}) is None
    assert invitation("numpy-abi", distributions={"numpy": "1.26.4", "torch": "2.2.2"}) is None


def test_torchvision_for_another_torch_is_detected():
    assert invitation("native-lib-missing", distributions={"torch": "2.13.0", "torchvision": "0.28.0"}) is None
    assert invitation("native-lib-missing", distributions={"torch": "2.0.1", "torchvision": "0.15.2"}) is None
    invited = invitation("native-lib-missing", distributions={"torch": "2.14.0+cu130", "torchvision": "0.28.0+cu129"})
    assert invited is not None
    assert "0.29" in invited.seen


def test_torch_with_mismatched_record_is_reported():
    def mixed(version: str) -> Invited | None:
        torch = TorchBuild(version=version)
        return invitation("native-lib-missing", distributions={"torch": "2.8.0"}, torch=torch)

    found = mixed("2.13.0+cpu").seen
    assert "2.13.0" in found
    assert "2.8.0" in found
    assert mixed("2.8.0+cpu") is None


@pytest.mark.parametrize(
    ("power", "severity"),
    [
        (Power(on_battery=False), None),
        (Power(on_battery=False, sleep_after_minutes=10), "note"),
        (Power(on_battery=False, low_power_mode=True), "note"),
        (Power(on_battery=True, low_power_mode=True), "warning"),
    ],
)
def test_sleeping_or_power_saving_mac_is_reported(power, severity):
    invited = invitation("machine-sleep", power=power)
    assert (invited.severity if invited else None) == severity
    assert ("Low Power Mode" in invited.seen if invited else False) == power.low_power_mode


def test_malware_blocks():
    invited = invitation("package-malicious", distributions={"lightning": "2.6.3"})
    assert invited is not None
    assert invited.severity == "blocker"
    assert invitation("package-malicious", distributions={"lightning": "2.6.6"}) is None


def test_too_many_threads_suggest_a_fitting_number():
    invited = invitation("thread-oversubscription", Plan(threads=30), cpu_count=2)
    assert invited is not None
    assert invited.remedies[0].change == {"threads": 2, "OMP_NUM_THREADS": "2"}
    assert invitation("thread-oversubscription", Plan(threads=2), cpu_count=2, cpu_count_physical=2) is None


def test_tokenizers_guard_is_off_only_if_variable_is_true():
    def variable(value: str) -> Variable:
        return Variable(name="TOKENIZERS_PARALLELISM", value=value, effect="")

    assert invitation("tokenizers-fork", variables=(variable("true"),)) is not None
    assert invitation("tokenizers-fork", variables=(variable("false"),)) is None


def test_forking_mac_is_warned_spawning_mac_is_not():
    assert invitation("fork-objc", os="macos", start_method="fork") is not None
    assert invitation("fork-objc", os="macos", start_method="spawn") is None
    assert invitation("fork-objc", os="linux", start_method="fork") is None


def test_rosetta_old_processors_little_memory_and_few_files_are_seen():
    assert invitation("arch-mismatch", os="macos", is_rosetta=True) is not None
    assert invitation("illegal-instruction", os="linux", arch="x86_64", cpu_flags=("sse4_2",)) is not None
    assert invitation("illegal-instruction", os="linux", arch="x86_64", cpu_flags=("avx", "avx2")) is None
    assert invitation("host-oom", memory_bytes=16_000_000_000, memory_free_bytes=1_000_000_000) is not None
    assert invitation("host-oom", memory_bytes=32_000_000_000, memory_free_bytes=20_000_000_000) is None
    assert invitation("too-many-open-files", open_file_limit=256) is not None
    assert invitation("too-many-open-files", open_file_limit=65536) is None


def test_cpu_plan_with_a_gpu_is_reported():
    gpus = (Gpu(name="Apple M2", kind="mps"),)
    distributions = {"torch": "2.13.0"}
    invited = invitation("slow-cpu-training", Plan(device="cpu"), gpus=gpus, distributions=distributions)
    assert invited is not None
    assert invitation("slow-cpu-training", gpus=gpus, distributions=distributions) is None


def test_missing_gpu_is_reported_for_machines_only():
    distributions = {"torch": "2.13.0"}
    assert invitation("slow-cpu-training", cpu_count=8, distributions=distributions).severity == "note"
    assert invitation("slow-cpu-training", distributions=distributions) is None
