"""The process is not allowed to write or read a file or folder.

What you see: "PermissionError: [Errno 13] Permission denied", usually for the output folder or the model cache, at the
first save or download.
Why: a container's user does not own the mounted folder, an earlier run as root left files behind, the file system is
mounted read-only, or on Windows another program still has the file open.
What we do: write a probe file to the output, cache and temporary folders before anything else starts.
"""

from holdfast.core.facts import MachineFacts
from holdfast.core.plan import Plan, Remedy
from holdfast.hazards import Hazard, Invited, proves, seen, suggests

# On Windows a child that failed to start leaves this line; the cause is elsewhere.
_ECHO = (seen("log", r"popen_spawn_win32|DuplicateHandle|_winapi\.|reduction\.py"),)

_ELSEWHERE = {
    "output": Remedy("start the run in a folder that you own", command="cd ~"),
    "cache": Remedy("keep models in a folder that you own", command="export HF_HOME=~/huggingface"),
    "temp": Remedy("keep temporary files in a folder that you own", command="export TMPDIR=~/tmp"),
}


def invited_by(facts: MachineFacts, plan: Plan) -> Invited | None:
    """Say why this machine and plan invite the hazard; None when they do not."""
    closed = [disk for disk in facts.disks if not disk.is_writable]
    if not closed:
        return None
    places = "; ".join(f"the {disk.role} folder {disk.path} cannot be created or written to" for disk in closed)
    return Invited(places, remedies=tuple(_ELSEWHERE[disk.role] for disk in closed))


HAZARD = Hazard(
    slug="permission-denied",
    title="the process is not allowed to write or read there",
    kind="error",
    invited_by=invited_by,
    signs=(
        proves("error", r"PermissionError", unless=_ECHO),
        proves("error", r"\[Errno (?:13|1)\]|\[WinError (?:5|32)\]|\(os error 13\)|errno = 13|EACCES", unless=_ECHO),
        proves("error", r"Read-only file system|\[Errno 30\]|\(os error 30\)"),
        proves(
            "error",
            r"[Pp]ermission denied|[Aa]ccess is denied|Operation not permitted",
            unless=(*_ECHO, seen("log", r"NCCL WARN|ptrace")),
        ),
        proves("error", r"(?i)(?:directory|folder|path|file)\b[^\n]{0,80}\b(?:is )?not writ(?:e)?able"),
        suggests("log", r"\[Errno 13\]|\[WinError (?:5|32)\]|Read-only file system", unless=_ECHO),
        suggests("log", r"problem when trying to write in your cache folder"),
        # numba writes its cache next to the source file.
        suggests("log", r"cannot cache function '\w+': no locator available for file"),
        suggests("log", r"^(?!.*(?:NCCL|ptrace|warn))[^\n]*: [Pp]ermission denied$"),
    ),
    remedies=(
        Remedy(
            "write to a folder that this user owns",
            command="python train.py --output_dir ~/runs",
            cost="none",
        ),
        Remedy(
            "move the caches to a folder that this user owns",
            command="export HF_HOME=$HOME/.hf XDG_CACHE_HOME=$HOME/.cache",
        ),
        Remedy(
            "take ownership of files that an earlier run as root left behind",
            command="sudo chown -R $USER ~/.cache/huggingface OUTPUT",
        ),
        Remedy(
            "run the container as the owner of the mounted folder",
            command="docker run --user $(id -u):$(id -g) -e HOME=/tmp ...",
        ),
    ),
    sources=(
        "huggingface/trl#3872",
        "bmaltais/kohya_ss#859",
        "opendatahub-io/ilab-on-ocp#26",
        "h2oai/h2ogpt#729",
        "radames/Real-Time-Latent-Consistency-Model#30",
    ),
    matches=(
        "PermissionError: [Errno 13] Permission denied: 'Qwen3-0.6B-SFT'",
        "PermissionError: [WinError 32] The process cannot access the file because it is being used by another process: 'C:\\\\out\\\\model.bin'",
        "OSError: [Errno 30] Read-only file system: '/data/out'",
        'safetensors_rust.SafetensorError: Error while serializing: IoError(Os { code: 13, kind: PermissionDenied, message: "Permission denied" })',
        "There was a problem when trying to write in your cache folder (/nonexistent/.cache/huggingface/hub). You should set the environment variable TRANSFORMERS_CACHE to a writable directory.",
        "bash: ./train.sh: Permission denied",
        "RuntimeError: the folder /opt/cache is not writable",
        "RuntimeError: cannot cache function '__shear_dense': no locator available for file '/venv/lib/python3.11/site-packages/librosa/util/utils.py'",
    ),
    near_misses=(
        "Matplotlib created a temporary config/cache directory at /tmp/matplotlib-9k89vsu8 because the default path (/home/user/.config/matplotlib) is not a writable directory",
        "huggingface_hub.errors.GatedRepoError: 403 Client Error. Access to model x/y is restricted",
        "FileNotFoundError: [Errno 2] No such file or directory: 'out'",
    ),
)
