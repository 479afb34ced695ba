"""Fine-tune two towers over texts with MLX, so that a query's embedding is near the passages that answer it.

One shared tower or two separate ones. A step's loss is taken over all its texts at once, however they are split: the
embeddings come first, then the gradient of the loss to them, and each part carries its share to the weights
(`contrastive` explains why). Hard negatives can be mined between epochs.

B examples of a step, P passages of a step, H size of an embedding.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from numpy.typing import NDArray

from holdfast.core.artifacts import write_artifact
from holdfast.core.errors import RequestError, set_to
from holdfast.core.records import MissedQuery, Mistakes
from holdfast.data.shards import require_manifest
from holdfast.engine.attempt_settings import AttemptSettings
from holdfast.engine.batches import BatchPart, micro_batches, split_step
from holdfast.engine.data_order import Indices, generator
from holdfast.engine.intervals import mean_intervals
from holdfast.engine.mining import Mining, draw_negatives, nothing_mined
from holdfast.engine.mistakes import TextView, missed_queries, row_in_file
from holdfast.engine.mlx.hf_folder import read_config, read_weights, write_model
from holdfast.engine.mlx.mlx_adamw import Weights
from holdfast.engine.mlx.mlx_classify import encoder_weights, load_weights
from holdfast.engine.mlx.mlx_dropout import StepMasks
from holdfast.engine.mlx.mlx_encoder import Encoder
from holdfast.engine.mlx.text_rows import TextRows, pack_rows
from holdfast.engine.retrieval import DEEPEST, query_metrics, retrieval_metrics
from holdfast.engine.retrieval_data import RetrievalData, StepPassages
from holdfast.engine.retrieval_items import Items, costs
from holdfast.engine.sentence_folder import (
    ABOUT,
    SIDES,
    TowerFolder,
    read_pooling,
    read_tower_folder,
    tokenizer_folder,
    write_sentence_files,
)
from holdfast.engine.tower_options import read_options

_MAX_SCALE = 100.0  # for a learned scale, as in CLIP
_UNSEEN = -1e30
_QUERIES_AT_ONCE = 1024
_SCALE = "log_scale"


def load(settings: AttemptSettings) -> "MlxTwoTower":
    """Load the towers and open the prepared queries and passages."""
    return MlxTwoTower(settings)


class MlxTower:
    """An encoder with mean pooling or the first token's state."""

    def __init__(self, folder: Path, number: int, settings: AttemptSettings):
        self.folder, self.config, self.pooling = folder, read_config(folder), read_pooling(folder)
        is_half, checkpointing = settings.precision == "bf16", settings.gradient_checkpointing
        self.encoder = Encoder(self.config, is_half=is_half, checkpointing=checkpointing)
        self._inside, self._outside = f"{self.encoder.kind.prefix}.", f"towers.{number}.body."
        found = encoder_weights(read_weights(folder), self.encoder)
        named = {self._outside + name.removeprefix(self._inside): weight for name, weight in found.items()}
        self.trained = {name: weight for name, weight in named.items() if ".pooler." not in name}
        self.idle = {name: weight for name, weight in named.items() if ".pooler." in name}  # nothing reads it
        self._padding = int(self.config.get("pad_token_id") or 0)

    def embed(self, weights: Weights, rows: TextRows, masks: StepMasks | None) -> mx.array:
        """Embeddings of length 1, (B, H); texts that fill up the bucket come last."""
        own = {
            self._inside + name.removeprefix(self._outside): weight
            for name, weight in weights.items()
            if name.startswith(self._outside)
        }
        states_NH = self.encoder.states(own, rows, masks, self._padding).astype(mx.float32)
        states_NH = states_NH.reshape(-1, states_NH.shape[-1])
        if self.pooling == "cls":
            pooled_BH = states_NH[rows.first_B]
        else:  # a product of matrices, so that the order of the sums is fixed
            is_own_BN = mx.arange(1, len(rows.first_B) + 1)[:, None] == rows.texts_RT.reshape(1, -1)
            pooled_BH = is_own_BN.astype(mx.float32) @ states_NH / mx.maximum(is_own_BN.sum(1, keepdims=True), 1)
        # The maximum comes before the root, whose gradient at the zeros of filler texts is not a number.
        return pooled_BH / mx.sqrt(mx.maximum(mx.sum(mx.square(pooled_BH), axis=-1, keepdims=True), 1e-24))

    def plain(self, weights: Weights) -> Weights:
        """Its weights under the names of an encoder without a head."""
        own = {**{name: one for name, one in weights.items() if name.startswith(self._outside)}, **self.idle}
        return {name.removeprefix(self._outside): weight for name, weight in own.items()}


