"""Some tensors are on the Apple GPU and some are not.

What you see: "Placeholder storage has not been allocated on MPS device!", "Expected all tensors to be on the same
device, but found at least two devices, mps:0 and cpu!", or "Expected a 'mps:0' generator device but found 'cpu'".
Why: the model was moved but an input, a buffer or a random generator was not. transformers 4.42.0 to 4.42.4 caused this
themselves: Accelerate put the model on the GPU and the Trainer left the inputs on the CPU.
What we do: run everything on the CPU, and name the library version if it is the cause.
"""

from holdfast.core.facts import MachineFacts
from holdfast.core.plan import Plan, Remedy
from holdfast.hazards import Hazard, Invited, proves, seen, suggests
from holdfast.hazards.apple_gpu import ON_MPS, uses_mps

_MPS_SIDE = r"\(MPS\w+Type\)"
_OTHER_SIDE = r"\((?:torch\.(?!mps)\w+|CPU\w+)\)"


def invited_by(facts: MachineFacts, plan: Plan) -> Invited | None:
    """Say why this machine and plan invite the hazard; None when they do not."""
    if not uses_mps(facts, plan):
        return None
    if facts.has_at_least("transformers", "4.42") and facts.has_below("transformers", "4.43"):
        return Invited(
            f"transformers {facts.distributions['transformers']} leaves inputs on the CPU while the model is on the Apple GPU"
        )
    return None


HAZARD = Hazard(
    slug="mps-device-mismatch",
    title="some tensors are on the Apple GPU and some are not",
    kind="error",
    invited_by=invited_by,
    signs=(
        proves("log", r"Placeholder storage has not been allocated on MPS device|Placeholder tensor is empty!"),
        proves(
            "error",
            r"(?:Expected|expected) an? '(?:mps(?::\d)?)' (?:generator )?device|generator (?:device )?but found '?mps|device type for generator but found '?mps",
        ),
        proves(
            "log",
            r"(?i:same device)[^\n]{0,160}\bmps(?::\d)?\b|\bmps(?::\d)?\b[^\n]{0,160}(?i:must be on the same device)",
        ),
        proves(
            "log",
            rf"[Ii]nput type {_MPS_SIDE} and (?:weight|bias) type {_OTHER_SIDE}|[Ii]nput type {_OTHER_SIDE} and (?:weight|bias) type {_MPS_SIDE}",
        ),
        proves(
            "error",
            r"is on cpu[^\n]{0,40}\bmps|is on mps(?::\d)?[^\n]{0,40}\bcpu|(?:on cpu|CPU tensor) (?:but expected on|to) mps|Passed CPU tensor to MPS op",
        ),
        proves(
            "error", r"same device as the indexed tensor \(mps|input tensor at mps|(?:hidden|parameter) tensor at mps"
        ),
        proves("error", r"can't convert mps(?::\d)? device type tensor to numpy"),
        suggests(
            "error", r"deserialize object on (?:an? )?MPS device but|data location of [^\n]{0,160}tagged with mps"
        ),
        suggests(
            "error",
            r"(?i:expected (?:all tensors|object|tensor)[^\n]{0,160}(?:same device|on (?:the )?(?:cpu|gpu)))",
            also=(ON_MPS,),
            unless=(seen("log", r"cuda:\d"),),
        ),
    ),
    remedies=(
        Remedy("train on the CPU", change={"device": "cpu"}, cost="slower"),
        Remedy("upgrade transformers past 4.42", command="pip install --upgrade 'transformers>=4.43'"),
        Remedy(
            "move inputs, buffers and generators to the model's device",
            command="batch = {k: v.to(model.device) for k, v in batch.items()}",
        ),
        Remedy(
            "do not set a default device together with a data loader", command="remove torch.set_default_device('mps')"
        ),
    ),
    sources=(
        "huggingface/sentence-transformers#2855",
        "huggingface/transformers#31812",
        "huggingface/transformers#31897",
        "pytorch/pytorch#110820",
        "pytorch/ignite#2977",
        "tracel-ai/burn#4038",
    ),
    matches=(
        "RuntimeError: Placeholder storage has not been allocated on MPS device!",
        "RuntimeError: Expected a 'mps:0' generator device but found 'cpu'",
        "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, mps:0 and cpu!",
        "RuntimeError: Expected all tensors to be on the same device, but got index is on cpu, different from other tensors on mps:0 (when checking argument in method wrapper_MPS__index_select)",
        "RuntimeError: Input type (MPSFloatType) and weight type (torch.FloatTensor) should be the same",
        "RuntimeError: Input type (torch.FloatTensor) and weight type (MPSFloatType) should be the same or input should be a MKLDNN tensor and weight is a dense tensor",
        "RuntimeError: Tensor for argument input is on cpu but expected on mps",
        "RuntimeError: indices should be either on cpu or on the same device as the indexed tensor (mps:0)",
        "TypeError: can't convert mps:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first.",
        "RuntimeError: Input and parameter tensors are not at the same device, found input tensor at mps:0 and parameter tensor at cpu",
        "RuntimeError: don't know how to restore data location of torch.storage.UntypedStorage (tagged with mps)",
    ),
    near_misses=(
        "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!",
        "RuntimeError: Input type (MPSFloatType) and weight type (MPSHalfType) should be the same",
        "RuntimeError: _share_filename_: only available on CPU",
    ),
)
