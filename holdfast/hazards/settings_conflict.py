"""Two settings of the run contradict each other, and the training library refuses to start.

What you see: "train_batch_size is not equal to micro_batch_per_gpu * gradient_acc_step * world_size 32 != 4 * 1 * 4",
"--load_best_model_at_end requires the save and eval strategy to match", "max_steps has to be specified".
Why: the same thing is set in two places (a DeepSpeed file and the arguments, a save and an evaluation interval), or
several settings must be multiples of each other and one of them was changed, such as the number of GPUs.
What we do: name the rule that the library checks. `holdfast train` derives such settings from one another.
"""

from holdfast.core.plan import Remedy
from holdfast.hazards import Hazard, proves, suggests

HAZARD = Hazard(
    slug="settings-conflict",
    title="two settings of the run contradict each other",
    kind="error",
    signs=(
        proves(
            "error",
            r"train_batch_size is not equal to micro_batch|DeepSpeed config values that mismatch|Do not set `\w+` in the DeepSpeed config",
        ),
        proves(
            "error",
            r"--?\w+ requires the (?:save|eval\w*)[^\n]{0,40} to match|requires the saving steps to be a (?:round )?multiple",
        ),
        proves(
            "error",
            r"does not implement __len__, max_steps has to be specified|max_steps (?:must|needs to) be (?:set|given|specified)",
        ),
        proves(
            "error",
            r"(?i)\bbatch[ _]size\b[^\n]{0,60}(?:must|should|has to|needs to) be (?:evenly )?(?:divisible by|a multiple of)",
        ),
        proves(
            "error",
            r"(?i)(?:at most one of|only one of|can ?not (?:both )?be (?:used|set|enabled|true) (?:together|at the same time)|mutually exclusive|(?:can ?not|can't|do not|don't|must not|should not) [^\n]{0,30}\bboth)\b[^\n]{0,80}(?:fp16|bf16|max_steps|quantiz|load_in_[48]bit|deepspeed|fsdp)",
        ),
        suggests(
            "error",
            r"(?i)[`'\"-]\w+[`'\"]? (?:is not compatible|is incompatible|cannot be used|can't be used) (?:with|together with) [`'\"-]{0,2}\w+",
        ),
    ),
    remedies=(
        Remedy(
            "leave the DeepSpeed file's batch sizes to the arguments",
            command='deepspeed config: {"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto"}',
        ),
        Remedy(
            "save and evaluate at the same interval",
            command="TrainingArguments(eval_strategy='steps', save_strategy='steps', eval_steps=100, save_steps=100)",
        ),
        Remedy("give a streamed dataset a number of steps", command="TrainingArguments(max_steps=1000)"),
    ),
    sources=(
        "deepspeedai/DeepSpeed#6914",
        "CASIA-LMC-Lab/AnomalyGPT#19",
        "sahil280114/codealpaca#14",
        "Lightning-AI/pytorch-lightning#19891",
    ),
    matches=(
        "AssertionError: Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * gradient_acc_step * world_size 32 != 4 * 1 * 4",
        "ValueError: --load_best_model_at_end requires the save and eval strategy to match, but found\n- Evaluation strategy: steps\n- Save strategy: epoch",
        "ValueError: The train_dataset does not implement __len__, max_steps has to be specified.",
        "ValueError: The global eval batch size (4 * 1) must be divisible by the number of generations per prompt (8).\nValueError: global batch size must be divisible by 8",
        "ValueError: At most one of fp16 and bf16 can be True, but not both",
        "ValueError: `packing` cannot be used with `padding_free`",
    ),
    near_misses=(
        "RuntimeError: expected both inputs of the product to be bf16, but found float and bf16",
        "RuntimeError: shape '[2, -1, 32, 128]' is invalid for input of size 8192",
        "ValueError: Expected input batch_size (8) to match target batch_size (4096).",
    ),
)
