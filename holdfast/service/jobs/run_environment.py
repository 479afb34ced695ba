"""The environment of a training run: what libraries and drivers need, and the owner's secrets.

The environment of the service has keys to the database, the broker, mail and storage, and whatever else is set on its
machine. So the variables that a run gets are listed here.
"""

from collections.abc import Mapping

from django.contrib.auth.models import User

from holdfast.core.redact import is_secret_name
from holdfast.service.home import this_home
from holdfast.service.jobs.secrets import open_secrets

_NAMES = {
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TEMP", "TMP", "TERM", "NO_COLOR",
    "VIRTUAL_ENV", "CONDA_PREFIX", "LD_LIBRARY_PATH", "LD_PRELOAD", "CC", "CXX", "CUBLAS_WORKSPACE_CONFIG",
    "HF_HOME", "HF_ENDPOINT", "HF_XET_CACHE", "HF_DATASETS_CACHE", "TOKENIZERS_PARALLELISM",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
    "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy",
    "HOLDFAST_HOME", "HOLDFAST_NODE", "HOLDFAST_NODE_LEASE_SECONDS", "HOLDFAST_DEBUG",
}  # fmt: skip
_BEGINNINGS = (
    "LC_", "XDG_", "PYTHON", "DYLD_", "PIP_", "HF_HUB_", "TRANSFORMERS_", "TORCH", "PYTORCH_", "TRITON_", "ACCELERATE_",
    "CUDA_", "NVIDIA_", "NCCL_", "CUDNN_", "HIP_", "HSA_", "ROCR_", "ROCM_", "MIOPEN_", "AMD_", "GPU_",
    "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "VECLIB_", "NUMEXPR_", "ONEDNN_", "DNNL_", "MALLOC_",
)  # fmt: skip


def run_environment(owner: User, variables: Mapping[str, str]) -> dict[str, str]:
    """The variables that a run of this user gets, with the user's secrets."""
    passed = {name: value for name, value in variables.items() if _passes(name)}
    return {**passed, **open_secrets(owner), **_hub_variables(owner)}


def _hub_variables(owner: User) -> dict[str, str]:
    """Keep what one user's hub token fetched from other users, and the machine's own hub login from all of them."""
    home = this_home()
    private = home.private_models(owner.pk)
    return {
        "HF_HUB_CACHE": str(home.hub_cache),
        "HOLDFAST_PRIVATE_MODELS": str(private),
        "HF_TOKEN_PATH": str(private / "no-login"),  # does not exist; otherwise `hf auth login` would serve everyone
    }


def _passes(name: str) -> bool:
    return name in _NAMES or (name.startswith(_BEGINNINGS) and not is_secret_name(name))