@dataclass(frozen=True, slots=True)
class TowerPart:
    """Items of a step that are embedded together."""

    tower: int
    items: Indices
    part: BatchPart


class MlxTwoTower:
    """Towers in training."""

    metric = "ndcg@10"

    def __init__(self, settings: AttemptSettings):
        self._settings, self._manifest = settings, require_manifest(settings.prepared_path)
        self._options = read_options(settings.options)
        if self._manifest.form != "text":
            raise RequestError(
                "the MLX backend trains towers over texts only",
                found="the data has vectors",
                try_next=(set_to("backend", "torch"),),
                setting="backend",
            )
        self._pairs = RetrievalData(settings.prepared_path, self._manifest, self._options)
        self.lengths = self._pairs.lengths
        model, wants_one = Path(settings.model), self._options.towers == "shared"
        base = read_tower_folder(model)
        if base.is_separate and wants_one:
            raise RequestError(
                "the base model has separate towers, but a shared tower was requested",
                found=f"{model / ABOUT}",
                try_next=(set_to("towers", "separate"),),
                setting="towers",
            )
        folders = [model / side if base.is_separate else model for side in ([""] if wants_one else SIDES)]
        self._towers = [MlxTower(folder, number, settings) for number, folder in enumerate(folders)]
        self.weights: Weights = {name: one for tower in self._towers for name, one in tower.trained.items()}
        self._idle: Weights = {name: one for tower in self._towers for name, one in tower.idle.items()}
        log_scale = mx.array(-np.log(np.float32(self._options.temperature or base.temperature)))
        (self.weights if self._options.learn_temperature else self._idle)[_SCALE] = log_scale
        self._mined = nothing_mined(len(self.lengths), self._options.mining or Mining(negatives=0))
        self._mined_epoch = -1
        self._text_view = TextView(tokenizer_folder(settings), settings.prepared_path)
        self._found: dict[str, NDArray[np.int64]] = {}  # by query: rows of the corpus, best first
        mx.eval(self.weights, self._idle)

    def begin_epoch(self, epoch: int) -> dict[str, int]:
        """Mine hard negatives with the weights at the start of an epoch, unless the checkpoint holds them."""
        how, pairs = self._options.mining, self._pairs
        if not how or epoch < how.from_epoch or epoch == self._mined_epoch:
            return {}
        hidden = [pairs.relevance["train"].hidden(query) for query in range(len(pairs.queries["train"]))]
        queries_QH, corpus_PH = self._embed_all(pairs.queries["train"], 0), self._embed_all(pairs.corpus, -1)
        scores_QW, rows_QW = search_corpus(queries_QH, corpus_PH, how.last_rank, hidden)
        answers_E = (queries_QH[pairs.query_E] * corpus_PH[pairs.answer_E]).sum(1)
        seed = self._settings.seed
        self._mined = draw_negatives(scores_QW, rows_QW, answers_E, pairs.query_E, how, seed, epoch)
        self._mined_epoch = epoch
        found = self._mined >= 0
        return {"near_misses": int(found.sum()), "examples_without": int((~found.any(1)).sum())}

    def loss_and_gradients(self, step: int, examples: Indices) -> tuple[mx.array, Weights]:
        """The loss of one step, the mean over its examples, each against all passages of the step; its gradient."""
        passages = self._pairs.step_passages(
            examples, self._mined[examples], generator(self._settings.seed, "negatives", step)
        )
        items, item_costs = self._pairs.step_items(examples, passages.rows_P)
        parts = self._split(len(examples), item_costs)
        packed = [pack_rows([items[int(at)] for at in one.items], one.part) for one in parts]
        masks = [StepMasks(self._settings.seed, step, rows) for rows in packed]
        order = mx.array(np.argsort(np.concatenate([one.items for one in parts])))

        def embed(weights: Weights, at: int) -> mx.array:
            return self._towers[parts[at].tower].embed(weights, packed[at], masks[at])[: packed[at].count]

        if len(parts) == 1:

            def whole(weights: Weights) -> mx.array:
                return self._loss(weights, embed(weights, 0)[order], passages)

            loss, gradients = mx.value_and_grad(whole)(self.weights)
            mx.eval(loss, gradients)
            return loss, gradients
        found = []
        for at in range(len(parts)):
            found.append(embed(self.weights, at))
            mx.eval(found[-1])
        embeddings = mx.concatenate(found)[order]
        loss, (total, d_embeddings) = mx.value_and_grad(self._loss, argnums=(0, 1))(self.weights, embeddings, passages)
        mx.eval(loss, total, d_embeddings)
        for at, one in enumerate(parts):
            d_part = d_embeddings[mx.array(one.items)]

            def share(weights: Weights, at: int = at, d_part: mx.array = d_part) -> mx.array:
                return mx.sum(embed(weights, at) * d_part)

            gradients = mx.grad(share)(self.weights)
            total = {name: total[name] + gradient for name, gradient in gradients.items()}
            mx.eval(total)
        return loss, total

    def evaluate(self, split: str) -> dict[str, float]:
        """Metrics of a split's queries, each against the whole corpus; empty if the split does not exist."""
        if split not in self._pairs.queries:
            return {}
        queries, relevance = self._pairs.queries[split], self._pairs.relevance[split]
        hidden = [relevance.itself(query) for query in range(len(queries))]
        embedded = self._embed_all(queries, 0), self._embed_all(self._pairs.corpus, -1)
        _, self._found[split] = search_corpus(*embedded, DEEPEST, hidden)
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
        pairs, view = self._pairs, self._text_view
        found = [
            MissedQuery(
                query=view.text(split, query, pairs.queries[split][query]),
                expected=view.text("corpus", answer, pairs.corpus[answer]),
                found=view.text("corpus", first, pairs.corpus[first]),
                rank=rank,
                row=row_in_file(self._settings.prepared_path, split, query),
            )
            for query, answer, first, rank in missed_queries(self._found[split], pairs.judgements[split])
        ]
        return Mistakes(split=split, queries=tuple(found))

    def state(self) -> dict[str, Any]:
        """All weights, and the hard negatives that the rest of the epoch needs."""
        mined = {"near_misses": self._mined, "near_misses_epoch": np.array(self._mined_epoch)}
        return {**self.weights, **self._idle, **mined}

    def load_state(self, tensors: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        self._mined = np.array(tensors.pop("near_misses"), dtype=np.int32)
        self._mined_epoch = int(tensors.pop("near_misses_epoch").item())
        for name in [name for name in tensors if ".pooler." in name or name in self._idle]:
            tensors.pop(name)  # nothing reads or trains these; the torch backend also saves a pooler that it made up
        load_weights(self.weights, tensors)

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
        """Write the towers as sentence-transformers does."""
        manifest, is_shared = self._manifest, len(self._towers) == 1
        for tower, side in zip(self._towers, [""] if is_shared else SIDES, strict=True):
            target = folder / side
            config = {**tower.config, "dtype": "float32"}
            write_model(target, tokenizer_folder(self._settings), config, tower.plain(self.weights))
            size = int(tower.encoder.setting("hidden_size"))
            write_sentence_files(target, size, tower.pooling, manifest.max_length, manifest.prefixes)
        scale = float(_scale({**self._idle, **self.weights}).item())
        about = TowerFolder(towers="shared" if is_shared else "separate", temperature=1 / scale)
        write_artifact(folder, ABOUT, about)

    def _split(self, queries: int, item_costs: Indices) -> list[TowerPart]:
        """Split a step's items into micro-batches; a shared tower takes queries and passages together."""
        sides = [np.arange(len(item_costs))]
        if len(self._towers) == 2:
            sides = [np.arange(queries), np.arange(queries, len(item_costs))]
        found, items, tokens = [], 0, 0
        for tower, side in enumerate(sides):
            for (part,) in split_step(side, item_costs, self._settings.micro_tokens):
                own = BatchPart(part.examples, items + part.places, tokens + part.first_tokens)
                found.append(TowerPart(tower, part.examples, own))
            items, tokens = items + len(side), tokens + int(item_costs[side].sum())
        return found

    def _loss(self, weights: Weights, embeddings: mx.array, passages: StepPassages) -> mx.array:
        """InfoNCE, as `contrastive.info_nce` computes it."""
        queries = len(passages.target_B)
        target_B = mx.array(passages.target_B.astype(np.int32))
        scale = _scale({**self._idle, **weights})
        scores_BP = scale * (embeddings[:queries] @ embeddings[queries:].T)
        scores_BP = mx.where(mx.array(passages.allowed_BP), scores_BP, _UNSEEN)
        loss = mx.mean(nn.losses.cross_entropy(scores_BP, target_B))
        if not self._options.symmetric:
            return loss
        is_shared_BB = (target_B[:, None] == target_B) & ~mx.eye(queries, dtype=mx.bool_)
        back_BB = mx.where(is_shared_BB, _UNSEEN, scores_BP.T[target_B])
        return (loss + mx.mean(nn.losses.cross_entropy(back_BB, mx.arange(queries)))) / 2

    def _embed_all(self, items: Items, tower: int) -> NDArray[np.float32]:
        """Embeddings of many items, in their order."""
        made = self._towers[tower]
        found = np.zeros((len(items), int(made.encoder.setting("hidden_size"))), dtype=np.float32)
        for micro in micro_batches(np.arange(len(items)), costs(items), self._settings.micro_tokens):
            rows = pack_rows([items[int(at)] for at in micro], BatchPart(micro, micro, micro))
            found[micro] = np.asarray(made.embed(self.weights, rows, None)[: rows.count])
        return found


def search_corpus(
    queries_QH: NDArray[np.float32], corpus_PH: NDArray[np.float32], k: int, hidden: Sequence[Indices]
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Each query's best passages, best first: scores and rows, equal scores in the order of the corpus.

    `hidden` has the rows that each query must not find.
    """
    k = min(k, len(corpus_PH))
    scores, rows = np.zeros((len(queries_QH), k), np.float32), np.zeros((len(queries_QH), k), np.int64)
    corpus = mx.array(corpus_PH).T
    for first in range(0, len(queries_QH), _QUERIES_AT_ONCE):
        found_QP = np.array(mx.array(queries_QH[first : first + _QUERIES_AT_ONCE]) @ corpus)
        for at, own_P in enumerate(found_QP):
            own_P[hidden[first + at]] = -np.inf
            best = np.sort(np.argpartition(-own_P, k - 1)[:k])
            best = best[np.argsort(-own_P[best], kind="stable")]
            scores[first + at], rows[first + at] = own_P[best], best
    return scores, rows


def _scale(weights: Weights) -> mx.array:
    """What a score is multiplied by; the temperature is its inverse."""
    return mx.minimum(mx.exp(weights[_SCALE]), _MAX_SCALE)
