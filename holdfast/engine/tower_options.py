"""The two-tower task's own options, read from the settings."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.core.errors import RequestError
from holdfast.engine.mining import Mining


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorShape:
    """A light tower over given vectors."""

    size: int = 0  # of an embedding; 0: that of the vectors
    hidden: int = 0  # of the layer beside the projection; 0: none
    dropout: float = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerOptions:
    """What is learned, and from which negatives."""

    towers: str = "shared"  # "shared" | "separate"
    temperature: float | None = None  # None: that of the model started from, otherwise 0.05
    learn_temperature: bool = False
    symmetric: bool = False  # passages also look for their query
    same_article: str = "masked"  # "masked" | "negative": passages of the answer's article, in a step and in mining
    negatives: int = 1  # given near-misses that an example brings into a step
    mining: Mining | None = None
    vectors: VectorShape = VectorShape()


def read_options(given: Mapping[str, object]) -> TowerOptions:
    """Read the options; unknown names and impossible values are refused, all at once."""
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
        problems.append(f"mining looks at ranks {options.mining.first_rank} to {options.mining.last_rank}; none")
    if problems:
        raise RequestError("the two-tower options cannot be used", seen="; ".join(problems))
    return options


def _known(kind: Any, given: Any, where: str, problems: list[str]) -> dict[str, Any]:
    names = [field.name for field in dataclasses.fields(kind)]
    problems += [f"{where}{name} is unknown; known: {', '.join(names)}" for name in given if name not in names]
    return {name: value for name, value in given.items() if name in names}
