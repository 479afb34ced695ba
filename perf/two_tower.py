"""Times two-tower training on the CPU: the engine and sentence-transformers, on the same pairs in the same order.

Without --model and --data the weights and the texts are random, with the lengths of medical questions and passages
(means 15 and 170 tokens, passages truncated at 256). fp32, AdamW, dropout 0.1, clipping at 1, scale 20.
sentence-transformers runs its in-batch loss and its cached loss, whose mini-batch may have as many tokens, padded, as
the engine's.
"""

import argparse
import csv
import json
import os
import tempfile
from pathlib import Path

OURS, CACHED = "holdfast", "holdfast, cached"
PEER, PEER_CACHED = "sentence-transformers", "sentence-transformers, cached"


def main() -> None:
    """Let the engine and sentence-transformers take turns."""
    options = _options()
    if options.worker:
        return {OURS: work_ours, PEER: work_peer, "products": work_products_alone}[options.worker](options)
    from contest import Contestant, contest, report
    from matrix_rate import PRODUCTS, encoder_gflop, shares
    from peers import peer_python

    python = peer_python("sentence-transformers", "sentence-transformers==6.2.0", "accelerate", "datasets")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model, data = options.model or make_model(folder / "model"), options.data or make_data(folder / "data")
        prepare_pairs(model, data, folder, options)
        given = [__file__, "--model", str(model), "--work", str(folder), "--batch", str(options.batch)]
        given += ["--threads", str(options.threads), "--max-length", str(options.max_length)]
        mini_tokens = str(options.mini_batch * options.max_length)
        calm = {
            "GOMP_SPINCOUNT": "1000"
        }  # helps the peers on a busy machine as much as the engine; see engine.process_setup
        peer = [*given, "--worker", PEER]
        contestants = [
            Contestant(OURS, [*given, "--worker", OURS]),
            Contestant(PEER, [*peer, "--mini-batch", "0"], calm, python),
            Contestant(CACHED, [*given, "--worker", OURS, "--micro-tokens", mini_tokens]),
            Contestant(PEER_CACHED, [*peer, "--mini-batch", str(options.mini_batch)], calm, python),
            Contestant(PRODUCTS, [*given, "--worker", "products"]),
        ]
        turns = contest(contestants, options.rounds, options.steps, warm_up=1)
        tokens = pair_tokens(folder / "prepared")
        used = shares(turns, encoder_gflop(model, tokens))
    benchmark = f"two_tower_cpu batch {options.batch} length {options.max_length}"
    for name, pair in ((benchmark, (OURS, PEER)), (f"{benchmark} mini {options.mini_batch}", (CACHED, PEER_CACHED))):
        report(name, {who: turns[who] for who in pair}, pair[0], tokens=tokens, shares={who: used[who] for who in pair})


def work_products_alone(options: argparse.Namespace) -> None:
    """Only matrix products."""
    from matrix_rate import work_products

    work_products("cpu", options.threads)


def pair_tokens(prepared: Path) -> float:
    """Mean tokens of a question and its passage."""
    from holdfast.data.shards import open_array, open_tokens

    qrels = open_array(prepared, "train.qrels")
    questions, passages = open_tokens(prepared, "train").lengths, open_tokens(prepared, "corpus").lengths
    return float((questions[qrels[:, 0]] + passages[qrels[:, 1]]).mean())


def prepare_pairs(model: Path, data: Path, folder: Path, options: argparse.Namespace) -> None:
    """Prepare the data for the engine, and write the pairs as texts in the engine's order."""
    from holdfast.data.data_request import DataRequest
    from holdfast.data.prepare import PrepareOptions, prepare
    from holdfast.data.shards import open_array, open_tokens
    from holdfast.data.survey_dataset import survey
    from holdfast.data.tokenizer import ModelTokenizer
    from holdfast.engine.data_order import DataOrder

    tokens = ModelTokenizer(model)
    found = survey(DataRequest(path=data, task="two-tower"), tokens)
    prepared = folder / "prepared"
    prepare(found.source, tokens, prepared, options=PrepareOptions(max_length=options.max_length))
    passages = [f"{row['title']} {row['text']}" for row in _json_lines(data / "corpus.jsonl")]
    queries = [row["text"] for row in _json_lines(data / "queries.jsonl")]
    rows, qrels = open_array(prepared, "train.rows"), open_array(prepared, "train.qrels")
    lengths = open_tokens(prepared, "train").lengths[qrels[:, 0]]
    order = DataOrder(lengths, options.batch, 42)
    with (folder / "pairs.jsonl").open("w", encoding="utf-8") as file:
        for step in range(order.steps_per_epoch):
            for query, passage, _ in qrels[order.examples(step)].tolist():
                print(json.dumps([queries[rows[query] - 1], passages[passage].strip()]), file=file)


