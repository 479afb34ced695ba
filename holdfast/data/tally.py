"""What is kept of every example while a dataset is read: numbers in flat arrays, about 40 bytes an example."""

from array import array
from collections import Counter
from collections.abc import Iterable

from holdfast.core.facts import Lengths, LengthUnit
from holdfast.data.examples import Example, content_hash
from holdfast.data.label_forms import in_order

DROPPED = 255  # in place of a split: an example that turned out to be unusable
_MASK = (1 << 64) - 1
_FEW_SPACES = 15  # characters per word, from which a text has no spaces between words, as in Chinese

# The parts of an example, as their lengths are reported.
ROLE_OF_PART = {
    "text": "text", "system": "prompt", "user": "prompt", "tool": "prompt", "assistant": "answer",
    "query": "query", "positive": "passage", "negative": "passage", "passage": "passage",
}  # fmt: skip


class Tally:
    """Collects one number of each kind for every example, in reading order."""

    def __init__(self) -> None:
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
                self.lengths[role] = TextLengths()
            self.lengths[role].add(text)
            if "\ufffd" in text:
                self.replaced += 1

    @property
    def usable(self) -> int:
        """Examples that were not dropped."""
        return len(self) - self.splits.count(DROPPED)

    def drop(self, numbers: Iterable[int]) -> None:
        """Take examples out of every split."""
        for number in numbers:
            self.splits[number] = DROPPED

    def labels_of(self, at: int) -> "array[int]":
        """The numbers of one example's labels."""
        return self._labels[self._label_starts[at] : self._label_starts[at + 1]]

    def label_table(self) -> "tuple[array[int], array[int]]":
        """The numbers of all labels, one example after the other, and where those of each example start."""
        return self._labels, self._label_starts

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
    """Lengths of the texts of one role."""

    def __init__(self) -> None:
        self._words = array("I")
        self._characters = array("I")

    def add(self, text: str) -> None:
        """Measure one text."""
        self._words.append(len(text.split()))
        self._characters.append(len(text))

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


def summarize(unit: LengthUnit, counts: "array[int]", limit: int | None = None) -> Lengths:
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
        limit=limit,
        over_limit=sum(count > limit for count in ordered) if limit else 0,
    )
