"""What is kept of every example while a dataset is read: numbers in flat arrays, about 40 bytes an example."""

from array import array
from collections import Counter
from collections.abc import Callable, Sequence

from holdfast.core.facts import Lengths, LengthUnit
from holdfast.data.examples import Example, content_hash
from holdfast.data.label_forms import in_order

# Tokens are counted in all texts, or in a sample chosen by content where there are more than this.
SAMPLED_TEXTS = 20_000
SAMPLED_CHARACTERS = 30_000_000
_MASK = (1 << 64) - 1
_FEW_SPACES = 15  # characters per word, from which a text has no spaces between words, as in Chinese

# The parts of an example, as their lengths are reported.
ROLE_OF_PART = {
    "text": "text", "system": "prompt", "user": "prompt", "tool": "prompt", "assistant": "answer",
    "query": "query", "positive": "passage", "negative": "passage", "passage": "passage",
}  # fmt: skip


class Tally:
    """Collects one number of each kind for every example, in reading order."""

    def __init__(self, *, keep_sample: bool = False) -> None:
        self._keep_sample = keep_sample
        self.keys = array("Q")  # content that must stay in one split
        self.wholes = array("Q")  # the whole example
        self._labels = array("i")  # of all examples, one after the other
        self._label_starts = array("Q", (0,))
        self.splits = bytearray()  # number of the split
        self.rows = array("Q")  # the line or number of the row in its file
        self.label_numbers: dict[str, int] = {}
        self.label_counts: Counter[int] = Counter()
        self.unlabeled = 0
        self.replaced = 0  # texts with U+FFFD, which replaces lost letters
        self.lengths: dict[str, TextLengths] = {}

    def __len__(self) -> int:
        return len(self.keys)

    def add(self, example: Example, split: int, row: int) -> None:
        """Remember one example."""
        hashes = [content_hash(text) for _, text in example.parts]
        if example.group or example.key is not example.parts[0][1]:
            self.keys.append(content_hash(example.group or example.key))
        else:
            self.keys.append(hashes[0])
        self.wholes.append(hash((*hashes, *example.labels)) & _MASK)
        self._add_labels(example.labels)
        self.splits.append(split)
        self.rows.append(row)
        for part, text in example.parts:
            role = ROLE_OF_PART[part]
            if role not in self.lengths:
                self.lengths[role] = TextLengths(keep_sample=self._keep_sample)
            self.lengths[role].add(text)
            if "\ufffd" in text:
                self.replaced += 1

    def labels_of(self, at: int) -> "array[int]":
        """The numbers of one example's labels."""
        return self._labels[self._label_starts[at] : self._label_starts[at + 1]]

    def classes(self) -> "array[int]":
        """The label to stratify each example by: its rarest one, so that rare labels are spread over the splits."""
        names = in_order(self.label_numbers)
        by_rarity = sorted(names, key=lambda name: self.label_counts[self.label_numbers[name]])
        rank = {self.label_numbers[name]: at for at, name in enumerate(by_rarity)}
        return array("i", (min((rank[number] for number in self.labels_of(at)), default=-1) for at in range(len(self))))

    def _add_labels(self, labels: tuple[str, ...]) -> None:
        numbers = [self.label_numbers.setdefault(label, len(self.label_numbers)) for label in labels]
        self.label_counts.update(numbers)
        self._labels.extend(numbers)
        self._label_starts.append(len(self._labels))
        self.unlabeled += not numbers


class TextLengths:
    """Lengths of the texts of one role, and a sample of them to count tokens in."""

    def __init__(self, *, keep_sample: bool) -> None:
        self._words = array("I")
        self._characters = array("I")
        self._sample: dict[int, str] | None = {} if keep_sample else None
        self._sample_characters = 0
        self._below = 1 << 64
        self.token_counts = array("I")

    def add(self, text: str) -> None:
        """Measure one text."""
        self._words.append(len(text.split()))
        self._characters.append(len(text))
        if self._sample is not None:
            self._keep(text, self._sample)

    def _keep(self, text: str, sample: dict[int, str]) -> None:
        mark = content_hash(text)
        if mark >= self._below or mark in sample:
            return
        sample[mark] = text
        self._sample_characters += len(text)
        while len(sample) > SAMPLED_TEXTS or (self._sample_characters > SAMPLED_CHARACTERS and len(sample) > 1):
            self._below //= 2
            for gone in [mark for mark in sample if mark >= self._below]:
                self._sample_characters -= len(sample.pop(gone))

    @property
    def sample(self) -> list[str]:
        """Texts to count tokens in, chosen by their content."""
        return list((self._sample or {}).values())

    def in_tokens(self, count: Callable[[Sequence[str]], "array[int]"], limit: int | None) -> Lengths:
        """The lengths in tokens of all texts, or of a sample where there are very many."""
        self.token_counts = count(self.sample)
        return summarize("tokens", self.token_counts, limit, is_sample=self._below < 1 << 64)

    @property
    def longest_characters(self) -> int:
        """Characters of the longest text."""
        return max(self._characters, default=0)

    def share_over(self, limit: int) -> float:
        """The share of texts with more tokens than this, once they are counted."""
        return sum(count > limit for count in self.token_counts) / max(1, len(self.token_counts))

    def summary(self) -> Lengths:
        """The lengths in words, or in characters where words are not separated by spaces."""
        unit, counts = self._measured()
        return summarize(unit, counts)

    def histogram(self, bars: int = 24) -> list[tuple[int, int]]:
        """The shortest length and the number of texts of each bar; the last bar includes the longest 1%."""
        _, counts = self._measured()
        highest = sorted(counts)[round((len(counts) - 1) * 0.99)]
        width = highest // bars + 1
        found = Counter(min(count, highest) // width for count in counts)
        return [(at * width, found[at]) for at in range(highest // width + 1)]

    def _measured(self) -> "tuple[LengthUnit, array[int]]":
        if sum(self._characters) > _FEW_SPACES * sum(self._words):
            return "characters", self._characters
        return "words", self._words


def summarize(unit: LengthUnit, counts: "array[int]", limit: int | None = None, *, is_sample: bool = False) -> Lengths:
    """Median, mean and highest percentiles of some lengths."""
    ordered = sorted(counts)
    last = len(ordered) - 1
    return Lengths(
        unit=unit,
        median=(ordered[last // 2] + ordered[(last + 1) // 2]) / 2,
        mean=round(sum(ordered) / len(ordered), 1),
        p95=ordered[round(last * 0.95)],
        p99=ordered[round(last * 0.99)],
        longest=ordered[-1],
        measured=len(ordered),
        is_sample=is_sample,
        limit=limit,
        over_limit=sum(count > limit for count in ordered) if limit else 0,
    )
