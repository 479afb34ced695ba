"""A checkpoint's weights do not match the model that was built.

What you see: "Error(s) in loading state_dict", with missing keys, unexpected keys or wrong sizes; "size mismatch for
classifier.weight".
Why: the model has a different head, vocabulary, depth or wrapper (`module.` from DataParallel, `_orig_mod.` from
compile, `base_model.model.` from an adapter) than the saved one, or the file belongs to another model.
What we do: build the model from the checkpoint's own config and name the keys that differ.
"""

from holdfast.core.plan import Remedy
from holdfast.hazards import Hazard, proves, seen, suggests

HAZARD = Hazard(
    slug="checkpoint-mismatch",
    title="the checkpoint does not match the model",
    kind="error",
    signs=(
        proves("log", r"Error\(s\) in loading state_dict for"),
        proves(
            "log",
            r"(?:[Uu]nexpected|[Mm]issing) key\(?s?\)?(?: \"[^\"\n]*\")? in state_dict|keys? not found in (?:state_dict|checkpoint)",
        ),
        proves("log", r"While copying the parameter named \S+, whose dimensions in the model are"),
        proves("error", r"size mismatch(?: for [\w.]+)?(?:, got|: copying a param)|[Ss]hape mismatch for \S+"),
        proves("log", r"You set `?ignore_mismatched_sizes`? to `?False"),
        proves("log", r"Trying to set a tensor of shape [^\n]* this looks? incorrect"),
        proves("log", r"Cannot load model parameters from checkpoint|please ensure that the architectures match"),
        proves(
            "log",
            r"(?:Tensor name|Key) \"?\S+\"? not found in checkpoint|Assign requires shapes of both tensors to match",
        ),
        proves(
            "log",
            r"(?:load|loading) a weight file containing \d+ layers? into a model with \d+|expects? \d+ (?:variables?|weight\(s\)), but (?:the saved weights|received|it received)",
        ),
        proves("log", r"\S value from checkpoint \([^)\n]*\) is not equal to the (?:input )?argument value"),
        proves(
            "error",
            r"(?i)(?:checkpoint|state[_ ]?dict|pretrained weights?)\b[^\n]{0,60}\b(?:does not|do not|doesn't|don't) (?:match|fit)[^\n]{0,40}(?:model|architecture|config)",
        ),
        suggests("log", r"size mismatch for \S+: copying a param with shape"),
        suggests(
            "log",
            r"^(?:\W*)(?:[Uu]nexpected key\(?s?\)? in (?:source )?state_dict|[Mm]issing key\(?s?\)? in (?:source )?state_dict)",
        ),
        suggests("log", r"The model and loaded state dict do not match exactly"),
        suggests("error", r"ignore_mismatched_sizes|strict=False"),
        suggests(
            "error",
            r"^KeyError: ['\"](?:state_dict|model|net|model_state_dict|module|weights|generator|params_ema|params|teacher)['\"]",
            also=(
                seen(
                    "log",
                    r"(?i)^[^\n]*(?:load|ckpt|checkpoint|state|pretrain|weight)[^\n]*\[['\"](?:state_dict|model|net|model_state_dict|module|weights|generator|params_ema|params|teacher)['\"]\]",
                ),
            ),
        ),
        suggests(
            "error",
            r"^KeyError: ['\"][\w.]+\.(?:weight|bias|running_mean|running_var)['\"]",
            also=(seen("log", r"(?i)load|ckpt|checkpoint|state_dict|pretrain"),),
        ),
        suggests(
            "frame",
            r"load_state_dict \(.*torch.nn.modules|_load_state_dict_into_model|_load_pretrained_model",
            unless=(seen("error", r"."),),
        ),
    ),
    remedies=(
        Remedy(
            "build the model from the checkpoint's own config",
            command="AutoModel.from_pretrained(CHECKPOINT_FOLDER)",
            cost="none",
        ),
        Remedy(
            "remove the wrapper's prefix from the names",
            command="state = {name.removeprefix('module.').removeprefix('_orig_mod.'): value for name, value in state.items()}",
            cost="none",
        ),
        Remedy(
            "start with a new head if only its size differs",
            command="from_pretrained(..., num_labels=N, ignore_mismatched_sizes=True)",
            cost="the head is trained from scratch",
            keeps=False,
        ),
        Remedy(
            "ignore extra keys, after checking that the model does not need them",
            command="model.load_state_dict(state, strict=False)",
            cost="layers without a key silently stay untrained",
            keeps=False,
        ),
    ),
    sources=(
        "TongkunGuan/SIGA#4",
        "open-mmlab/mmdetection#9106",
        "huggingface/transformers#15876",
        "huggingface/transformers#14073",
        "Lightning-AI/pytorch-lightning#7282",
    ),
    matches=(
        'RuntimeError: Error(s) in loading state_dict for DataParallel:\n\tUnexpected key(s) in state_dict: "module.fc.weight".',
        "\tsize mismatch for classifier.weight: copying a param with shape torch.Size([80, 128]) from checkpoint, the shape in current model is torch.Size([2, 128]).",
        "KeyError: 'unexpected key \"module.conv1.weight\" in state_dict'",
        "RuntimeError: While copying the parameter named fc.weight, whose dimensions in the model are torch.Size([2, 512]) and whose dimensions in the checkpoint are torch.Size([1000, 512]).",
        "RuntimeError: You set `ignore_mismatched_sizes` to `False`, thus raising an error.",
        'ValueError: Trying to set a tensor of shape torch.Size([32001, 4096]) in "weight" (which has shape torch.Size([32000, 4096])), this look incorrect.',
        "    model.load_state_dict(torch.load(path)['state_dict'])\nKeyError: 'state_dict'",
        "RuntimeError: size mismatch for fc.weight: copying a param with shape torch.Size([10, 64]) from checkpoint, the shape in current model is torch.Size([2, 64]).",
        "Exception: Cannot load model parameters from checkpoint out/checkpoint_best.pt; please ensure that the architectures match.",
        'NotFoundError: Key "encoder/kernel" not found in checkpoint',
        "ValueError: You are trying to load a weight file containing 12 layers into a model with 10 layers.",
        "ValueError: Hidden size value from checkpoint (768) is not equal to the input argument value (1024).",
        "ValueError: The checkpoint does not match the model configuration",
        "The model and loaded state dict do not match exactly\nunexpected key in source state_dict: fc.bias",
        "    state = load_checkpoint(path)\nKeyError: 'encoder.layer.0.weight'",
        '  File "/venv/lib/python3.11/site-packages/transformers/modeling_utils.py", line 3900, in _load_pretrained_model\n    error_msgs += _load_state_dict_into_model(model, state_dict)\n',
    ),
    near_misses=(
        "Some weights of BertForSequenceClassification were not initialized from the model checkpoint at bert-base-uncased and are newly initialized: ['classifier.bias']",
        "Some weights of the model checkpoint at bert-base-uncased were not used when initializing BertModel: ['cls.predictions.bias']",
        "ValueError: loaded state dict contains a parameter group that doesn't match the size of optimizer's group",
        "KeyError: 'late stage of myocardial infarction'",
        "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",
    ),
)
