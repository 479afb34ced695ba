"""The options of the two-tower task."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.core.errors import RequestError
from holdfast.engine.mining import Mining


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorShape:
    """A light tower over given vectors."""

    size: int = 0  # of an embedding; 0 for the size of the vectors
    hidden: int = 0  # size of the hidden layer next to the projection; 0 for none
    dropout: float = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerOptions:
    """What is learned, and from which negatives."""

    towers: str = "shared"  # "shared" | "separate"
    temperature: float | None = None  # None: the base model's, or else 0.05
    learn_temperature: bool = False
    symmetric: bool = False  # passages must also find their query
    same_article: str = "masked"  # "masked" | "negative": how passages of the answer's article count
    negatives: int = 1  # given hard negatives per example in a step
    mining: Mining | None = None
    vectors: VectorShape = VectorShape()


def read_options(given: Mapping[str, object]) -> TowerOptions:
    """Read the options; report all unknown names and invalid values at once."""
    problems: list[str] = []
    values = _known(TowerOptions, given, "", problems)
    if values.get("mining") is not None:
        values["mining"] = Mining(**_known(Mining, values["mining"], "mining.", problems))
    if "vectors" in values:
        values["vectors"] = VectorShape(**_known(VectorShape, values["vectors"], "vectors.", problems))
    options = TowerOptions(**values)
    if options.towers not in ("shared", "separate"):
        problems.append(f"towers is {options.towers!r}; allowed: shared, separate")
    if options.same_article not in ("masked", "negative"):
        problems.append(f"same_article is {options.same_article!r}; allowed: masked, negative")
    if options.temperature is not None and not options.temperature >= 0.01:
        problems.append(f"temperature is {options.temperature!r}; allowed: 0.01 and above")
    if options.mining and not 0 <= options.mining.first_rank < options.mining.last_rank:
        problems.append(f"mining has no ranks from {options.mining.first_rank} to {options.mining.last_rank}")
    if problems:
        raise RequestError("invalid two-tower options", found="; ".join(problems))
    return options


def _known(kind: Any, given: Any, where: str, problems: list[str]) -> dict[str, Any]:
    names = [field.name for field in dataclasses.fields(kind)]
    problems += [f"{where}{name} is unknown; known: {', '.join(names)}" for name in given if name not in names]
    return {name: value for name, value in given.items() if name in names}
