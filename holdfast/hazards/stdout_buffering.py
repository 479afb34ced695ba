"""The program works, but its output stays in a buffer.

What you see: `nohup`, `sbatch`, `docker logs` or `> train.log` shows nothing for hours, and then everything at once.
Nothing has failed.
Why: Python writes to a terminal line by line, but to a file or pipe in blocks of 8 kB. At one progress line per minute,
a block takes hours to fill.
What we do: run the child unbuffered, with its log in a separate file.
"""

import re

from holdfast.core.evidence import Evidence, Passage
from holdfast.core.plan import Remedy
from holdfast.hazards import Case, Hazard, judged

_MOST_LINES = 12
_MOST_LINES_SAID = 4  # what a shell or a batch system says by itself
_LAUNCH = re.compile(
    r"nohup: ignoring input|Submitted batch job \d+|\bnohup\b.*python|(?:docker|kubectl|podman) logs|\b(?:sbatch|qsub|bsub)\b"
    r"|tail -[fFn]|python[\d.]*\s[^|>\n]*(?:>|\|\s*tee\b|&>)|nohup\.out|\b0 (?:\S+ ){0,6}\S*(?:\.log|\.out|\.txt)\b"
)
_UNBUFFERED = re.compile(r"python[\d.]* -u\b|PYTHONUNBUFFERED|stdbuf|--unbuffered")
_WORKS = re.compile(r"(?i)\bepoch\b|\bloss\b|\bstep\b|\d+%\||it/s|s/it|traceback|error\b|warning")


def _launch_and_silence(evidence: Evidence) -> Passage | None:
    """Output sent to a file or a pipe that is empty, while the process has not ended."""
    if evidence.errors or evidence.stacks or any(not status.is_hang for status in evidence.exits):
        return None
    if evidence.log.joined.count("\n") > 10 * _MOST_LINES:
        return None
    lines = [passage for passage in evidence.log if passage.text.strip()]
    if len(lines) > _MOST_LINES or any(_WORKS.search(_without_command(passage.text)) for passage in lines):
        return None
    if any(_UNBUFFERED.search(passage.text) for passage in lines):
        return None
    said = [passage for passage in lines if _without_command(passage.text) and not _LAUNCH.search(passage.text)]
    if len(said) > _MOST_LINES_SAID:
        return None
    return next((passage for passage in lines if _LAUNCH.search(passage.text)), None)


def _without_command(text: str) -> str:
    """A program's output without command lines, whose options may mention epochs and steps."""
    return "" if re.search(r"^\s*[$#%>]|\bpython|\bnohup\b|\bs(?:run|batch)\b", text) else text


HAZARD = Hazard(
    slug="stdout-buffering",
    title="the output is in a buffer; the program may be working",
    kind="hang",
    signs=(judged("suggests", _launch_and_silence),),
    remedies=(
        Remedy("turn off Python's output buffering", change={"PYTHONUNBUFFERED": "1"}, cost="not measurable"),
        Remedy("turn it off for one command", command="python -u train.py > train.log 2>&1"),
        Remedy("also under Slurm", command="srun --unbuffered python -u train.py"),
    ),
    sources=(
        "facebookresearch/VideoPose3D#219",
        "montefiore-institute/alan-cluster#28",
        "jade-hpc-gpu/jade-hpc-gpu.github.io#143",
        "radixark/miles_diffusion#213",
    ),
    matches=(
        Case("$ nohup python train.py --epochs 10 > train.log &\n[1] 24120\n$ tail -f train.log\n", "hang"),
        Case("nohup: ignoring input and appending output to 'nohup.out'\n", "hang"),
        Case("$ sbatch job.sh\nSubmitted batch job 245\n$ cat out_245.out\nLoading cuda/9.2\n", "hang"),
    ),
    near_misses=(
        Case("$ scripts/run.sh\nnohup: ignoring input and redirecting stderr to stdout\n", "0"),
        Case("nohup: ignoring input\nEpoch 1 step 20 loss 2.13\n", "hang"),
        "nohup: ignoring input\nTraceback (most recent call last):\nModuleNotFoundError: No module named 'torch'",
    ),
)
