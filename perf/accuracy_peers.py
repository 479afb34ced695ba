"""The peers of `accuracy.py`: trains with an attempt's settings, by HF Trainer or the loss of sentence-transformers.

Writes metrics.json to the run's folder, computed with the engine's metrics; for two-tower a model folder instead, which
is evaluated like the engine's.
"""

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from holdfast.data.shards import open_array, open_tokens
from holdfast.engine.attempt_settings import AttemptSettings, read_attempt_settings
from holdfast.engine.batches import micro_batches
from holdfast.engine.data_order import DataOrder
from holdfast.engine.metrics import multi_label_metrics, single_label_metrics


def main(attempt: Path) -> None:
    """Train as the attempt's folder says."""
    if (attempt / "search.json").is_file():
        metrics = search(attempt)
    else:
        settings = read_attempt_settings(attempt)
        torch.set_num_threads(settings.threads or torch.get_num_threads())
        metrics = {"classify": classify, "causal": causal, "two-tower": two_tower}[settings.task](settings)
    (attempt.parents[1] / "metrics.json").write_text(json.dumps({"test": metrics}))


def classify(settings: AttemptSettings) -> dict[str, float]:
    """HF Trainer with dynamic padding."""
    from transformers import AutoModelForSequenceClassification

    manifest = json.loads((settings.prepared_path / "manifest.json").read_text())
    labels = {split: np.asarray(open_array(settings.prepared_path, f"{split}.labels")) for split in ("train", "test")}
    texts = {split: open_tokens(settings.prepared_path, split) for split in labels}
    rows = [{"input_ids": texts["train"][at], "labels": labels["train"][at]} for at in range(len(texts["train"]))]
    kind = "multi_label_classification" if manifest["multi_label"] else "single_label_classification"
    torch.manual_seed(settings.seed)
    model = AutoModelForSequenceClassification.from_pretrained(
        settings.model, num_labels=len(manifest["labels"]), problem_type=kind, dtype=torch.float32
    )
    train(settings, model, rows, labelled)
    scores = np.zeros((len(texts["test"]), len(manifest["labels"])))
    for at in micro_batches(np.arange(len(scores)), texts["test"].lengths, 8192):
        batch = padded([{"input_ids": texts["test"][int(row)]} for row in at])
        with torch.no_grad(), settings.autocast():
            scores[at] = model(**_on(settings, batch)).logits.float().cpu().numpy()
    measure = multi_label_metrics if manifest["multi_label"] else single_label_metrics
    return measure(scores, labels["test"])


