"""Teach a small language model from prompts and answers with SFTTrainer: MODEL OUTPUT [name=value ...]."""

import json
import sys

from datasets import Dataset
from transformers import AutoTokenizer
from trl import SFTConfig, SFTTrainer

model_folder, output = sys.argv[1:3]
options = {name: json.loads(value) for name, _, value in (word.partition("=") for word in sys.argv[3:])}
rows = [{"prompt": f"w{n} w{n + 1}", "completion": f" w{n + 3} w{n + 2} w{n + 7}"} for n in range(64)]
arguments = {"num_train_epochs": 2, "per_device_train_batch_size": 8, "learning_rate": 1e-3, "report_to": []}
arguments |= {"use_cpu": True} | options  # hosted Macs report a GPU that cannot be used
tokenizer = AutoTokenizer.from_pretrained(model_folder)
tokenizer.eos_token = "w2"
trainer = SFTTrainer(
    model=model_folder,
    args=SFTConfig(output, bf16=False, max_length=32, **arguments),
    train_dataset=Dataset.from_list(rows),
    processing_class=tokenizer,
)
trainer.train()
trainer.save_model(f"{output}/final")
print("finished", trainer.state.global_step)
