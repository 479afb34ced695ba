"""The placeholders for images, video or audio in the text do not fit the media of the example.

What you see: "Image features and image tokens do not match: tokens: 14650, features 17152".
Why: the text was cut to the maximum length in the middle of an image's placeholders, an example has an image without a
placeholder or the reverse, or the processor that counted them is of another version than the model.
What we do: quote both numbers. Give the text enough room, or make the images smaller.
"""

from holdfast.core.plan import Remedy
from holdfast.hazards import Hazard, proves

_MEDIA = r"(?:image|images|video|videos|audio|vision|visual|multimodal|media|mm)"

HAZARD = Hazard(
    slug="image-token-mismatch",
    title="the image placeholders in the text do not fit the images",
    kind="error",
    signs=(
        proves(
            "error",
            rf"(?i)\b{_MEDIA} features and {_MEDIA} tokens do(?:es)? not match|number of {_MEDIA} tokens is \d+ while the number of {_MEDIA}",
        ),
        proves(
            "error",
            rf"(?i)(?:number|num|amount|count) of {_MEDIA}[_ ]?(?:tokens?|placeholders?|features)?\b[^\n]{{0,80}}(?:does(?:n't| not) match|do not match|not equal|mismatch|must (?:match|be equal)|!=|is not consistent|should be equal)",
        ),
        proves(
            "error",
            rf"(?i)mismatch in `?{_MEDIA}`? token count|{_MEDIA} (?:tokens?|placeholders?) (?:count )?mismatch|got \d+ {_MEDIA}(?: \w+)? (?:but|and|for) \d+ (?:{_MEDIA} )?(?:tokens|placeholders)",
        ),
    ),
    remedies=(
        Remedy(
            "do not cut the text inside the placeholders",
            command="SFTConfig(max_length=None)   # or a larger cutoff_len",
            cost="more memory",
        ),
        Remedy(
            "make the images smaller, which takes fewer placeholders",
            command="AutoProcessor.from_pretrained(name, max_pixels=512 * 28 * 28)",
            keeps=False,
        ),
        Remedy(
            "give each image exactly one placeholder in its text", command="assert text.count('<image>') == len(images)"
        ),
    ),
    sources=(
        "huggingface/trl#5927",
        "2U1/Qwen-VL-Series-Finetune#125",
        "hiyouga/LlamaFactory#9166",
        "EvolvingLMMs-Lab/open-r1-multimodal#28",
    ),
    matches=(
        "ValueError: Image features and image tokens do not match, tokens: 2040, features: 2304",
        "ValueError: The number of images in the text [1] does not match the number of images given [2]",
        "ValueError: Mismatch in `image` token count between text and `input_ids`. Got ids=[380] and text=[576].",
    ),
    near_misses=(
        "RuntimeError: The size of tensor a (576) must match the size of tensor b (577) at non-singleton dimension 1",
    ),
)
