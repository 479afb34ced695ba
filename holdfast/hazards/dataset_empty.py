"""The dataset has nothing to train on.

What you see: "num_samples should be a positive integer value, but got num_samples=0", "Found 0 files in subfolders",
"No labels found", or a division by the number of batches.
Why: the folder is wrong or arranged differently from what the program expects, every row was dropped by a filter, the
split does not exist, or packing needs more text than there is for one block.
What we do: `holdfast survey DATA` counts the usable rows before anything is loaded.
"""

from holdfast.core.plan import Remedy
from holdfast.hazards import Hazard, proves, seen, suggests

HAZARD = Hazard(
    slug="dataset-empty",
    title="the dataset has nothing to train on",
    kind="error",
    signs=(
        proves("error", r"num_samples should be a positive integer value, but got num_samples=0"),
        proves(
            "error",
            r"Found (?:0|no) (?:\w+ ){0,2}(?:files?|images?|samples?|examples?|rows?)\b[^\n]* (?:in|at|under)\b",
        ),
        proves(
            "error",
            r"(?i)\b(?:train(?:ing)?[ _]?(?:data)?(?:set)?|eval(?:uation)?[ _]?(?:data)?set|data(?:set|loader)?)`?\b[^\n]{0,40}\b(?:is empty|has (?:no|0|zero) (?:rows|samples|examples|data|elements|length)|(?:has|of) (?:length|size) 0|contains no (?:valid |usable |training )?(?:rows|samples|examples|data|elements|records|images|files))\b",
        ),
        suggests(
            "error",
            r"(?i)\bno (?:valid |usable |training |matching )?(?:labels?|images?|samples?|examples?|annotations?|audio files|data files|training data|records)(?: or \w+)? (?:were |was |are )?(?:found|left|available|remain)",
        ),
        suggests(
            "error",
            r"(?i)\b(?:all|every) (?:\w+ ){0,3}(?:samples?|examples?|rows?)\b[^\n]{0,40}\b(?:filtered|dropped|removed|skipped|longer than)",
        ),
        suggests(
            "error",
            r"must have at least one (?:example|sample|row|document)|need at least one array to (?:concatenate|stack)",
        ),
        suggests(
            "error",
            r"Instruction \"[^\"]+\" corresponds to no data|Unknown split \"|Couldn't find any data file|[Nn]o data files? (?:were )?found",
        ),
        suggests(
            "error",
            r"ZeroDivisionError: (?:integer |float )?(?:division|modulo)",
            also=(seen("log", r"/ ?(?:\(?len\(|num_batches|n_batches|steps_per_epoch|total_samples|num_samples)"),),
        ),
    ),
    remedies=(
        Remedy("count what the program can see", command="holdfast survey DATA", cost="none"),
        Remedy(
            "print the number of rows after each step of the preparation, and correct the path, the split or the filter",
            command="print(len(dataset))",
        ),
        Remedy(
            "for packed text: use a shorter block than the text you have",
            command="python train.py --block_size 128",
            cost="shorter contexts",
            keeps=False,
        ),
    ),
    sources=(
        "ga642381/FastSpeech2#7",
        "dulucas/siMLPe#2",
        "okankop/Efficient-3DCNNs#17",
        "sicara/easy-few-shot-learning#162",
    ),
    matches=(
        "ValueError: Unknown split \"dev\". Should be one of ['train', 'test'].",
        '  File "/venv/lib/python3.11/site-packages/torch/utils/data/sampler.py", line 165, in __init__\n    raise ValueError(\n'
        "ValueError: num_samples should be a positive integer value, but got num_samples=0",
        "FileNotFoundError: Found no valid file for the classes cat, dog. Supported extensions are: .jpg, .jpeg, .png\nRuntimeError: Found 0 files in subfolders of: data/train",
        "ValueError: The train dataset is empty after filtering.",
        "AssertionError: train: No labels found in /data/labels.cache, can not start training.",
        "ValueError: all samples were filtered out because they are longer than max_seq_length",
        "ValueError: need at least one array to concatenate",
        "    epoch_loss = total / len(train_loader)\nZeroDivisionError: float division by zero",
    ),
    near_misses=(
        "ZeroDivisionError: division by zero",
        "IndexError: list index out of range",
        "FileNotFoundError: [Errno 2] No such file or directory: 'data/train.csv'",
        "ValueError: The dataset contains no column named 'label'",
        "UserWarning: no labels found in 3 of 5000 images, they are used as background",
    ),
)
