"""The script asks a question, but the input of a supervised run is empty.

What you see: "EOFError: EOF when reading a line", at a line with `input(...)`.
Why: every supervised run reads from /dev/null, so that a question fails immediately instead of waiting forever.
What we do: stop and report the question. Answers can come from a file or from arguments.
"""

from holdfast.core.evidence import Evidence, Passage
from holdfast.core.observations import LastPhase
from holdfast.core.plan import Remedy
from holdfast.hazards import Case, Hazard, judged, seen


def _asked_and_got_no_answer(evidence: Evidence) -> Passage | None:
    """An `input()` call that failed on the empty input of a supervised run."""
    if not evidence.observations:
        return None
    return seen("error", r"EOFError: EOF when reading a line|could not find a TTY").find(evidence)


HAZARD = Hazard(
    slug="input-empty",
    title="the script asks for input, but the input of a supervised run is empty (/dev/null)",
    kind="error",
    signs=(judged("proves", _asked_and_got_no_answer),),
    remedies=(
        Remedy("read the answers from a file", command="holdfast run -- sh -c 'python train.py < answers.txt'"),
        Remedy("answer beforehand", command="wandb login   # or: hf auth login, or an argument of the script"),
    ),
    sources=("McGill-NLP/llm2vec#99", "SWivid/F5-TTS#166"),
    matches=(
        Case(
            'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    go = input("continue? ")\n'
            "EOFError: EOF when reading a line",
            "1",
            (LastPhase(phase="load"),),
        ),
    ),
    near_misses=(
        "EOFError: Ran out of input",
        Case("wandb: Enter your choice: \nEOFError: EOF when reading a line", "1", (LastPhase(phase="load"),)),
    ),
    reproduced_by="tests/lab/test_run_manners.py",
)
