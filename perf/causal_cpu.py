"""Times instruction tuning of SmolLM2-135M on the CPU, 8 texts per step: the engine, HF Trainer, TRL (peft for LoRA).

The same texts, truncated at the same length, with the loss on answers only. Without --model the weights are random, and
without --prepared the texts are too, with the lengths of short human-written instructions (median 80 tokens, 46 %
answer); neither affects the time of a step. fp32, AdamW, clipping at 1.
"""

import argparse
import json
import os
import tempfile
from pathlib import Path

BATCH = 8
OURS = "holdfast"
LORA = {"r": 16, "lora_alpha": 32, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]}
CALM = {"GOMP_SPINCOUNT": "1000"}  # helps the peers on a busy machine as much as the engine; see engine.process_setup
TRL = "TRL SFTTrainer"
PEERS = {"HF Trainer, dynamic padding": [], "HF Trainer, grouped by length": ["--grouped"]}


def main() -> None:
    """Let the engine and HF Trainer take turns."""
    options = _options()
    if options.worker:
        return {OURS: work_ours, "hf": work_hf, TRL: work_trl, "products": work_products_alone}[options.worker](options)
    from contest import Contestant, contest, report
    from matrix_rate import PRODUCTS, language_gflop, shares
    from peers import trl_python

    with tempfile.TemporaryDirectory() as name:
        model, prepared = options.model or Path(name) / "model", options.prepared or Path(name) / "prepared"
        if not options.model:
            make_model(model)
        if not options.prepared:
            make_texts(prepared)
        for kind in options.kinds:
            given = [__file__, "--model", str(model), "--prepared", str(prepared), "--kinds", kind]
            contestants = [Contestant(OURS, [*given, "--worker", OURS])]
            for peer, more in PEERS.items():
                contestants.append(Contestant(peer, [*given, "--worker", "hf", *more], CALM))
            contestants.append(Contestant(TRL, [*given, "--worker", TRL], CALM, trl_python()))
            contestants.append(Contestant(PRODUCTS, [*given, "--worker", "products"]))
            turns = contest(contestants, options.rounds, options.steps, warm_up=1)
            tokens, learned = lengths(prepared)
            used = shares(turns, language_gflop(model, tokens, learned, is_lora=kind == "lora"))
            report(f"causal_cpu {kind}", turns, OURS, tokens=tokens, shares=used)


def work_products_alone(options: argparse.Namespace) -> None:
    """Only matrix products."""
    from matrix_rate import work_products

    work_products("cpu", options.threads)


def work_ours(options: argparse.Namespace) -> None:
    """The engine's own loop."""
    from contest import run_engine

    more = {"options": {"lora": LORA}} if options.kinds == ["lora"] else {}
    run_engine("causal", options.model, options.prepared, options.threads, batch_size=BATCH, **more)


def work_hf(options: argparse.Namespace) -> None:
    """HF Trainer on the same texts."""
    import torch
    from contest import hf_arguments, paced_trainer
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(options.threads)
    data = labelled(options.prepared)
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    if options.kinds == ["lora"]:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **LORA))
    with tempfile.TemporaryDirectory() as folder:
        arguments = hf_arguments(folder, BATCH, options.grouped)
        make = paced_trainer(BATCH)
        make(model=model, args=arguments, train_dataset=data, data_collator=collate).train()


def work_trl(options: argparse.Namespace) -> None:
    """TRL's trainer on the same tokens."""
    from trl_peer import train

    lora = LORA if options.kinds == ["lora"] else None
    train(options.model, options.prepared, BATCH, lora, device="cpu", threads=options.threads)


def lengths(prepared: Path) -> tuple[float, float]:
    """Mean tokens per text, and how many of them are learned."""
    from holdfast.data.shards import open_array, open_tokens

    texts = open_tokens(prepared, "train")
    return float(texts.lengths.mean()), float(open_array(prepared, "train.learn").sum() / len(texts))


def labelled(prepared: Path) -> list[dict]:
    """The texts, with labels on the learned tokens."""
    from holdfast.data.shards import open_array, open_tokens

    texts, learn = open_tokens(prepared, "train"), open_array(prepared, "train.learn")
    data = []
    for at in range(len(texts)):
        flags = learn[texts.starts[at] : texts.starts[at + 1]]
        labels = [int(token) if flag else -100 for token, flag in zip(texts[at], flags, strict=True)]
        data.append({"input_ids": texts[at].tolist(), "labels": labels})
    return data


def collate(rows: list[dict]) -> dict:
    """Pad to the longest text of the batch."""
    import torch

    shape = len(rows), max(len(row["input_ids"]) for row in rows)
    ids, mask, labels = torch.zeros(shape).long(), torch.zeros(shape).long(), torch.full(shape, -100)
    for at, row in enumerate(rows):
        size = len(row["input_ids"])
        ids[at, :size], mask[at, :size] = torch.tensor(row["input_ids"]), 1
        labels[at, :size] = torch.tensor(row["labels"])
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def make_model(folder: Path) -> None:
    """SmolLM2-135M with random weights, and a tokenizer of numbered words."""
    import torch
    from tokenizers import Tokenizer, models
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    shape = {"hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3}
    config = LlamaConfig(vocab_size=49_152, intermediate_size=1536, tie_word_embeddings=True, **shape)
    LlamaForCausalLM(config).save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"w{number}": number for number in range(49_152)}, unk_token="w0"))
    marks = {"unk_token": "w0", "eos_token": "w2", "pad_token": "w2"}
    PreTrainedTokenizerFast(tokenizer_object=words, **marks).save_pretrained(folder)


def make_texts(folder: Path, count: int = 1000) -> None:
    """Random texts; those of a chat have the same beginning."""
    import numpy as np

    from holdfast.data.shards import write_tokens

    folder.mkdir(parents=True)
    draws = np.random.default_rng(0)
    lengths = np.clip(np.exp(draws.normal(4.38, 0.37, count)).astype(int), 40, 400)
    opening = draws.integers(0, 49_152, 24)
    texts = [np.concatenate([opening, draws.integers(0, 49_152, length - 24)]).tolist() for length in lengths]
    write_tokens(folder, "train", texts)
    learn = [np.arange(length) >= round(0.54 * length) for length in lengths]
    np.save(folder / "train.learn.npy", np.concatenate(learn).astype(np.uint8))
    (folder / "manifest.json").write_text(json.dumps({"task": "causal", "splits": ["train"]}))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--prepared", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--kinds", nargs="+", default=["lora", "full"])
    parser.add_argument("--worker")
    parser.add_argument("--grouped", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
