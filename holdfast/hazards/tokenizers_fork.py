"""The fast tokenizer was used before a fork, so its threads are missing in the child.

What you see: "The current process just got forked, after parallelism has already been used"; a worker that stops inside
`encode_batch`, with `rayon_core` in its native stack.
Why: the tokenizer's Rust threads exist only in the parent. By default, tokenizers detects the fork, warns and continues
with one thread. TOKENIZERS_PARALLELISM=true turns that guard off, and the child waits forever.
What we do: set TOKENIZERS_PARALLELISM=false for the child, and tokenize before any worker starts.
"""

from holdfast.core.evidence import Evidence, Passage
from holdfast.core.facts import MachineFacts
from holdfast.core.plan import Plan, Remedy
from holdfast.hazards import HUNG, Case, Hazard, Invited, ended_by, judged, proves, seen, suggests

_NOTICE = seen("log", r"process just got forked|Disabling parallelism to avoid deadlocks")
_WENT_ON = seen("log", r"train_runtime|[Tt]raining (?:complete|finished)|Finished training|TrainOutput\(")
_ONE_THREAD = Remedy(
    "tokenize on one thread per process", change={"TOKENIZERS_PARALLELISM": "false"}, cost="slower tokenizing"
)


def invited_by(facts: MachineFacts, plan: Plan) -> Invited | None:
    """Say why this machine and plan invite the hazard; None when they do not."""
    for variable in facts.variables:
        if variable.name == "TOKENIZERS_PARALLELISM" and variable.value.lower() in ("true", "1", "yes", "on"):
            told = f"TOKENIZERS_PARALLELISM={variable.value} turns off the fork guard"
            return Invited(told, "note", (_ONE_THREAD,), variables=(variable.name,))
    return None


def _noticed_and_nothing_else(evidence: Evidence) -> Passage | None:
    """The tokenizer's notice, in a run that did not fail of something else and is not known to have continued."""
    if evidence.errors or _WENT_ON.find(evidence):
        return None
    return _NOTICE.find(evidence)


HAZARD = Hazard(
    slug="tokenizers-fork",
    title="the fast tokenizer was used before a fork",
    kind="hang",
    invited_by=invited_by,
    over=("dataloader-deadlock", "thread-deadlock"),
    signs=(
        judged("proves", _noticed_and_nothing_else),
        # Also as a mangled name: 10rayon_core5latch.
        proves("frame", r"rayon_core(?:::|\d)(?:latch|registry|job|join|scope)|rayon::iter", also=(HUNG,)),
        suggests("frame", r"rayon_core::|LockLatch", unless=(ended_by(),)),
        suggests("log", r"process just got forked", also=(HUNG,)),
        suggests("log", r"(?i)TOKENIZERS_PARALLELISM['\"\]]*\s*[=:]\s*['\"]?(?:true|1)\b", also=(HUNG,)),
        suggests(
            "frame",
            r"(?:_?batch_encode_plus|_encode_plus|encode_batch\w*|encode) \(.*(?:tokenization_\w*fast|tokenization_utils_tokenizers|tokenizers[/\\])",
            also=(HUNG,),
        ),
    ),
    remedies=(
        _ONE_THREAD,
        Remedy("load data in the main process", change={"loader_workers": 0}, cost="slower input"),
        Remedy(
            "tokenize once before training, not in the loader's workers",
            command="dataset = dataset.map(tokenize, batched=True)",
        ),
    ),
    sources=(
        "huggingface/tokenizers#187",
        "huggingface/tokenizers#258",
        "NVIDIA-NeMo/Megatron-Bridge#5328",
        "sillsdev/silnlp#316",
        "allenai/allennlp#4330",
    ),
    matches=(
        "huggingface/tokenizers: The current process just got forked, after parallelism has already been used. Disabling parallelism to avoid deadlocks...",
        Case("export TOKENIZERS_PARALLELISM=true\nEpoch 0:   0%|          | 0/1200 [00:00<?, ?it/s]", "hang"),
        Case(
            "#3  0x00007f01 in std::sys::sync::condvar::futex::Condvar::wait () from tokenizers.abi3.so\n#4  0x00007f02 in rayon_core::latch::LockLatch::wait_and_reset () from tokenizers.abi3.so\n",
            "hang",
        ),
        Case(
            'Thread 99 (idle): "MainThread"\n    _batch_encode_plus (transformers/tokenization_utils_fast.py:428)\n    __getitem__ (train.py:30)\n    _worker_loop (torch/utils/data/_utils/worker.py:308)\n',
            "hang",
        ),
        Case(
            "huggingface/tokenizers: The current process just got forked, after parallelism has already been used. Disabling parallelism to avoid deadlocks...\nstep 1",
            "hang",
        ),
    ),
    near_misses=(
        "huggingface/tokenizers: The current process just got forked, after parallelism has already been used. Disabling parallelism to avoid deadlocks...\n"
        "Traceback (most recent call last):\n  File \"train.py\", line 3, in <module>\nKeyError: 'text'",
        Case(
            "huggingface/tokenizers: The current process just got forked, after parallelism has already been used. Disabling parallelism to avoid deadlocks...\n"
            "{'train_runtime': 494.8, 'train_samples_per_second': 9.1, 'train_loss': 0.18, 'epoch': 1.0}",
            "0",
        ),
        "error: can't find Rust compiler",
    ),
    reproduced_by="tests/lab/test_evidence.py",
)
