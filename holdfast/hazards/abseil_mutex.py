"""Two libraries bundle different generations of protobuf, and one takes the other's lock.

What you see: the process stops forever after "[mutex.cc : 452] RAW: Lock blocking", or aborts with "mutex lock failed:
Invalid argument". Often TensorFlow was installed but never imported.
Why: on macOS both copies share one weak symbol that holds a mutex. Old protobuf stores a `std::mutex` there, new
protobuf an `absl::Mutex`. The import order only decides whether the process hangs or aborts.
What we do: keep TensorFlow out of the training process, and name the versions that no longer share the symbol.
"""

from holdfast.core.facts import MachineFacts
from holdfast.core.plan import Plan, Remedy
from holdfast.hazards import HUNG, Case, Hazard, Invited, proves, seen, suggests

_BLOCKED = r"mutex\.cc\s*:\s*\d+\]?\s*RAW: Lock blocking"


def invited_by(facts: MachineFacts, plan: Plan) -> Invited | None:
    """Say why this machine and plan invite the hazard; None when they do not."""
    clashes = [
        pair for pair in facts.conflicts if pair.runtime == "protobuf" and pair.outcome in ("hang", "abort", "crash")
    ]
    if not clashes:
        return None
    orders = "; ".join(f"{pair.first} then {pair.second}: {pair.outcome}, {pair.because}" for pair in clashes)
    # transformers 4 imports TensorFlow if it is installed, after datasets has imported pyarrow.
    meets_it_anyway = facts.has_below("transformers", "5") and "tensorflow" in facts.distributions
    return Invited(orders, "blocker" if meets_it_anyway else "warning")


HAZARD = Hazard(
    slug="abseil-mutex",
    title="two protobuf copies in one process took each other's lock",
    kind="hang",
    invited_by=invited_by,
    signs=(
        # Healthy programs that end at once print the line too; only with a hang does it prove anything.
        proves("log", _BLOCKED, also=(HUNG,)),
        suggests("log", _BLOCKED),
        # MLX aborts with the same message after its work is done (ml-explore/mlx-examples#706).
        suggests(
            "log",
            r"mutex lock failed: Invalid argument",
            unless=(seen("log", r"\bmlx(?:_lm|\.core|-examples)\b|None of PyTorch, TensorFlow[^\n]* have been found"),),
        ),
        proves(
            "frame",
            r"absl\S*::Mutex::Lock|AbslInternalPerThreadSem|std::__1::mutex::lock|pthread_mutex_lock",
            also=(
                seen("frame", r"google::protobuf::internal::(?:\w*Shutdown|InitProtobufDefaults|\w*AddDescriptors)"),
            ),
        ),
        # A wait inside one library's abseil, called from the protobuf of another.
        suggests(
            "frame",
            r"absl\S*::Mutex::(?:Lock|Block)|AbslInternalPerThreadSem",
            also=(seen("frame", r"google::protobuf::"), seen("frame", r"libtensorflow|_framework\.2")),
        ),
    ),
    remedies=(
        Remedy("keep transformers 4 from loading TensorFlow", change={"USE_TF": "0"}),
        Remedy(
            "install pyarrow and sentencepiece releases without the shared symbol",
            command='pip install -U "pyarrow>=22" "sentencepiece>=0.2.2"',
        ),
        Remedy("remove TensorFlow from the PyTorch environment", command="pip uninstall tensorflow"),
        Remedy("or keep the older generation on both sides", command='pip install "tensorflow<2.20" "pyarrow<22"'),
    ),
    sources=(
        "tensorflow/tensorflow#98563",
        "tensorflow/tensorflow#99464",
        "tensorflow/tensorflow#105870",
        "apache/arrow#40088",
        "protocolbuffers/protobuf#21686",
        "Blaizzy/mlx-vlm#468",
    ),
    matches=(
        Case("[mutex.cc : 452] RAW: Lock blocking 0x600000968138   @", "hang"),
        "I0000 00:00:1758 mutex.cc:452] RAW: Lock blocking 0x60000",
        "libc++abi: terminating due to uncaught exception of type std::__1::system_error: mutex lock failed: Invalid argument\nzsh: abort      python train.py",
        "libc++abi.dylib: terminating with uncaught exception of type std::__1::system_error: mutex lock failed: Invalid argument",
        "* thread #1, stop reason = signal SIGSTOP\n"
        "  frame #1: 0x000000018f2a1c40 libtensorflow_framework.2.dylib`absl::lts_20250127::Mutex::Lock() + 148\n"
        "  frame #2: 0x000000018f2a1d40 libtensorflow_framework.2.dylib`google::protobuf::internal::OnShutdownRun(void (*)(void const*), void const*) + 80",
    ),
    near_misses=(
        "Thread 4 Crashed:\n"
        "0   libsystem_pthread.dylib       0x00007fff206bbd86 pthread_mutex_lock + 4\n"
        "1   libc++.1.dylib                0x00007fff206573d9 std::__1::mutex::lock() + 9\n"
        "2   libarrow.1700.dylib           0x000000011e039212 arrow::fs::FileSystemFactoryRegistry::RegisterFactory() + 82",
        "File already exists in database: google/protobuf/any.proto",
    ),
)
