"""Times the three tasks on a CUDA card: the engine and its peers, each in its own process, in turns of many steps.

classify: BERT-base shape, texts of log-normal lengths (mean 92 tokens); HF Trainer and Lightning. causal: SmolLM2-135M,
LoRA or full; HF Trainer and TRL (with peft). two-tower: MiniLM-L6; the model and loss of sentence-transformers in a
plain loop, which is faster than its trainer. Peers run in their usual configuration, and tuned: texts of similar length
together, padded to a few lengths, fused optimizer, tf32, compiled if that is faster for them. bf16 for all. Weights are
random without --model and texts without --prepared; neither affects the time of a step.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

OURS, COMPILED, TRL = "holdfast", "holdfast, compiled", "TRL SFTTrainer"
LORA = {"r": 16, "lora_alpha": 32, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]}


def main() -> None:
    """Let everyone take turns."""
    options = _options()
    if options.worker:
        return WORKERS[options.worker](options)
    from contest import Contestant, contest, report
    from matrix_rate import PRODUCTS, shares
    from peers import trl_python

    with tempfile.TemporaryDirectory() as name:
        model = options.model or make_model(options.task, Path(name) / "model")
        prepared = options.prepared or make_texts(options, model, Path(name))
        given = [__file__, options.task, "--model", str(model), "--prepared", str(prepared)]
        given += ["--batch", str(options.batch), *(["--lora"] if options.lora else [])]
        contestants = [Contestant(OURS, [*given, "--worker", "ours"])]
        if options.compile:
            contestants.append(Contestant(COMPILED, [*given, "--worker", "ours", "--compile"]))
        for peer, more in PEERS[options.task].items():
            python = trl_python() if peer == TRL else sys.executable
            contestants.append(Contestant(peer, [*given, "--worker", *more], python=python))
        contestants.append(Contestant(PRODUCTS, [*given, "--worker", "products"]))
        turns = contest(contestants, options.rounds, options.steps, warm_up=options.warm_up)
        tokens, gflop = needed(options, model, prepared)
        used = shares(turns, gflop)
    kind = " lora" if options.lora else " full" if options.task == "causal" else ""
    name = f"{options.task.replace('-', '_')}_cuda{kind} batch {options.batch}"
    ours = COMPILED if options.compile else OURS
    report(name, turns, ours, "cuda", tokens=tokens, shares=used)


def needed(options: argparse.Namespace, model: Path, prepared: Path) -> tuple[float, float]:
    """Mean tokens per example, and the GFLOP of its products."""
    from causal_cpu import lengths
    from matrix_rate import classifier_gflop, encoder_gflop, language_gflop
    from two_tower import pair_tokens

    from holdfast.data.shards import open_tokens

    if options.task == "causal":
        tokens, learned = lengths(prepared)
        return tokens, language_gflop(model, tokens, learned, is_lora=options.lora)
    if options.task == "classify":
        tokens = float(open_tokens(prepared, "train").lengths.mean())
        return tokens, classifier_gflop(model, tokens)
    tokens = pair_tokens(prepared)
    return tokens, encoder_gflop(model, tokens)


def work_ours(options: argparse.Namespace) -> None:
    """The engine's own loop."""
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    from contest import run_engine

    own = {"classify": {}, "causal": {"samples": 0}, "two-tower": {"same_article": "negative"}}
    more = {"options": own[options.task] | ({"lora": LORA} if options.lora else {})}
    run_engine(
        options.task,
        options.model,
        options.prepared,
        None,
        batch_size=options.batch,
        device="cuda",
        precision="bf16",
        compile=options.compile,
        **more,
    )


def work_products_alone(options: argparse.Namespace) -> None:
    """Only matrix products."""
    from matrix_rate import work_products

    work_products("cuda", None)


def work_lightning(options: argparse.Namespace) -> None:
    """Lightning on the same texts."""
    from lightning_peer import train

    train(options.model, options.prepared, options.batch, device="cuda", threads=None)


def work_trl(options: argparse.Namespace) -> None:
    """TRL on the same texts."""
    from trl_peer import train

    train(options.model, options.prepared, options.batch, LORA if options.lora else None, device="cuda", threads=None)


def work_hf(options: argparse.Namespace) -> None:
    """HF Trainer on the same texts."""
    from contest import paced_trainer
    from transformers import TrainingArguments

    model, rows, collate = classifier_of(options) if options.task == "classify" else language_model_of(options)
    tuned = {"tf32": True, "optim": "adamw_torch_fused", "train_sampling_strategy": "group_by_length"}
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=options.batch,
            num_train_epochs=1000,
            learning_rate=5e-5,
            weight_decay=0.01,
            bf16=True,
            save_strategy="no",
            report_to="none",
            logging_steps=10**6,
            disable_tqdm=True,
            torch_compile=options.compile,
            **(tuned if options.tuned else {}),
        )
        unit = 64 if options.tuned else 1
        make = paced_trainer(options.batch)
        make(model=model, args=arguments, train_dataset=rows, data_collator=lambda part: collate(part, unit)).train()


