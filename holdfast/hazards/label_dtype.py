"""The labels have a number type that the loss does not accept.

What you see: "expected scalar type Long but found Float" or `"nll_loss..." not implemented for 'Int'` in cross entropy;
"Found dtype Long but expected Float" in a binary or squared loss.
Why: class losses need 64-bit integers; per-label and regression losses need floats. NumPy on Windows creates 32-bit
integers, and a table's label column is easily read as float.
What we do: convert labels once, when the data is read, to the type that the task's loss needs.
"""

from holdfast.core.plan import Remedy
from holdfast.hazards import Hazard, proves, seen, suggests

_CLASS_LOSS = r"nll_loss|cross_entropy|CrossEntropy|NLLLoss|ClassNLLCriterion|CTCLoss|ctc_loss"
_FLOAT_LOSS = r"binary_cross_entropy|BCE|mse_loss|MSELoss|MSE|smooth_l1|l1_loss|L1Loss|huber|kl_div"

HAZARD = Hazard(
    slug="label-dtype",
    title="the labels have a number type that the loss does not accept",
    kind="error",
    signs=(
        proves(
            "log",
            r"(?i)expected (?:object of )?(?:scalar )?type \S+ but (?:got|found) (?:scalar )?(?:type )?\S+ for argument #\d+ '\s?target'",
        ),
        proves(
            "log",
            rf"[Ee]xpected (?:object of )?(?:scalar )?type \S+ but (?:got|found) (?:scalar )?(?:type )?\S+[^\n]*(?:{_CLASS_LOSS}|{_FLOAT_LOSS})",
        ),
        proves(
            "log",
            rf"\"(?:\w*(?:{_CLASS_LOSS}|{_FLOAT_LOSS})\w*)\" not implemented for '(?:Int|Long|Short|Char|Byte|Bool|Float|Double|Half)'",
        ),
        proves("log", r"Expected floating point type for target with class probabilities"),
        proves(
            "log",
            r"(?:NLLCriterion|BCECriterion|MSECriterion|L1Criterion)_\w+ received an invalid combination of arguments",
        ),
        proves(
            "error",
            r"(?i)(?:labels?|targets?)[^\n]{0,60}(?:must|should|has to|have to|expected to) be (?:of )?(?:type |dtype )?[`'\"]?(?:torch\.)?(?:long|int64|float)",
        ),
        proves(
            "log",
            r"(?:parameter 'labels'|labels)[^\n]*has DataType float\d+ not in list of allowed values|Unknown label type: '?continuous",
        ),
        # Only "suggests" from here on: the message does not say that the tensor was a label.
        suggests(
            "log",
            r"[Ee]xpected (?:object of )?(?:scalar )?type (?:torch\.(?:cuda\.)?)?Long(?:Tensor)? but (?:got|found)",
        ),
        suggests("log", r"[Ff]ound dtype (?:Long|Int|Bool|Byte|Double) but expected (?:Float|Half|BFloat16)"),
        suggests(
            "log",
            r"result type (?:Float|Double|Half) can't be cast to the desired output type (?:Long|Int|Bool|Byte|Short)$",
            unless=(seen("log", r"clamp_|build_targets"),),
        ),
        suggests("log", r"result type (?:Float|Double) can't be cast", also=(seen("log", _FLOAT_LOSS),)),
        suggests("log", r"is_same_size received an invalid combination of arguments"),
        suggests("log", r"one_hot is only applicable to index tensor"),
        suggests("log", r"\"(?:host_softmax|log_softmax\w*|softmax\w*)\" not implemented for '(?:Long|Int)'"),
        suggests(
            "log",
            r"[Ee]xpected (?:object of )?(?:scalar )?type (?:Float|Double) but (?:got|found) (?:scalar )?(?:type )?(?:Long|Int|Bool|Byte|Double)",
            also=(seen("log", rf"{_CLASS_LOSS}|{_FLOAT_LOSS}|criterion\("),),
        ),
    ),
    remedies=(
        Remedy(
            "use 64-bit integer labels with classification losses",
            command="labels = labels.long()",
            cost="none",
        ),
        Remedy(
            "use floats for per-label and regression losses",
            command="labels = labels.float()",
            cost="none",
        ),
        Remedy(
            "set the model's problem type, which selects the loss",
            command='AutoModelForSequenceClassification.from_pretrained(..., problem_type="multi_label_classification")',
        ),
    ),
    sources=(
        "dragen1860/MAML-Pytorch#45",
        "bethgelab/foolbox#647",
        "torchgeo/terratorch#644",
        "ando-khachatryan/HiDDeN#28",
        "pytorch/pytorch#2220",
        "George730/E-ResGAT#5",
    ),
    matches=(
        "RuntimeError: Expected object of scalar type Long but got scalar type Float for argument #2 'target' in call to _thnn_nll_loss_forward",
        "RuntimeError: expected scalar type Long but found Int",
        "RuntimeError: \"nll_loss_forward_reduce_cuda_kernel_2d_index\" not implemented for 'Float'",
        "RuntimeError: Found dtype Long but expected Float",
        "RuntimeError: result type Float can't be cast to the desired output type Long",
        "RuntimeError: Expected floating point type for target with class probabilities, got Long",
        "TypeError: FloatBCECriterion_updateOutput received an invalid combination of arguments - got (int, torch.FloatTensor, torch.LongTensor, torch.FloatTensor, bool, NoneType)",
        "TypeError: CudaClassNLLCriterion_updateOutput received an invalid combination of arguments - got (int, torch.cuda.FloatTensor, torch.cuda.FloatTensor)",
        "TypeError: labels must be of type int64, got float32",
        "ValueError: Unknown label type: 'continuous'",
        "    loss = F.binary_cross_entropy(pred, target)\nRuntimeError: result type Float can't be cast to the desired output type Long",
        "TypeError: is_same_size received an invalid combination of arguments",
        "RuntimeError: one_hot is only applicable to index tensor.",
        "RuntimeError: \"log_softmax_lastdim_kernel_impl\" not implemented for 'Long'",
        "    loss = criterion(out, y)\nRuntimeError: Expected object of scalar type Float but got scalar type Long for argument #2 'target'",
    ),
    near_misses=(
        "RuntimeError: expected scalar type Half but found Float",
        "RuntimeError: Expected tensor for argument #1 'indices' to have one of the following scalar types: Long, Int; but got torch.FloatTensor instead (while checking arguments for embedding)",
        "ValueError: Expected input batch_size (1280) to match target batch_size (1024).",
        "ValueError: Target size (torch.Size([8])) must be the same as input size (torch.Size([8, 3]))",
        "RuntimeError: mat1 and mat2 must have the same dtype, but got Float and BFloat16",
    ),
)
