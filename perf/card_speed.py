"""Times language models and two towers on a CUDA card: the engine and its peers, in turns of many steps.

causal: SmolLM2-135M, --batch texts a step, LoRA or full; HF Trainer (with peft) as people run it and tuned (grouped by
length, padded to 64, fused optimizer, tf32). two-tower: MiniLM-L6, --batch pairs a step; the model and loss of
sentence-transformers in a plain loop, which is quicker than its trainer, and tuned the same way. bf16 for all. Random
weights of a language model without --model; prepared data must be given. Each is a process of its own, and one of them
works at a time.
"""

import argparse
import os
import tempfile
from pathlib import Path

OURS, COMPILED = "holdfast", "holdfast, compiled"
LORA = {"r": 16, "lora_alpha": 32, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]}


def main() -> None:
    """Let everyone take turns."""
    options = _options()
    if options.worker:
        return {"ours": work_ours, "hf": work_hf, "st": work_st}[options.worker](options)
    from contest import Contestant, contest, report

    with tempfile.TemporaryDirectory() as name:
        model = options.model or make_model(Path(name) / "model")
        given = [__file__, options.task, "--model", str(model), "--prepared", str(options.prepared)]
        given += ["--batch", str(options.batch), *(["--lora"] if options.lora else [])]
        peer, kind = ("HF Trainer", "hf") if options.task == "causal" else ("sentence-transformers", "st")
        contestants = [
            Contestant(OURS, [*given, "--worker", "ours"]),
            *([Contestant(COMPILED, [*given, "--worker", "ours", "--compile"])] if options.compile else []),
            Contestant(peer, [*given, "--worker", kind]),
            Contestant(f"{peer}, tuned", [*given, "--worker", kind, "--tuned"]),
        ]
        turns = contest(contestants, options.rounds, options.steps, warm_up=options.warm_up)
    kind = {"causal": "causal_cuda lora" if options.lora else "causal_cuda full", "two-tower": "two_tower_cuda"}
    report(f"{kind[options.task]} batch {options.batch}", turns, OURS, "cuda")


def work_ours(options: argparse.Namespace) -> None:
    """The engine's own loop."""
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    from contest import run_engine

    more = {"options": {"same_article": "negative"} if options.task == "two-tower" else {"samples": 0}}
    if options.lora:
        more["options"]["lora"] = LORA  # type: ignore[assignment]
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


def work_hf(options: argparse.Namespace) -> None:
    """HF Trainer on the same texts."""
    import torch
    from accuracy_peers import instructions, learned
    from contest import paced_trainer
    from transformers import AutoModelForCausalLM, TrainingArguments

    from holdfast.engine.settings import Settings

    place = {"model": str(options.model), "prepared": str(options.prepared), "run": "."}
    rows = instructions(Settings(task="causal", **place), "train")
    dtype = torch.bfloat16 if options.lora else torch.float32
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=dtype)
    if options.lora:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **LORA))
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
            **(tuned if options.tuned else {}),
        )
        unit = 64 if options.tuned else 1
        make = paced_trainer(options.batch)
        make(model=model, args=arguments, train_dataset=rows, data_collator=lambda part: learned(part, unit)).train()


def work_st(options: argparse.Namespace) -> None:
    """The model and the in-batch loss of sentence-transformers on the same pairs."""
    import torch
    from accuracy_peers import padded
    from contest import Pace
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    from holdfast.data.shards import open_array, open_tokens
    from holdfast.engine.order import Order

    if options.tuned:
        torch.backends.cuda.matmul.allow_tf32 = True
    model = SentenceTransformer(str(options.model), device="cuda").float()
    loss_of = MultipleNegativesRankingLoss(model)
    corpus, queries = open_tokens(options.prepared, "corpus"), open_tokens(options.prepared, "train")
    qrels = open_array(options.prepared, "train.qrels")
    lengths = corpus.lengths[qrels[:, 1]]
    order = Order(lengths, options.batch, 42, 50 if options.tuned else 1)  # tuned: pairs of like length together
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


def make_model(folder: Path) -> Path:
    """The shape of SmolLM2-135M with random weights, kept in bf16 as the real ones are."""
    import torch
    from causal_cpu import make_model as make_whole
    from transformers import AutoModelForCausalLM

    make_whole(folder)
    AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).save_pretrained(folder)
    return folder


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=["causal", "two-tower"])
    parser.add_argument("--model", type=Path)
    parser.add_argument("--prepared", type=Path, required=True)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--lora", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--warm-up", type=int, default=80)
    parser.add_argument("--worker")
    parser.add_argument("--tuned", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