def work_ours(options: argparse.Namespace) -> None:
    """The engine's own loop."""
    from holdfast.engine.process_setup import prepare_process

    prepare_process()
    from contest import Pace

    from holdfast.core.event_log import EventLog
    from holdfast.core.heartbeat import BeatWriter
    from holdfast.engine.attempt_settings import AttemptSettings
    from holdfast.engine.data_order import Indices
    from holdfast.engine.loop import Loop
    from holdfast.engine.tasks import load_task

    pace = Pace()

    class Paced(Loop):
        def _step(self, step: int, examples: Indices) -> None:
            super()._step(step, examples)
            pace.step(len(examples))

    with tempfile.TemporaryDirectory() as run:
        settings = AttemptSettings(
            task="two-tower",
            model=str(options.model),
            prepared=str(options.work / "prepared"),
            run=run,
            batch_size=options.batch,
            epochs=1000,
            eval_steps=10**9,
            save_seconds=1e9,
            threads=options.threads,
            micro_tokens=options.micro_tokens,
            options={"same_article": "negative"},  # theirs does not know articles
        )
        settings.use_threads()
        loop = Paced(
            load_task(settings), settings, BeatWriter(Path(run) / "beat"), EventLog(Path(run) / "events.jsonl")
        )
        pace.start()
        loop.train()


def work_peer(options: argparse.Namespace) -> None:
    """sentence-transformers on the same pairs."""
    import torch
    from contest import Pace
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.base.sampler import DefaultBatchSampler
    from sentence_transformers.sentence_transformer.losses import (
        CachedMultipleNegativesRankingLoss,
        MultipleNegativesRankingLoss,
    )
    from transformers import TrainerCallback

    torch.set_num_threads(options.threads)
    pace = Pace()

    class Paced(TrainerCallback):
        def on_train_begin(self, *args: object, **kwargs: object) -> None:
            pace.start()

        def on_step_end(self, *args: object, **kwargs: object) -> None:
            pace.step(options.batch)

    pairs = list(_json_lines(options.work / "pairs.jsonl"))
    model = SentenceTransformer(str(options.model), device="cpu")
    model.max_seq_length = options.max_length
    if options.mini_batch:
        loss = CachedMultipleNegativesRankingLoss(model, mini_batch_size=options.mini_batch)
    else:
        loss = MultipleNegativesRankingLoss(model)
    with tempfile.TemporaryDirectory() as folder:
        arguments = SentenceTransformerTrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=options.batch,
            num_train_epochs=1000,
            weight_decay=0.01,
            optim="adamw_torch_fused",
            save_strategy="no",
            report_to="none",
            logging_steps=500,
            disable_tqdm=True,
            use_cpu=True,
            batch_sampler=lambda dataset, **more: DefaultBatchSampler(
                torch.utils.data.SequentialSampler(dataset), **more
            ),
        )
        columns = {"query": [pair[0] for pair in pairs], "passage": [pair[1] for pair in pairs]}
        trainer = SentenceTransformerTrainer(
            model=model, args=arguments, train_dataset=Dataset.from_dict(columns), loss=loss, callbacks=[Paced()]
        )
        trainer.train()


def make_model(folder: Path) -> Path:
    """MiniLM-L6 with random weights, and a tokenizer of numbered words."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    torch.manual_seed(0)
    shape = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
    BertModel(BertConfig(vocab_size=30_522, **shape)).save_pretrained(folder)
    words = {f"w{number}": number for number in range(30_521)} | {"[UNK]": 30_521}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="w0", unk_token="[UNK]", model_max_length=512)
    fast.save_pretrained(folder)
    return folder


def make_data(folder: Path, count: int = 2000) -> Path:
    """Random questions and passages with the lengths of medical ones, as a BEIR folder."""
    import numpy as np

    draws = np.random.default_rng(0)

    def text(mean: float, spread: float, longest: int) -> str:
        length = int(np.clip(np.exp(draws.normal(np.log(mean), spread)), 4, longest))
        return " ".join(f"w{number}" for number in draws.integers(1000, 10_000, length))

    (folder / "qrels").mkdir(parents=True)
    with (folder / "corpus.jsonl").open("w") as corpus, (folder / "queries.jsonl").open("w") as queries:
        for at in range(count):
            print(json.dumps({"_id": f"p{at}", "title": "w1", "text": text(175, 0.6, 400)}), file=corpus)
            print(json.dumps({"_id": f"q{at}", "text": text(14, 0.35, 40)}), file=queries)
    with (folder / "qrels" / "train.tsv").open("w", newline="") as file:
        writer = csv.writer(file, delimiter="\t")
        writer.writerow(["query-id", "corpus-id", "score"])
        writer.writerows([f"q{at}", f"p{at}", 1] for at in range(count))
    return folder


def _json_lines(path: Path) -> list:
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--data", type=Path, help="a BEIR folder")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--max-length", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--mini-batch", type=int, default=8)
    parser.add_argument("--micro-tokens", type=int, default=16_384)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--worker")
    return parser.parse_args()


if __name__ == "__main__":
    main()
