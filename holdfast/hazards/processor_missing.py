"""The model's folder has no processor that this transformers can load.

What you see: "does not appear to have a file named preprocessor_config.json", "Unrecognized processing class in ...".
Why: a processor (image processor, feature extractor) is saved separately from the model: it was not saved with the
checkpoint, the repository is in another format than transformers', or the model is newer than the library.
What we do: take the processor from the original model, and save it next to each checkpoint.
"""

from holdfast.core.plan import Remedy
from holdfast.hazards import Hazard, proves

_KIND = r"(?:image |video |audio |feature )?(?:processor|processing|preprocessor|image_processor|extractor)"

HAZARD = Hazard(
    slug="processor-missing",
    title="the model's folder has no processor that can be loaded",
    kind="error",
    signs=(
        proves(
            "log",
            r"does not appear to have a file named \S*(?:processor|preprocessor|feature_extractor)\w*_?config\.json|[Ee]rror no file named \S*processor_config\.json",
        ),
        proves(
            "error",
            rf"(?i)unrecognized {_KIND}(?: class)? in|\b{_KIND} (?:was|could) not (?:be )?found|can't load {_KIND} for",
        ),
    ),
    remedies=(
        Remedy("load the processor from the original model", command="AutoProcessor.from_pretrained('ORIGINAL/MODEL')"),
        Remedy("save the processor with each checkpoint", command="processor.save_pretrained('out/checkpoint-500')"),
        Remedy(
            "use the variant in the format of transformers (often named -hf), or a newer transformers",
            command="pip install --upgrade transformers",
        ),
    ),
    sources=(
        "OpenGVLab/InternVL#143",
        "PKU-YuanGroup/Video-LLaVA#186",
        "JIA-Lab-research/MGM#92",
        "hiyouga/LlamaFactory#7802",
    ),
    over=("hub-offline",),
    matches=(
        "OSError: out/checkpoint-500 does not appear to have a file named preprocessor_config.json. Checkout 'https://huggingface.co/out/checkpoint-500/tree/main' for available files.",
        "ValueError: Unrecognized processing class in out/checkpoint-500. Can't instantiate a processor, a tokenizer, an image processor or a feature extractor for this model.",
    ),
    near_misses=("OSError: out/checkpoint-500 does not appear to have a file named config.json.",),
)
