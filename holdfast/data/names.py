"""Usual names of columns, by role. Earlier names win over later ones."""

import re

TEXT = (
    "text", "sentence", "review", "content", "abstract", "body", "comment", "comment_text", "review_text", "reviewtext",
    "tweet", "tweet_text", "message", "utterance", "document", "article", "description", "clean_text", "full_text",
    "summary", "title", "headline", "question", "query", "input", "x", "sms", "email", "post", "snippet", "narrative",
)  # fmt: skip
LABEL = (
    "label", "labels", "target", "class", "category", "categories", "label_text", "label_name", "sentiment", "intent",
    "topic", "topics", "tags", "tag", "genre", "genres", "classes", "emotion", "emotions", "class_label",
    "coarse_label", "diagnosis", "subject", "rating", "stars", "polarity", "toxic", "is_toxic", "spam", "is_spam", "y",
    "output", "class_index", "class_id", "label_id", "label_idx", "category_id", "category_name", "is_duplicate",
)  # fmt: skip
# Used as labels only when nothing better is there, because they are as often something else.
WEAK_LABEL = ("rating", "stars", "subject", "y", "output", "diagnosis", "toxic", "is_toxic", "spam", "is_spam")
GROUP = (
    "article_id", "document_id", "doc_id", "docid", "abstract_id", "group_id", "group", "patient_id", "subject_id",
    "conversation_id", "thread_id", "user_id", "source_id", "pmid", "pmcid", "page_id",
)  # fmt: skip
SPLIT = ("split", "fold", "subset", "set", "partition")
SPLIT_VALUES = {
    "train": "train", "training": "train", "val": "validation", "valid": "validation", "validation": "validation",
    "dev": "validation", "development": "validation", "eval": "validation", "test": "test", "testing": "test",
}  # fmt: skip

INSTRUCTION = ("instruction", "instructions")
CONTEXT = ("input", "context")
PROMPT = ("prompt", "question", "instruction", "input", "source")
ANSWER = ("output", "completion", "response", "answer", "target", "chosen", "reply", "text")
SYSTEM = ("system", "system_prompt")
MESSAGES = ("messages", "conversations", "conversation", "dialog", "dialogue", "turns", "chat")
REJECTED = ("rejected",)

QUERY = ("query", "anchor", "question", "queries", "q", "sentence1", "question1", "sentence_a", "text1",
         "sent1", "premise", "claim")  # fmt: skip
POSITIVE = (
    "positive", "pos", "positives", "positive_passages", "positive_ctxs", "passage", "passages", "document", "doc",
    "context", "answer", "sentence2", "question2", "sentence_b", "text2", "sent2", "hypothesis",
)  # fmt: skip
NEGATIVE = (
    "negative", "neg", "negatives", "hard_negatives", "hard_negative", "negative_passages", "hard_negative_ctxs",
    "negative_ctxs", "near_misses", "near_miss",
)  # fmt: skip
SCORE = ("score", "similarity", "similarity_score", "relatedness_score", "relevance")
IDENTITY = ("_id", "id", "idx", "index", "uid", "guid", "uuid", "key", "row", "no", "nr", "number", "unnamed:_0")

ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "chatgpt": "assistant",
         "bot": "assistant", "model": "assistant", "system": "system", "tool": "tool", "function": "tool"}  # fmt: skip

# Names that are as often a value, so they do not mark a header.
_ALSO_VALUES = frozenset((
    "no", "nr", "x", "y", "q", "set", "number", "key", "row", "spam", "toxic", "subject", "source", "system", "model",
    "group", "index", "human", "chat", "post", "email", "output", "input",
))  # fmt: skip
_ALL = frozenset().union(
    TEXT, LABEL, GROUP, SPLIT, INSTRUCTION, CONTEXT, PROMPT, ANSWER, SYSTEM, MESSAGES, REJECTED, QUERY, POSITIVE,
    NEGATIVE, SCORE, IDENTITY,
) - _ALSO_VALUES  # fmt: skip


def plain_name(name: str) -> str:
    """A column name in the form of these lists: `Review Text` is `review_text`."""
    return re.sub(r"[\s\-]+", "_", name.strip().strip("\"'").lower())


def is_known(name: str) -> bool:
    """Whether a cell is a usual column name and hardly ever a value."""
    return plain_name(name) in _ALL or (is_identity(name) and plain_name(name) not in _ALSO_VALUES)


def is_identity(name: str) -> bool:
    """Whether the name of a column says that it identifies rows or things."""
    plain = plain_name(name)
    if plain in LABEL:
        return False
    return plain in IDENTITY or plain.endswith(("_id", "_no", "_index", "_idx")) or plain in ("pmid", "pmcid", "doi")


def find(names: tuple[str, ...], columns: tuple[str, ...]) -> str | None:
    """The column with the first of these names, in its own spelling."""
    by_plain: dict[str, str] = {}
    for column in columns:
        by_plain.setdefault(plain_name(column), column)
    return next((by_plain[name] for name in names if name in by_plain), None)


def find_all(names: tuple[str, ...], columns: tuple[str, ...]) -> tuple[str, ...]:
    """Every column with one of these names, also numbered ones (`negative_2`), in the order of the table."""
    return tuple(column for column in columns if re.sub(r"_?\d+$", "", plain_name(column)) in names)