def classifier_of(options: argparse.Namespace) -> tuple[Any, list[dict], Any]:
    """A classifier loaded in the usual way, its rows, and how they are padded."""
    import json

    from accuracy_peers import labelled
    from transformers import AutoModelForSequenceClassification

    from holdfast.data.shards import open_array, open_tokens

    texts, labels = open_tokens(options.prepared, "train"), open_array(options.prepared, "train.labels")
    rows = [{"input_ids": texts[at], "labels": labels[at]} for at in range(len(texts))]
    classes = len(json.loads((options.prepared / "manifest.json").read_text())["labels"])
    return AutoModelForSequenceClassification.from_pretrained(options.model, num_labels=classes), rows, labelled


def language_model_of(options: argparse.Namespace) -> tuple[Any, list[dict], Any]:
    """A language model loaded in the usual way, its rows, and how they are padded."""
    import torch
    from accuracy_peers import instructions, learned
    from transformers import AutoModelForCausalLM

    from holdfast.engine.attempt_settings import AttemptSettings

    place = {"model": str(options.model), "prepared": str(options.prepared), "run": "."}
    rows = instructions(AttemptSettings(task="causal", **place), "train")
    dtype = torch.bfloat16 if options.lora else torch.float32
    model: Any = AutoModelForCausalLM.from_pretrained(options.model, dtype=dtype)
    if options.lora:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **LORA))
    return model, rows, learned


def work_st(options: argparse.Namespace) -> None:
    """The model and the in-batch loss of sentence-transformers on the same pairs."""
    import torch
    from accuracy_peers import padded
    from contest import Pace
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    from holdfast.data.shards import open_array, open_tokens
    from holdfast.engine.data_order import DataOrder

    if options.tuned:
        torch.backends.cuda.matmul.allow_tf32 = True
    model = SentenceTransformer(str(options.model), device="cuda").float()
    loss_of = MultipleNegativesRankingLoss(model)
    corpus, queries = open_tokens(options.prepared, "corpus"), open_tokens(options.prepared, "train")
    qrels = open_array(options.prepared, "train.qrels")
    lengths = corpus.lengths[qrels[:, 1]]
    order = DataOrder(lengths, options.batch, 42, 50 if options.tuned else 1)  # tuned: pairs of similar length together
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, weight_decay=0.01, fused=options.tuned or None)
    pace = Pace()
    model.train()
    pace.start()
    for step in range(10**9):
        rows = qrels[order.examples(step)]
        sides = [[queries[at] for at in rows[:, 0]], [corpus[at] for at in rows[:, 1]]]
        features = [padded([{"input_ids": text} for text in side], 16 if options.tuned else 1) for side in sides]
        features = [{name: x.to("cuda", non_blocking=True) for name, x in side.items()} for side in features]
        with torch.autocast("cuda", torch.bfloat16):
            loss = loss_of(features, None)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        pace.step(len(rows))


def make_model(task: str, folder: Path) -> Path:
    """The model shape of the task with random weights; those of a language model are in bf16, like real ones."""
    import torch
    from causal_cpu import make_model as make_language_model
    from transformers import AutoModelForCausalLM, BertConfig, BertModel
    from two_tower import make_model as make_encoder

    if task == "two-tower":
        return make_encoder(folder)
    if task == "classify":
        BertModel(BertConfig()).save_pretrained(folder)
        return folder
    make_language_model(folder)
    AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).save_pretrained(folder)
    return folder


def make_texts(options: argparse.Namespace, model: Path, folder: Path) -> Path:
    """Random texts of realistic lengths, prepared for the engine."""
    import causal_cpu
    import classify_cpu
    import two_tower

    prepared = folder / "prepared"
    if options.task == "two-tower":
        two_tower.prepare_pairs(model, two_tower.make_data(folder / "data"), folder, options)
    elif options.task == "classify":
        classify_cpu.make_texts(prepared, count=6400, center=4.28, spread=0.71, longest=512)
    else:
        causal_cpu.make_texts(prepared, count=4000)
    return prepared


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=list(PEERS))
    parser.add_argument("--model", type=Path)
    parser.add_argument("--prepared", type=Path)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--max-length", type=int, default=256, help="of the passages that are made")
    parser.add_argument("--lora", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--warm-up", type=int, default=80)
    parser.add_argument("--worker")
    parser.add_argument("--tuned", action="store_true")
    return parser.parse_args()


WORKERS = {
    "ours": work_ours,
    "hf": work_hf,
    "lightning": work_lightning,
    "st": work_st,
    "trl": work_trl,
    "products": work_products_alone,
}
PEERS = {
    "classify": {
        "HF Trainer": ["hf"],
        "HF Trainer, tuned": ["hf", "--tuned", "--compile"],
        "Lightning": ["lightning"],
    },
    "causal": {"HF Trainer": ["hf"], "HF Trainer, tuned": ["hf", "--tuned"], TRL: ["trl"]},
    "two-tower": {"sentence-transformers": ["st"], "sentence-transformers, tuned": ["st", "--tuned"]},
}

if __name__ == "__main__":
    main()
