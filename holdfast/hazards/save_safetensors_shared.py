"""The model shares tensors between layers, which safetensors refuses to save.

What you see: "Some tensors share memory" or "The weights trying to be saved contained shared tensors" at the first
checkpoint, often hours into the run.
Why: tied embeddings, reused layers or flattened buffers are one block of memory with several names. safetensors does
not store aliases, and the model does not declare which names are tied.
What we do: save once early, so that the error appears within minutes. Remove the duplicate names or save with
`save_model`.
"""

from holdfast.core.plan import Remedy
from holdfast.hazards import Hazard, proves, seen, suggests

HAZARD = Hazard(
    slug="save-safetensors-shared",
    title="shared tensors cannot be saved as safetensors",
    kind="error",
    signs=(
        proves("log", r"Some tensors share memory"),
        proves("log", r"weights trying to be saved contained shared tensors"),
        proves("log", r"mismatching the transformers base configuration|remove this tensor sharing"),
        proves("log", r"A potential way to correctly save your model is to use `?save_model"),
        proves("log", r"found no suitable name to keep for saving amongst"),
        proves("error", r"(?i)(?:shared|tied) (?:tensors?|weights?)[^\n]*safe(?:_serialization|tensors)"),
        # Refused for the same reason: the bytes on disk would not be the tensor.
        suggests("log", r"trying to save a non[- ]?contiguous tensor"),
        suggests("frame", r"_flatten \(.*safetensors|_remove_duplicate_names", unless=(seen("error", r"."),)),
    ),
    remedies=(
        Remedy(
            "save with the function that handles shared tensors",
            command="safetensors.torch.save_model(model, 'model.safetensors')",
            cost="none; load it with load_model",
        ),
        Remedy(
            "declare the tied names in the model's class, so that only one is written",
            command="_tied_weights_keys = ['lm_head.weight']",
        ),
        Remedy(
            "make shared and non-contiguous tensors independent before saving",
            command="state = {name: tensor.contiguous().clone() for name, tensor in model.state_dict().items()}",
            cost="a second copy in memory while saving",
        ),
        Remedy(
            "save in torch's format (not available in transformers 5)",
            command="TrainingArguments(save_safetensors=False) or model.save_pretrained(..., safe_serialization=False)",
            cost="a pickle file; never load one from an untrusted source",
        ),
    ),
    sources=(
        "2U1/Phi3-Vision-Finetune#14",
        "safetensors/safetensors#202",
        "huggingface/trl#5150",
        "safetensors/safetensors#304",
    ),
    matches=(
        "RuntimeError: The weights trying to be saved contained shared tensors [{'a.weight', 'b.weight'}] that are mismatching the transformers base configuration.",
        "RuntimeError: \n            Some tensors share memory, this will lead to duplicate memory on disk and potential differences when loading them again: [{'lm_head.weight', 'embed.weight'}].",
        "ValueError: You are trying to save a non contiguous tensor: `encoder.weight` which is not allowed.",
        '  File "/venv/lib/python3.11/site-packages/safetensors/torch.py", line 394, in _flatten\n    raise RuntimeError(',
        "A potential way to correctly save your model is to use `save_model`.",
        "RuntimeError: Error while trying to find names to remove to save state dict, but found no suitable name to keep for saving amongst: {'a', 'b'}.",
        "RuntimeError: the tied weights cannot be written with safe_serialization=True",
    ),
    near_misses=(
        "Removed shared tensor {'lm_head.weight'} while saving. This should be OK, but check by verifying that you don't receive any warning while reloading",
        "safetensors_rust.SafetensorError: Error while serializing: I/O error: No space left on device (os error 28)",
    ),
)