def causal(settings: AttemptSettings) -> dict[str, float]:
    """HF Trainer with dynamic padding, and peft for LoRA."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(settings.seed)
    lora: Any = settings.options.get("lora")
    as_came = lora and settings.uses_device_rng  # the usual way to load a model for LoRA on a card
    model: Any = AutoModelForCausalLM.from_pretrained(
        settings.model, dtype=torch.bfloat16 if as_came else torch.float32
    )
    if lora:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **lora))
    train(settings, model, instructions(settings, "train"), learned)
    total, count = 0.0, 0
    rows = instructions(settings, "test")
    lengths = np.array([len(row["input_ids"]) for row in rows])
    for at in micro_batches(np.arange(len(rows)), lengths, 8192):
        batch = _on(settings, learned([rows[int(row)] for row in at]))
        labels = batch.pop("labels")
        with torch.no_grad(), settings.autocast():
            logits = model(**batch).logits[:, :-1].float()
        flat = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), reduction="sum")
        total, count = total + float(flat), count + int((labels[:, 1:] >= 0).sum())
    return {"loss": total / count, "perplexity": math.exp(total / count)}


def two_tower(settings: AttemptSettings) -> dict[str, float]:
    """The model and the in-batch loss of sentence-transformers in a plain loop, on the engine's batches."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
    from transformers import get_linear_schedule_with_warmup

    torch.manual_seed(settings.seed)
    model = SentenceTransformer(settings.model, device=settings.device).float()
    loss_of = MultipleNegativesRankingLoss(model, scale=20.0)
    corpus, queries = open_tokens(settings.prepared_path, "corpus"), open_tokens(settings.prepared_path, "train")
    qrels = open_array(settings.prepared_path, "train.qrels")
    order = DataOrder(corpus.lengths[qrels[:, 1]], settings.batch_size, settings.seed)
    steps = settings.max_steps or settings.epochs * order.steps_per_epoch
    decayed = [weight for weight in model.parameters() if weight.ndim >= 2]
    plain = [weight for weight in model.parameters() if weight.ndim < 2]
    groups = [{"params": decayed, "weight_decay": settings.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=settings.lr)
    schedule = get_linear_schedule_with_warmup(optimizer, math.ceil(settings.warmup_ratio * steps), steps)
    model.train()
    for step in range(steps):
        rows = qrels[order.examples(step)]
        sides = [[queries[at] for at in rows[:, 0]], [corpus[at] for at in rows[:, 1]]]
        features = [_on(settings, padded([{"input_ids": text} for text in side])) for side in sides]
        with settings.autocast():
            loss = loss_of(features, None)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    model.save(str(Path(settings.run) / "model"))
    return {}


def search(attempt: Path) -> dict[str, float]:
    """Retrieval metrics of a finished model on the test queries of some prepared folders."""
    from holdfast.engine.tasks import load_task

    wanted, given = (
        json.loads((attempt / "search.json").read_text()),
        json.loads((attempt / "settings.json").read_text()),
    )
    found = {}
    for at, folder in enumerate(wanted["search"]):
        settings = AttemptSettings(
            task="two-tower", model=wanted["model"], prepared=folder, run=".", device=given["device"]
        )
        metrics = load_task(settings).evaluate("test")
        found |= {name if at == 0 else f"{Path(folder).name} {name}": value for name, value in metrics.items()}
    return found


def train(settings: AttemptSettings, model: Any, rows: list[dict], collate: Any) -> None:
    """The engine's settings, given to HF Trainer."""
    from transformers import Trainer, TrainingArguments

    steps = settings.max_steps or settings.epochs * math.ceil(len(rows) / settings.batch_size)
    arguments = TrainingArguments(
        output_dir=settings.run,
        per_device_train_batch_size=settings.batch_size,
        max_steps=steps,
        learning_rate=settings.lr,
        weight_decay=settings.weight_decay,
        warmup_steps=math.ceil(settings.warmup_ratio * steps),
        max_grad_norm=settings.max_grad_norm,
        seed=settings.seed,
        bf16=settings.precision == "bf16",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        logging_steps=10**6,
        use_cpu=settings.device == "cpu",
    )
    Trainer(model=model, args=arguments, train_dataset=rows, data_collator=collate).train()
    model.eval()


def instructions(settings: AttemptSettings, split: str) -> list[dict]:
    """Texts with labels on the learned tokens."""
    texts, learn = open_tokens(settings.prepared_path, split), open_array(settings.prepared_path, f"{split}.learn")
    flags = [learn[texts.starts[at] : texts.starts[at + 1]] > 0 for at in range(len(texts))]
    return [{"input_ids": texts[at], "labels": np.where(flags[at], texts[at], -100)} for at in range(len(texts))]


def labelled(rows: list[dict], unit: int = 1) -> dict[str, torch.Tensor]:
    """Padded texts with a label or a row of labels each."""
    return padded(rows, unit) | {"labels": torch.from_numpy(np.stack([row["labels"] for row in rows]))}


def learned(rows: list[dict], unit: int = 1) -> dict[str, torch.Tensor]:
    """Padded texts with a label for each token."""
    found = padded(rows, unit)
    labels = torch.full_like(found["input_ids"], -100)
    for at, row in enumerate(rows):
        labels[at, : len(row["labels"])] = torch.from_numpy(row["labels"].astype(np.int64))
    return found | {"labels": labels}


def padded(rows: list[dict], unit: int = 1) -> dict[str, torch.Tensor]:
    """Texts padded to the longest, and to a multiple of `unit`."""
    longest = max(len(row["input_ids"]) for row in rows)
    shape = len(rows), -(-longest // unit) * unit
    ids, mask = torch.zeros(shape).long(), torch.zeros(shape).long()
    for at, row in enumerate(rows):
        size = len(row["input_ids"])
        ids[at, :size], mask[at, :size] = torch.from_numpy(row["input_ids"].astype(np.int64)), 1
    return {"input_ids": ids, "attention_mask": mask}


def _on(settings: AttemptSettings, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.to(settings.device) for name, tensor in batch.items()}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
