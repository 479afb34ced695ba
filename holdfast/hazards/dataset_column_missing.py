"""The data lacks a column, a key or a format that the program reads.

What you see: "Column train not in the dataset. Current columns in the dataset: [...]", "KeyError: 'text'" inside
datasets, trl or pandas, or "unknown role" for a chat.
Why: the program was written for another dataset: its columns have other names, the records are nested differently, or
the roles of a chat are "human" and "gpt" where "user" and "assistant" are expected.
What we do: `holdfast survey DATA` lists the columns and roles that are there. Rename them, or tell the trainer their
names.
"""

from holdfast.core.evidence import Evidence, Passage
from holdfast.core.plan import Remedy
from holdfast.hazards import Hazard, judged, proves, suggests
from holdfast.hazards.tracebacks import exceptions, owner_of

_READERS = ("datasets", "pandas", "pyarrow", "polars", "trl", "autotrain", "axolotl", "llamafactory", "swift")
_CHAT_KEYS = ("'messages'", "'conversations'", "'conversation'", "'role'", "'from'", "'content'", "'value'", "'prompt'",
              "'completion'", "'chosen'", "'rejected'", "'instruction'", "'output'", "'text'")  # fmt: skip


def _reader_misses_key(evidence: Evidence) -> Passage | None:
    """A KeyError that a library for tables or chats raised: the record has no such column."""
    for raised, passage in exceptions(evidence, "KeyError"):
        owners = [owner_of(frame.module) for frame in raised.frames if frame.module]
        if owners and owners[0] in _READERS:
            return passage
        if raised.message in _CHAT_KEYS and ("datasets" in owners or "trl" in owners):
            return passage
    return None


HAZARD = Hazard(
    slug="dataset-column-missing",
    title="the data does not have the columns or the format that the program reads",
    kind="error",
    signs=(
        suggests("error", r"Columns? (?:to \w+ |name )?\[?['\"]?[^\n]{1,80} not in the dataset"),
        proves(
            "error",
            r"Column name \[?'[^\n]{1,80}\]? not in the dataset|does not (?:have|contain) (?:a|the) column (?:named )?['\"`]",
        ),
        proves(
            "error",
            r"None of \[[^\n]{1,200}\] are in the \[(?:columns|index)\]|not in index\"?$|Usecols do not match columns",
        ),
        proves("error", r"--\w*column\w*'? [^\n]{0,60}needs to be one of"),
        suggests(
            "error",
            r"(?i)(?:unknown|invalid|unexpected|unsupported) (?:role|sender|speaker|(?:chat|conversation|data(?:set)?) format)\b|roles? must be (?:one of|either)|role tag",
        ),
        suggests(
            "error", r"(?i)dataset (?:should|must) (?:have|contain|be in)[^\n]{0,80}(?:columns?|fields?|keys?|format)"
        ),
        suggests(
            "error", r"need to (?:specify|provide|pass)[^\n]{0,40}(?:dataset_text_field|formatting_func|text_column)"
        ),
        judged("suggests", _reader_misses_key),
    ),
    remedies=(
        Remedy("list the columns, the roles and their values", command="holdfast survey DATA", cost="none"),
        Remedy(
            "rename the columns to what the program reads",
            command="dataset = dataset.rename_columns({'question': 'prompt', 'answer': 'completion'})",
        ),
        Remedy("tell the trainer which column holds the text", command="SFTConfig(dataset_text_field='body')"),
    ),
    sources=(
        "unslothai/unsloth#252",
        "simplescaling/s1#39",
        "llSourcell/Doctor-Dignity#22",
        "huggingface/autotrain-advanced#482",
    ),
    matches=(
        "ValueError: You need to specify either `dataset_text_field` or `formatting_func`",
        "ValueError: Column to remove ['idx'] not in the dataset. Current columns in the dataset: ['body', 'topic']",
        "ValueError: The data does not contain the column 'label'",
        "KeyError: \"None of [Index(['abstract'], dtype='object')] are in the [columns]\"",
        "ValueError: --text_column' value 'summary' needs to be one of: body, topic",
        "ValueError: Unknown role 'bot' in message 3",
        "ValueError: The dataset must contain the columns `prompt` and `completion`.",
        '  File "/venv/lib/python3.11/site-packages/trl/trainer/sft_trainer.py", line 1012, in tokenize_fn\n    output = {"input_ids": processing_class(text=example["text"])["input_ids"]}\n'
        "  File \"/venv/lib/python3.11/site-packages/datasets/formatting/formatting.py\", line 280, in __getitem__\n    value = self.data[key]\nKeyError: 'text'",
    ),
    near_misses=(
        '  File "train.py", line 12, in main\n    lr = config["lr"]\nKeyError: \'lr\'',
        "KeyError: 'state_dict'",
        "ValueError: No columns in the dataset match the model's forward method signature: (input_ids).",
    ),
)
