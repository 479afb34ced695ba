"""The code asks faiss for the GPU, but the installed faiss has no GPU support or supports other cards.

What you see: "module 'faiss' has no attribute 'StandardGpuResources'" (or `GpuIndexFlatL2`, `index_cpu_to_gpu`), or
"Faiss assertion 'err__ == cudaSuccess' failed ... no kernel image".
Why: faiss-cpu and faiss-gpu are different packages with the same import name, and the one installed last wins. The GPU
package has code for some card generations and CUDA versions only.
What we do: search on the CPU, which gives the same neighbors, and say which package supports the GPU.
"""

from holdfast.core.facts import MachineFacts
from holdfast.core.plan import Plan, Remedy
from holdfast.hazards import Hazard, Invited, proves, seen, suggests

_GPU_NAMES = r"(?:StandardGpuResources\w*|Gpu\w*(?:Index|Config|Options|Resources|Distance)\w*|GpuIndex\w*|index_cpu_to_(?:all_)?gpus?\w*|index_gpu_to_cpu|bfKnn|bruteForceKnn|knn_gpu|pairwise_distance_gpu|get_num_gpus)"


def invited_by(facts: MachineFacts, plan: Plan) -> Invited | None:
    """Say why this machine and plan invite the hazard; None when they do not."""
    gpu_builds = [name for name in facts.distributions if name.startswith("faiss-gpu")]
    if gpu_builds and "faiss-cpu" in facts.distributions:
        return Invited(f"faiss-cpu and {gpu_builds[0]} are both installed; the one installed last hides the other")
    if gpu_builds and not any(gpu.kind == "cuda" for gpu in facts.gpus):
        return Invited(f"{gpu_builds[0]} is installed, but there is no NVIDIA card", "note")
    return None


HAZARD = Hazard(
    slug="faiss-gpu-mismatch",
    title="the installed faiss has no GPU support for this machine",
    kind="error",
    invited_by=invited_by,
    signs=(
        proves(
            "log",
            rf"has no attribute '{_GPU_NAMES}'|cannot import name '{_GPU_NAMES}'|name '{_GPU_NAMES}' is not defined(?!\. Will not load)",
        ),
        proves(
            "log",
            r"Faiss assertion '\w*err\w* == (?:cudaSuccess|CUBLAS_STATUS_SUCCESS)[^\n]{0,500}|Error in [^\n]*faiss::gpu::[^\n]*(?:no kernel image|cublas|CUBLAS|invalid device|insufficient)",
        ),
        proves(
            "log",
            r"Failed to load GPU Faiss: (?!.*Will not load)|Faiss falling back to CPU-only|GPU faiss is not (?:available|supported)|faiss(?:-gpu)? (?:was|is) not (?:built|compiled) with (?:GPU|CUDA)",
        ),
        suggests(
            "error",
            r"(?:libcu\w+|libcublas\w*|libcudart)\.so\.?\d*: cannot open",
            also=(seen("log", r"_?swigfaiss|faiss/(?:__init__|loader|swigfaiss)"),),
        ),
        suggests(
            "log",
            r"(?:No matching distribution found for|Could not find a version that satisfies the requirement|PackagesNotFoundError[\s\S]{0,200}) ?faiss-gpu",
        ),
    ),
    remedies=(
        Remedy(
            "search on the CPU; the neighbors are the same",
            command="index = faiss.IndexFlatIP(dim)   # leave out index_cpu_to_gpu",
            cost="slower with millions of vectors",
        ),
        Remedy(
            "remove both builds, then install only the GPU build",
            command="pip uninstall -y faiss-cpu faiss-gpu && conda install -c pytorch -c nvidia faiss-gpu",
        ),
        Remedy("with pip and CUDA 12", command="pip uninstall -y faiss-cpu && pip install faiss-gpu-cu12"),
    ),
    sources=(
        "facebookresearch/deepcluster#56",
        "facebookresearch/faiss#2892",
        "facebookresearch/faiss#1440",
        "facebookresearch/faiss#2802",
        "amazon-science/patchcore-inspection#30",
    ),
    over=("cuda-no-kernel-image", "cublas-failure", "native-lib-missing"),
    matches=(
        "AttributeError: module 'faiss' has no attribute 'StandardGpuResources'",
        "AttributeError: module 'faiss' has no attribute 'GpuIndexFlatL2'",
        "AttributeError: module 'faiss' has no attribute 'index_cpu_to_gpu_multiple_py'",
        "Faiss assertion 'err__ == cudaSuccess' failed in void faiss::gpu::runL2Norm(...) at gpu/impl/L2Norm.cu:294; details: CUDA error 48 no kernel image is available for execution on the device\nAborted",
        "Failed to load GPU Faiss: ./_swigfaiss_gpu.so: undefined symbol: omp_set_lock\nFaiss falling back to CPU-only.",
        "ImportError: cannot import name 'GpuMultipleClonerOptions' from 'faiss'",
        "ERROR: No matching distribution found for faiss-gpu",
        '  File "/venv/lib/python3.11/site-packages/faiss/__init__.py", line 16, in <module>\n    from .loader import *\nImportError: libcublas.so.11: cannot open shared object file: No such file or directory',
    ),
    near_misses=(
        "INFO:faiss.loader:Failed to load GPU Faiss: name 'GpuIndexIVFFlat' is not defined. Will not load constructor refs for GPU indexes.",
        "ModuleNotFoundError: No module named 'faiss'",
        "AttributeError: module 'faiss' has no attribute 'swigfaiss'",
    ),
)
