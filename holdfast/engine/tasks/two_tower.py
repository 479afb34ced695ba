"""Fine-tune two towers, so that a query's embedding is near the passages that answer it and far from all others.

The towers take texts or precomputed vectors; one shared tower or two separate ones. A step's loss is taken over all its
texts at once, however they are split (`contrastive`). Hard negatives can be mined between epochs (`mining`).

B examples of a step, P passages of a step, H size of an embedding.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from holdfast.core.errors import RequestError
from holdfast.core.prepared import Manifest
from holdfast.core.records import MissedQuery, Mistakes
from holdfast.data.shards import require_manifest
from holdfast.engine.attempt_settings import AttemptSettings
from holdfast.engine.batches import BatchPart, first_example, split_step
from holdfast.engine.contrastive import cached_backward, info_nce
from holdfast.engine.corpus_search import mine, search
from holdfast.engine.data_order import Indices, generator
from holdfast.engine.fast.captured import row_pack, step_row
from holdfast.engine.fast.rng import DropoutRng, replace_dropout
from holdfast.engine.intervals import mean_intervals
from holdfast.engine.mining import Mining, nothing_mined
from holdfast.engine.mistakes import TextView, missed_queries, row_in_file
from holdfast.engine.ranks import ALONE, Ranks
from holdfast.engine.retrieval import DEEPEST, query_metrics, retrieval_metrics
from holdfast.engine.retrieval_data import RetrievalData, StepPassages
from holdfast.engine.retrieval_items import Items
from holdfast.engine.row_layout import compiles_every_shape, count_with_filler
from holdfast.engine.sentence_folder import tokenizer_folder
from holdfast.engine.sharding import make_gradient_threads
from holdfast.engine.tower_folder import load_towers, save_towers
from holdfast.engine.tower_options import TowerOptions, read_options
from holdfast.engine.towers import embed_all

_MAX_SCALE = 100.0  # for a learned scale, as in CLIP


def load(settings: AttemptSettings, ranks: Ranks = ALONE) -> "TwoTower":
    """Load the towers and open the prepared queries and passages."""
    manifest = require_manifest(settings.prepared_path)
    options = read_options(settings.options)
    if settings.shard and options.learn_temperature:
        raise RequestError(
            "learn_temperature cannot be combined with shard",
            try_next=('"learn_temperature": false', '"shard": false'),
        )
    pairs = RetrievalData(settings.prepared_path, manifest, options)
    torch.manual_seed(settings.seed)  # new towers draw their weights from it
    if settings.is_on_cuda:
        torch.use_deterministic_algorithms(True)
    rng = None if settings.uses_device_rng else DropoutRng(settings.seed)
    towers, temperature = load_towers(settings, options, pairs, rng)
    model = TowerModel(towers, temperature, options.learn_temperature)
    return TwoTower(settings, manifest, options, model, pairs, rng, ranks)


@dataclass(frozen=True, slots=True)
class ItemPart:
    """Items of a step that are embedded together."""

    tower: int
    items: Indices  # the queries are numbered first, then the passages
    places: Indices  # in the step's order
    first_tokens: Indices
    is_idle: bool = False  # embedded only to stay in lockstep with other ranks; it does not count

    @classmethod
    def of(cls, part: BatchPart, tower: int, items: int, tokens: int) -> "ItemPart":
        """A part of one side of a step, with this many items and tokens before that side."""
        return cls(tower, part.examples, items + part.places, tokens + part.first_tokens, part.is_idle)


class TowerModel(nn.Module):
    """One tower for both sides or one for each, and the scale of their scores."""

    def __init__(self, towers: list[nn.Module], temperature: float, is_learned: bool):
        super().__init__()
        self.towers = nn.ModuleList(towers)
        self.log_scale = nn.Parameter(-torch.tensor(temperature).log(), requires_grad=is_learned)

    @property
    def is_shared(self) -> bool:
        """Whether queries and passages go through the same tower."""
        return len(self.towers) == 1

    def scale(self) -> Tensor:
        """What a score is multiplied by; the temperature is its inverse."""
        return self.log_scale.exp().clamp(max=_MAX_SCALE)


class TwoTower:
    """Towers in training."""

    metric = "ndcg@10"
    needs_collectives = True

    def __init__(
        self,
        settings: AttemptSettings,
        manifest: Manifest,
        options: TowerOptions,
        model: TowerModel,
        pairs: RetrievalData,
        rng: DropoutRng | None,
        ranks: Ranks = ALONE,
    ):
        self._settings, self._manifest, self._ranks = settings, manifest, ranks
        self._options, self._pairs, self._rng = options, pairs, rng
        self.model: nn.Module = model.to(settings.device)
        self._model = model
        if rng:
            replace_dropout(model, rng)
        threads = settings.worker_threads if self._is_safe_in_threads() else 1
        self._threads = make_gradient_threads(model, threads, ranks, model.towers)
        self.lengths = pairs.lengths
        self._mined = torch.from_numpy(nothing_mined(len(self.lengths), options.mining or Mining(negatives=0)))
        self._mined_epoch = -1
        self._tower: Any = model.towers[0]
        self.is_packed = pairs.is_text and model.is_shared and self._tower.is_packed  # then steps can be captured
        self._text_view = TextView(tokenizer_folder(settings), settings.prepared_path)
        self._found: dict[str, NDArray[np.int64]] = {}  # by query: rows of the corpus, best first
        self._corpus_PH: Tensor | None = None  # embeddings by the current weights
        for tower in range(len(model.towers)):
            self._threads.try_out(tower, self._one_embedded)

    def begin_epoch(self, epoch: int) -> dict[str, int]:
        """Mine hard negatives with the weights at the start of an epoch, unless the checkpoint holds them."""
        how = self._options.mining
        if not how or epoch < how.from_epoch or epoch == self._mined_epoch:
            return {}
        pairs = self._pairs
        hidden = [pairs.relevance["train"].hidden(query) for query in range(len(pairs.queries["train"]))]
        queries_QH, corpus_PH = self._embed_all(pairs.queries["train"], 0), self._corpus()
        if self._ranks.is_first:
            seed = self._settings.seed
            self._mined = mine(queries_QH, corpus_PH, pairs.query_E, pairs.answer_E, hidden, how, seed, epoch)
        self._ranks.broadcast(self._mined)
        self._mined_epoch = epoch
        found = self._mined >= 0
        return {"near_misses": int(found.sum()), "examples_without": int((~found.any(1)).sum())}

    def forward_backward(self, step: int, examples: Indices) -> Tensor:
        """Add the gradient of one step: the mean over its examples, each against all passages of the step."""
        self.model.train()
        self._corpus_PH = None
        passages = self._passages(step, examples)
        items, item_costs = self._pairs.step_items(examples, passages.rows_P)
        batches = self._split(len(examples), item_costs)
        idle = 0  # passages that fill up the shape
        if compiles_every_shape(self._settings.device):
            idle = self._pairs.most_passages(len(examples), self._mined.shape[1]) - len(passages.rows_P)

        def embed(part: ItemPart) -> Tensor:
            self._seek(step, part, item_costs)
            return self._embed(part.tower, [items[int(at)] for at in part.items])

        def loss_of(own: Tensor) -> Tensor:
            made = [part for parts in batches for part in parts]
            return self._loss(self._all_items(own, made, len(items) + idle), passages, idle)

        loss = cached_backward(self._threads, batches, embed, loss_of, self._ranks)
        if self._ranks.is_first:
            return loss
        # Every rank computes the full loss, so only one may report it and its gradient of the scale.
        self._model.log_scale.grad = None
        return torch.zeros_like(loss)

    def step_arrays(self, step: int, examples: Indices) -> dict[str, NDArray[np.int64]] | None:
        """One step for `fast.captured`; None where it is too large to compute at once."""
        self._corpus_PH = None
        passages = self._passages(step, examples)
        items, item_costs = self._pairs.step_items(examples, passages.rows_P)
        # Filled up to the most texts that a step of this size can have, so that few graphs serve all steps.
        idle = self._pairs.most_passages(len(examples), self._mined.shape[1]) - len(passages.rows_P)
        if item_costs.sum() + idle > self._settings.micro_tokens:
            return None
        return {
            **step_row(items, self._tower.position_offset, idle),
            "target": passages.target_B,
            "allowed": np.pad(passages.allowed_BP, ((0, 0), (0, idle))).ravel().astype(np.int64),
        }

    def step_loss(self, arrays: Mapping[str, Tensor]) -> Tensor:
        """The loss of those arrays, which are on the GPU."""
        target_B = arrays["target"]
        with self._settings.autocast():
            embeddings: Tensor = self._tower.embed_row(row_pack(arrays, self._pairs.longest))
        allowed_BP = arrays["allowed"].view(len(target_B), -1) > 0
        queries_BH, passages_PH = embeddings.split([len(target_B), allowed_BP.shape[1]])
        return info_nce(queries_BH, passages_PH, target_B, allowed_BP, self._model.scale(), self._options.symmetric)

    @torch.no_grad()
    def evaluate(self, split: str) -> dict[str, float]:
        """Metrics of a split's queries, each against the whole corpus; empty if the split does not exist."""
        if split not in self._pairs.queries:
            return {}
        queries, relevance = self._pairs.queries[split], self._pairs.relevance[split]
        hidden = [relevance.itself(query) for query in range(len(queries))]
        _, rows_QK = search(self._embed_all(queries, 0), self._corpus(), DEEPEST, hidden)
        self._found[split] = rows_QK.cpu().numpy()
        return retrieval_metrics(self._found[split], self._pairs.judgements[split])

    def report(self, split: str) -> dict[str, object]:
        """The metrics of the finished model, with their intervals."""
        scores = self.evaluate(split)
        if not scores:
            return {}
        by_query = query_metrics(self._found[split], self._pairs.judgements[split])
        return {**scores, "intervals": mean_intervals(by_query, self._settings.seed)}

    def mistakes(self, split: str) -> Mistakes:
        """Queries whose answer is not the first result, the worst rank first."""
        if split not in self._found:
            return Mistakes(split=split)
        folder, pairs = self._settings.prepared_path, self._pairs
        found = [
            MissedQuery(
                query=self._shown(split, pairs.queries[split], query),
                expected=self._shown("corpus", pairs.corpus, answer),
                found=self._shown("corpus", pairs.corpus, first),
                rank=rank,
                row=row_in_file(folder, split, query),
            )
            for query, answer, first, rank in missed_queries(self._found[split], pairs.judgements[split])
        ]
        return Mistakes(split=split, queries=tuple(found))

    def state(self) -> dict[str, Tensor]:
        """All weights, and the hard negatives that the rest of the epoch needs."""
        epoch = torch.tensor(self._mined_epoch)
        return {**self.model.state_dict(), "near_misses": self._mined, "near_misses_epoch": epoch}

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Restore what `state` returned."""
        self._mined, self._mined_epoch = tensors.pop("near_misses"), int(tensors.pop("near_misses_epoch"))
        self.model.load_state_dict(tensors)
        self._corpus_PH = None

    def show(self, examples: Indices) -> object:
        """The queries and the passages that answer them."""
        pairs = self._pairs
        return [
            {
                "example": int(at),
                "query": pairs.queries["train"][int(pairs.query_E[at])].tolist(),
                "passage": pairs.corpus[int(pairs.answer_E[at])].tolist(),
            }
            for at in examples
        ]

    def export(self, folder: Path) -> None:
        """Write the towers as sentence-transformers does, or as safetensors with their shape."""
        temperature = 1 / float(self._model.scale().detach())
        save_towers(folder, list(self._model.towers), temperature, self._settings, self._manifest)

    def _shown(self, name: str, items: Items, at: int) -> str:
        """A text as it was written; a vector has only its number."""
        return self._text_view.text(name, at, items[at]) if self._pairs.is_text else f"vector {at}"

    def _passages(self, step: int, examples: Indices) -> StepPassages:
        rng = generator(self._settings.seed, "negatives", step)
        return self._pairs.step_passages(examples, self._mined[torch.from_numpy(examples)].numpy(), rng)

    @contextmanager
    def _one_embedded(self, tower: int) -> Iterator[Tensor]:
        """The embedding of one item of a tower's side, for a trial run."""
        if self._rng:
            self._rng.at(0)
        side = self._pairs.corpus if tower else self._pairs.queries["train"]
        yield self._embed(tower, [side[0]])

    def _is_safe_in_threads(self) -> bool:
        """Whether each thread has its own dropout state: gradient checkpointing recomputes layers in other threads."""
        return all(tower.is_packed for tower in self._model.towers) and not self._settings.gradient_checkpointing

    def _split(self, queries: int, item_costs: Indices) -> list[list[ItemPart]]:
        """Split a step's items into micro-batches and parts; a shared tower takes queries and passages together."""
        sides = [np.arange(len(item_costs))]
        if not self._model.is_shared:
            sides = [np.arange(queries), np.arange(queries, len(item_costs))]
        max_tokens, workers = self._settings.micro_tokens, self._threads.workers
        found, tokens, items = [], 0, 0
        for tower, side in enumerate(sides):
            for parts in split_step(side, item_costs, max_tokens, workers, self._ranks):
                found.append([ItemPart.of(part, tower, items, tokens) for part in parts])
            tokens += int(item_costs[side].sum())
            items += len(side)
        return found or [[ItemPart.of(replace(first_example(), is_idle=True), 0, 0, 0)]]

    def _all_items(self, own: Tensor, parts: list[ItemPart], count: int) -> Tensor:
        """The embeddings of all items of a step, from all ranks, in order; gradients flow only to this rank's own."""
        order = np.concatenate([part.items for part in parts])
        if not self._ranks.are_many:
            # Each part has its items first, then the rows that fill up its shape. Passages that fill up the step's
            # shape repeat the first item; `_loss` does not let them count.
            sizes = [count_with_filler(len(part.items), self._settings.device) for part in parts]
            starts, own_sizes = np.cumsum(sizes) - sizes, [len(part.items) for part in parts]
            at = np.zeros(count, dtype=np.int64)
            at[order] = np.concatenate([*map(np.arange, own_sizes)]) + np.repeat(starts, own_sizes)
            return own[torch.from_numpy(at).to(own.device)]
        counts = np.flatnonzero(np.concatenate([np.full(len(part.items), not part.is_idle) for part in parts]))
        rows = torch.from_numpy(order[counts]).to(own.device)
        own = own[torch.from_numpy(counts).to(own.device)]
        known = own.new_zeros((count, own.shape[1])).index_copy(0, rows, own.detach())
        return self._ranks.all_reduce(known).index_copy(0, rows, own)

    def _loss(self, embeddings: Tensor, passages: StepPassages, idle: int) -> Tensor:
        queries_BH, passages_PH = embeddings.split([len(passages.target_B), len(passages.rows_P) + idle])
        target_B = torch.from_numpy(passages.target_B)
        allowed_BP = torch.from_numpy(np.pad(passages.allowed_BP, ((0, 0), (0, idle))))
        device = embeddings.device
        return info_nce(
            queries_BH,
            passages_PH,
            target_B.to(device),
            allowed_BP.to(device),
            self._model.scale(),
            self._options.symmetric,
        )

    def _seek(self, step: int, part: ItemPart, item_costs: Indices) -> None:
        """Set the random generators to this part, so that embedding it again applies the same dropout."""
        if self._rng:
            self._rng.at_part(step, part.places, part.first_tokens, item_costs[part.items])
        if self._threads.workers == 1:  # CUDA kernels and the model's own code may draw from torch's generator
            rng = generator(self._settings.seed, "torch", step, int(part.places[0]))
            torch.manual_seed(int(rng.integers(2**62)))

    def _embed(self, tower: int, items: list[NDArray[Any]]) -> Tensor:
        with self._settings.autocast():
            embeddings_BH: Tensor = self._model.towers[tower](items)
        return embeddings_BH

    def _embed_all(self, items: Items, tower: int) -> Tensor:
        """Embeddings of many items, in their order."""
        return embed_all(self._model.towers[tower], items, self._settings, self._ranks)

    def _corpus(self) -> Tensor:
        """Embeddings of all passages, kept until the weights change: mining often follows evaluation."""
        if self._corpus_PH is None:
            self._corpus_PH = self._embed_all(self._pairs.corpus, -1)
        return self._corpus_PH
