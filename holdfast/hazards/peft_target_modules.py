"""The adapter targets layers that this model does not have, or no layers at all.

What you see: "Target modules {...} not found in the base model" or "Please specify `target_modules` in `peft_config`"
when the adapter is attached.
Why: layer names differ between families (`q_proj`, `query_key_value`, `c_attn`, `Wqkv`), and an adapter trained on one
architecture, or on rewritten layers, does not fit another.
What we do: select the layers by kind ("all-linear") instead of by name, or list the layers of the model.
"""

from holdfast.core.plan import Remedy
from holdfast.hazards import Hazard, proves, seen, suggests

HAZARD = Hazard(
    slug="peft-target-modules",
    title="the adapter's target layers are not in this model",
    kind="error",
    signs=(
        proves("log", r"Target modules? [^\n]*not found in the base model"),
        proves("log", r"Please specify `?target_modules`?"),
        proves("log", r"Target module [\s\S]{1,500}? is not supported"),
        proves("log", r"is not supported\. Currently, only (?:the following modules|`?torch\.nn)"),
        proves("log", r"No modules were targeted for adaptation|All modules were excluded"),
        proves("log", r"Only instances of PreTrainedModel support `?target_modules"),
        proves("log", r"No `?target_modules`? passed but also no `?target_parameters"),
        proves(
            "error",
            r"(?:lora_target|target_modules)[^\n]*(?:not found|are? not (?:in|supported|valid)|cannot be found|does not exist|must be|should be)",
        ),
        proves("log", r"Module \S+ is not found, please choose from"),
        suggests(
            "error",
            r"(?i)(?:no|none of the|could not find any) (?:lora|adapter|target) (?:layers?|modules?)[^\n]*(?:found|match)",
        ),
        suggests(
            "error",
            r"^KeyError: ",
            also=(seen("log", r"TO_\w*TARGET_MODULES_MAPPING|_prepare_(?:adapter|lora)_config"),),
        ),
        suggests(
            "frame",
            r"_find_and_replace|_check_target_module_exists|_create_new_module|inject_adapter|_prepare_(?:adapter|lora)_config",
            unless=(seen("error", r"."),),
        ),
    ),
    remedies=(
        Remedy(
            "adapt every linear layer instead of naming layers",
            command='LoraConfig(target_modules="all-linear", ...)',
            cost="more trained parameters than with attention layers only",
            keeps=False,
        ),
        Remedy(
            "list the model's layers and target those",
            command="python -c \"import torch.nn as nn; print({name.split('.')[-1] for name, layer in model.named_modules() if isinstance(layer, nn.Linear)})\"",
        ),
        Remedy(
            "attach the adapter to the model it was trained on, with the same rewritten layers",
            command="grep base_model_name_or_path adapter_config.json",
        ),
    ),
    sources=(
        "lich99/ChatGLM-finetune-LoRA#14",
        "huggingface/peft#1206",
        "huggingface/peft#758",
        "huggingface/trl#3427",
        "AutoGPTQ/AutoGPTQ#667",
    ),
    matches=(
        "ValueError: Target modules {'q_proj', 'v_proj'} not found in the base model. Please check the target modules and try again.",
        "ValueError: Target modules [] not found in the base model. Please check the target modules and try again.",
        "ValueError: Please specify `target_modules` in `peft_config`",
        "ValueError: Target module Gemma4ClippableLinear() is not supported. Currently, only the following modules are supported: `torch.nn.Linear`",
        "ValueError: No modules were targeted for adaptation. This might be caused by a combination of mismatched target modules and excluded modules.",
        '  File "/venv/lib/python3.10/site-packages/peft/tuners/lora.py", line 181, in _find_and_replace',
        "ValueError: Target module Dropout(p=0.1) is not supported. Currently, only the following modules are supported: `torch.nn.Linear`, `torch.nn.Embedding`.",
        "ValueError: Only instances of PreTrainedModel support `target_modules='all-linear'`",
        "ValueError: No `target_modules` passed but also no `target_parameters` found.",
        "ValueError: lora_target 'wq' not found in the model",
        "ValueError: Module wq is not found, please choose from ['q_proj', 'v_proj']",
        "RuntimeError: no LoRA modules were found that match the model",
        "    peft_config = self._prepare_adapter_config(peft_config, model_config)\nKeyError: 'qwen9'",
    ),
    near_misses=(
        "RuntimeError: Error(s) in loading state_dict for PeftModelForCausalLM:\n\tsize mismatch for base_model.model.lm_head.weight",
        "TypeError: LoraConfig.__init__() got an unexpected keyword argument 'corda_config'",
        "trainable params: 0 || all params: 6738415616 || trainable%: 0.0",
    ),
)
