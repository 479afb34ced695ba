"""The tokenizer has no chat template, and the program formats conversations with it.

What you see: "Cannot use chat template functions because tokenizer.chat_template is not set and no template argument
was passed!"
Why: base models have no template, and since transformers 4.44 there is no default one. A copied or converted model may
have lost the file or the entry that holds it.
What we do: use the instruct variant's tokenizer, or set the template that the model is to learn.
"""

from holdfast.core.plan import Remedy
from holdfast.hazards import Hazard, proves

HAZARD = Hazard(
    slug="chat-template-missing",
    title="the tokenizer has no chat template",
    kind="error",
    signs=(
        proves(
            "log",
            r"chat_template`? (?:attribute )?is (?:not set|null|None|missing|not (?:defined|available))|No chat template is (?:set|defined|available)",
        ),
        proves(
            "error",
            r"(?i)(?:tokenizer|processor|model)[^\n]{0,60}(?:does not|doesn't) (?:have|contain|define|provide) (?:a|any) chat[ _]template|chat[ _]template (?:was |is )?(?:missing|not found)",
        ),
    ),
    remedies=(
        Remedy("use the instruct variant's tokenizer", command="AutoTokenizer.from_pretrained('MODEL-Instruct')"),
        Remedy(
            "set the template that the model is to learn",
            command="tokenizer.chat_template = open('chatml.jinja').read()   # or trl.clone_chat_template(model, tokenizer, 'MODEL-Instruct')",
        ),
    ),
    sources=(
        "huggingface/transformers#33246",
        "huggingface/open-r1#85",
        "OpenRLHF/OpenRLHF#613",
        "sgl-project/sglang#3385",
    ),
    matches=(
        "ValueError: Cannot use chat template functions because tokenizer.chat_template is not set and no template argument was passed!",
        "ValueError: The tokenizer does not have a chat template; pass --chat-template.",
    ),
    near_misses=(
        "jinja2.exceptions.TemplateError: Conversation roles must alternate user/assistant/user/assistant/...",
    ),
)
