"""A compiled package was built for a different NumPy than the one installed.

What you see: "A module that was compiled using NumPy 1.x cannot be run in NumPy 2", "_ARRAY_API not found", "Numpy is
not available", "numpy.dtype size changed", "numpy.core.multiarray failed to import".
Why: NumPy 2 changed its binary interface. Packages built before it (torch before 2.3 among them) cannot use it, and
packages built for it refuse an older one.
What we do: name the pair and the command that fixes it. A restart would not help.
"""

from holdfast.core.facts import MachineFacts
from holdfast.core.plan import Plan, Remedy
from holdfast.hazards import Hazard, Invited, Severity, proves, suggests

# The first releases built for NumPy 2.
_KNOWS_NUMPY_2 = {"torch": "2.3", "pandas": "2.2.2", "scipy": "1.13", "scikit-learn": "1.4.2", "pyarrow": "16.0"}
_OLDER_NUMPY = Remedy("install a NumPy below 2", command='pip install "numpy<2"')


def invited_by(facts: MachineFacts, plan: Plan) -> Invited | None:
    """Say why this machine and plan invite the hazard; None when they do not."""
    if not facts.has_at_least("numpy", "2.0"):
        return None
    late = [name for name, first in _KNOWS_NUMPY_2.items() if facts.has_below(name, first)]
    if not late:
        return None
    named = ", ".join(f"{name} {facts.distributions[name]}" for name in late)
    upgrade = " ".join(f'"{name}>={_KNOWS_NUMPY_2[name]}"' for name in late)
    remedies = (_OLDER_NUMPY, Remedy("or install builds that support NumPy 2", command=f"pip install -U {upgrade}"))
    severity: Severity = "blocker" if "torch" in late else "warning"
    return Invited(f"numpy {facts.distributions['numpy']} with {named}, built for NumPy 1", severity, remedies)


HAZARD = Hazard(
    slug="numpy-abi",
    title="a compiled package was built for a different NumPy",
    kind="error",
    invited_by=invited_by,
    signs=(
        proves("log", r"compiled using NumPy 1\.x cannot be run in"),
        proves("log", r"compiled against (?:NumPy )?(?:ABI|API) version 0x\w+ but this version of numpy is"),
        proves("error", r"_ARRAY_API not found"),
        proves("error", r"\bNumpy is not available"),
        proves("error", r"numpy\.[\w.]+ size changed, may indicate binary incompatibility"),
        proves("error", r"numpy\.(?:_?core)\.(?:_?multiarray\w*|umath) failed to import"),
        proves("error", r"expected np\.ndarray \(got numpy\.ndarray\)"),
        suggests("log", r"_ARRAY_API not found|Failed to initialize NumPy:"),
        suggests("error", r"size changed, may indicate binary incompatibility\. Expected \d+ from C header"),
        suggests("error", r"Could not infer dtype of numpy\.\w+"),
        suggests("log", r"Importing the numpy C-extensions failed"),
    ),
    remedies=(
        _OLDER_NUMPY,
        Remedy("or install a torch that supports NumPy 2", command='pip install -U "torch>=2.3"'),
        Remedy(
            "reinstall the package named in the error against your NumPy",
            command="pip install --force-reinstall --no-cache-dir PACKAGE",
        ),
    ),
    sources=(
        "mistralai/mistral-finetune#98",
        "securefederatedai/openfederatedlearning#999",
        "TorchDSP/torchsig#238",
        "tensorflow/tensorflow#98406",
        "numpy/numpy#11628",
    ),
    matches=(
        "A module that was compiled using NumPy 1.x cannot be run in\nNumPy 2.0.0 as it may crash. To support both 1.x and 2.x",
        "UserWarning: Failed to initialize NumPy: _ARRAY_API not found (Triggered internally at ../torch/csrc/utils/tensor_numpy.cpp:84.)",
        "AttributeError: _ARRAY_API not found",
        "RuntimeError: Numpy is not available",
        "ValueError: numpy.dtype size changed, may indicate binary incompatibility. Expected 96 from C header, got 88 from PyObject",
        "RuntimeError: module compiled against API version 0xe but this version of numpy is 0xd\nImportError: numpy.core.multiarray failed to import",
        "TypeError: expected np.ndarray (got numpy.ndarray)",
        "RuntimeError: Could not infer dtype of numpy.float32",
        "Importing the numpy C-extensions failed. This error can happen for many reasons, often due to issues with your setup or how NumPy was installed.",
    ),
    near_misses=(
        "/usr/lib/python2.7/site-packages/pandas/_libs/__init__.py:4: RuntimeWarning: numpy.dtype size changed, may indicate binary incompatibility. Expected 96, got 88",
        "AttributeError: module 'numpy' has no attribute 'float'",
        "TypeError: can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first.",
        "ModuleNotFoundError: No module named 'numpy'",
    ),
)
