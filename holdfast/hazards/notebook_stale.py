"""The notebook's process still has what it imported or created before.

What you see: "AcceleratorState has already been initialized and cannot be changed, restart your runtime completely", an
old version after a successful `pip install`, "You must restart the runtime in order to use newly installed versions".
Why: a kernel keeps modules, process groups and CUDA contexts until it is restarted. Installing a package changes the
files, not what is already loaded.
What we do: restart the kernel and run the cells in order. `holdfast train` always works in a fresh process.
"""

from holdfast.core.plan import Remedy
from holdfast.hazards import Hazard, proves, suggests

HAZARD = Hazard(
    slug="notebook-stale",
    title="the notebook must be restarted: it still has what it loaded before",
    kind="error",
    signs=(
        proves(
            "error",
            r"already been initialized[^\n]{0,80}restart (?:your|the) (?:runtime|kernel|notebook|session)|(?:Accelerator|Partial)State[^\n]{0,60}has already been initialized",
        ),
        proves(
            "error",
            r"(?i)\b(?:must|need to|should|please) restart (?:your|the|this) (?:jupyter |python |notebook |colab )?(?:runtime|kernel|session|notebook)",
        ),
        suggests(
            "log",
            r"You must restart the runtime in order to use newly installed versions|WARNING: The following packages were previously imported in this runtime",
        ),
    ),
    remedies=(
        Remedy(
            "restart the kernel, then run the cells in order",
            command="Kernel > Restart kernel and run all cells",
            cost="none",
        ),
        Remedy("train in a fresh process from the notebook", command="import holdfast; holdfast.train('data.csv')"),
    ),
    sources=("scikit-learn-contrib/MAPIE#918", "huggingface/transformers#24147", "googlecolab/colabtools#4136"),
    matches=(
        "ValueError: AcceleratorState has already been initialized and cannot be changed, restart your runtime completely and pass `mixed_precision='bf16'` to `Accelerator()`.",
        "RuntimeError: Unsloth was already imported with other settings. Please restart your notebook kernel.",
        "WARNING: The following packages were previously imported in this runtime:\n  [numpy]\nYou must restart the runtime in order to use newly installed versions.",
    ),
    near_misses=(
        "Cell In[2], line 1\n----> 1 trainer.train()\nNameError: name 'trainer' is not defined",
        "RuntimeError: context has already been set",
    ),
)
