"""TRL's SFTTrainer as a contestant: a language model on the tokens that the engine has prepared, with peft for LoRA."""

import tempfile
from pathlib import Path
from typing import Any

import torch
from causal_cpu import labelled
from contest import paced_callback
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer


def train(
    model: Path, prepared: Path, batch: int, lora: dict[str, Any] | None, *, device: str, threads: int | None
) -> None:
    """Train in turns until stopped: fp32 on a CPU, bf16 on a card.

    Texts of similar length are grouped and padded to the longest.

    Its packing needs a kernel of flash-attn, which is not part of TRL.
    """
    if threads:
        torch.set_num_threads(threads)
    is_on_card = device != "cpu"
    data = labelled(prepared)
    more: dict[str, Any] = {}
    if lora:
        from peft import LoraConfig

        more["peft_config"] = LoraConfig(task_type="CAUSAL_LM", **lora)
    dtype = torch.bfloat16 if is_on_card and lora else torch.float32
    with tempfile.TemporaryDirectory() as folder:
        arguments = SFTConfig(
            output_dir=folder,
            per_device_train_batch_size=batch,
            num_train_epochs=1000,
            learning_rate=5e-5,
            weight_decay=0.01,
            optim="adamw_torch_fused",
            train_sampling_strategy="group_by_length",
            max_length=None,
            gradient_checkpointing=False,
            bf16=is_on_card,
            tf32=True if is_on_card else None,
            dataset_kwargs={"skip_prepare_dataset": True},
            save_strategy="no",
            report_to="none",
            logging_steps=500,
            disable_tqdm=True,
            use_cpu=not is_on_card,
        )
        SFTTrainer(
            model=AutoModelForCausalLM.from_pretrained(model, dtype=dtype),
            args=arguments,
            train_dataset=Dataset.from_dict({name: [row[name] for row in data] for name in ("input_ids", "labels")}),
            processing_class=AutoTokenizer.from_pretrained(model),
            callbacks=[paced_callback(batch)],
            **more,
        ).train()
