"""Lines that look alarming but mean nothing. They are removed before diagnosis, and `explain` lists them."""

from dataclasses import dataclass, replace

from holdfast.core.evidence import Evidence, Passage


@dataclass(frozen=True, slots=True)
class Harmless:
    """A warning that healthy runs print, and why it is not a cause."""

    pattern: str
    why: str
    source: str


HARMLESS = (
    Harmless(
        r"pin_memory' argument is set as true but not supported on MPS",
        "the loader ignores pin_memory on MPS",
        "pytorch/pytorch#131858",
    ),
    Harmless(
        r"Some weights of \w+ were not initialized from the model checkpoint",
        "a new head is expected before fine-tuning",
        "huggingface/sentence-transformers#699",
    ),
    Harmless(
        r"resource_tracker: There appear to be \d+ leaked semaphore",
        "only a trace of a process that was killed; the cause is earlier in the log",
        "pytorch/pytorch#143859",
    ),
    Harmless(
        r"Could not load dynamic library '[^']+'; dlerror|TF-TRT Warning|Cannot dlopen some (?:TensorRT|GPU) libraries",
        "TensorFlow looks for optional libraries and continues without them",
        "TheLastBen/fast-stable-diffusion#1580",
    ),
    Harmless(
        r"cpu_feature_guard\.cc:\d+\] (?:This TensorFlow binary is optimized|Your CPU supports|The TensorFlow library wasn't compiled)",
        "TensorFlow only says which CPU instructions it could use",
        "tensorflow/tensorflow#7778",
    ),
    Harmless(
        r"Failed to load image Python extension",
        "torchvision continues without its own image reader",
        "NixOS/nixpkgs#162286",
    ),
    Harmless(
        r"RuntimeWarning: numpy\.\w+ size changed",
        "a NumPy structure only grew; the error of the same name would stop the import",
        "numpy/numpy#11628",
    ),
    Harmless(
        r"OMP: Info #\d+|Leaking Caffe2 thread-pool after fork",
        "only an informational message from the thread runtime",
        "pytorch/pytorch#57273",
    ),
    Harmless(
        r"Setting OMP_NUM_THREADS environment variable for each process|NumExpr (?:detected|defaulting)",
        "a library only reports how many threads it uses",
        "pytorch/pytorch#22501",
    ),
    Harmless(
        r"Unable to register cu(?:BLAS|DNN|FFT) factory|successful NUMA node read from SysFS had negative value|failed call to cuInit",
        "TensorFlow looks for a card at startup; the run does not depend on it",
        "tensorflow/tensorflow#71791",
    ),
    Harmless(
        r"find_unused_parameters=True was specified in DDP constructor, but did not find any unused parameters",
        "an unnecessary setting that costs a little time",
        "speechbrain/speechbrain#713",
    ),
    Harmless(
        r"Torch was not compiled with flash attention|expandable_segments not supported on this platform",
        "torch automatically uses another kernel or allocator",
        "unslothai/unsloth#1772",
    ),
    Harmless(
        r"Failed to load GPU Faiss: .*Will not load constructor refs",
        "faiss-cpu has no GPU support, which matters only if the code asks for the GPU",
        "facebookresearch/faiss#4194",
    ),
    Harmless(
        r"GradScaler is enabled, but CUDA is not available",
        "mixed precision is turned off on a machine without CUDA",
        "Emmi-AI/noether#21",
    ),
    Harmless(
        r"NCCL WARN Failed to open libibverbs|NET/Plugin\s?: (?:No plugin found|Could not find)",
        "NCCL looks for InfiniBand and plugins and continues without them",
        "pytorch/pytorch#39388",
    ),
    Harmless(
        r"torch\._dynamo hit config\.(?:cache_size|recompile)_limit",
        "torch.compile skips a function that changes too often",
        "pytorch/pytorch#135458",
    ),
    Harmless(
        r"`?use_cache ?= ?True`? is incompatible with gradient checkpointing\. Setting",
        "transformers turns off the cache during training",
        "modelscope/ms-swift#22",
    ),
    Harmless(
        r"You are using `torch\.load` with `weights_only=False`",
        "torch 2.4 and 2.5 only announce the new default in 2.6",
        "pytorch/pytorch#138007",
    ),
    Harmless(
        r"Some weights of the model checkpoint at \S+ were not used when initializing",
        "the old head is dropped, as expected when the task changes",
        "agemagician/ProtTrans#40",
    ),
    Harmless(
        r"Setting `pad_token_id` to `eos_token_id`|Removed shared tensor [^\n]* while saving\. This should be OK",
        "the library reports an automatic change, which is correct",
        "huggingface/transformers#12020",
    ),
    Harmless(
        r"tokenizer class you load from this checkpoint is not the same type|default legacy behaviour of the <class",
        "only about names; the tokens do not change",
        "tloen/alpaca-lora#31",
    ),
    Harmless(
        r"Error verifying Hugging ?Face token\. Remember to log in",
        "a login is needed only for gated models",
        "axolotl-ai-cloud/axolotl#1153",
    ),
    Harmless(
        r"on the MPS backend and will fall back to run on the CPU",
        "that one operation runs on the CPU: slower, same result",
        "pytorch/pytorch#77764",
    ),
    Harmless(
        r"MPS: no support for \w+ \w[\w ]*, (?:down)?casting",
        "the value is converted before the operation",
        "xverse-ai/XVERSE-13B#15",
    ),
    Harmless(
        r"A matching Triton is not available|Error caught was: No module named 'triton'",
        "xformers continues without that optimization",
        "vllm-project/vllm#424",
    ),
    Harmless(
        r"can only (?:test|join) a child process",
        "a loader object was deleted in a different process than its own; nothing is lost",
        "pytorch/pytorch#149837",
    ),
)


def set_aside(evidence: Evidence) -> tuple[Evidence, tuple[tuple[Passage, Harmless], ...]]:
    """Remove the harmless lines from a log and its errors, and return them."""
    found = [(passage, known) for known in HARMLESS for _, passage in evidence.log.search(known.pattern)]
    if not found:
        return evidence, ()
    texts: dict[int, list[str]] = {}
    for passage, _ in found:
        texts.setdefault(passage.line, []).append(passage.text)

    def is_harmless(passage: Passage) -> bool:
        # A redrawn or very long line of the file is split into several parts; the other parts may hold the cause.
        return any(passage.text in text for text in texts.get(passage.line, ()))

    cleaned = replace(evidence, log=evidence.log.without(is_harmless), errors=evidence.errors.without(is_harmless))
    return cleaned, tuple(sorted(found, key=lambda pair: pair[0].line))
