"""The run waits for an answer, a pipe or a file lock, and will wait forever.

What you see: no error and no progress right after a question ("wandb: Enter your choice:", "Do you wish to run the
custom code? [y/N]"); or, without a keyboard, "EOFError: EOF when reading a line". Also a FIFO without a writer, and a
lock file held by another process. If the script itself asks, see [input-empty](input-empty.md).
Why: a library asks and waits, but in a batch job nobody is there to answer.
What we do: give every run an empty input, so that a question fails immediately and shows in the log; turn off the known
questions.
"""

from holdfast.core.evidence import Evidence, Passage
from holdfast.core.observations import LastPhase, ProcessView, RankVerdict, TreeVerdict, Verdict, Wait, WaitTarget
from holdfast.core.plan import Remedy
from holdfast.hazards import Case, Hazard, has_verdict, judged, observed, proves, seen, suggests

_QUESTION = seen(
    "log",
    r"wandb: Enter your choice:|\[y/N\]\W*$|\[Y/n\]\W*$|\(y/n\)\W*$|Enter your (?:choice|token|API key|username|password)",
)


_LIBRARY_ASKS = seen("log", r"\bwandb: |site-packages/wandb/")


def _asked_and_got_no_answer(evidence: Evidence) -> Passage | None:
    """A library's question that failed on the empty input of a supervised run; such questions can be turned off."""
    if not evidence.observations or not _LIBRARY_ASKS.find(evidence):
        return None
    return seen("error", r"EOFError: EOF when reading a line|could not find a TTY|Aborted!$").find(evidence)


def _question_and_hang(evidence: Evidence) -> Passage | None:
    if not evidence.is_hang or not evidence.observations:
        return None
    return _QUESTION.find(evidence)


HAZARD = Hazard(
    slug="input-blocked",
    title="the run waits for input that never comes",
    kind="hang",
    signs=(
        proves(has_verdict(Verdict.WAIT_INPUT)),
        judged("proves", _asked_and_got_no_answer),
        judged("suggests", _question_and_hang),
        suggests(observed(ProcessView, lambda one: one.wait is not None and one.wait.target is WaitTarget.FILE_LOCK)),
    ),
    over=("input-empty",),
    remedies=(
        Remedy(
            "turn off the questions that libraries ask",
            change={"WANDB_MODE": "offline"},
            cost="metrics stay in local files until `wandb sync`",
        ),
        Remedy("answer beforehand", command="wandb login   # or: hf auth login"),
        Remedy("see which process holds a lock file, or the other end of a pipe", command="lsof PATH"),
    ),
    sources=("wandb/wandb#592", "McGill-NLP/llm2vec#99", "SWivid/F5-TTS#166", "pymc-labs/decision-lab#49"),
    matches=(
        Case(
            "opening the feed",
            "hang",
            (
                TreeVerdict(
                    verdict=Verdict.WAIT_INPUT,
                    main=RankVerdict(
                        pid=41,
                        verdict=Verdict.WAIT_INPUT,
                        wait=Wait(kind="input", target=WaitTarget.FIFO, name="/tmp/feed"),
                    ),
                ),
            ),
        ),
        Case("wandb: Enter your choice: \nEOFError: EOF when reading a line", "1", (LastPhase(phase="load"),)),
        Case(
            "",
            "hang",
            (
                ProcessView(
                    pid=91, command="python", wait=Wait(kind="kernel", target=WaitTarget.FILE_LOCK, name="/out/lock")
                ),
            ),
        ),
        Case("Overwrite out/model? [y/N]", "hang", (TreeVerdict(verdict=Verdict.SLEEPING),)),
    ),
    near_misses=(
        "EOFError: Ran out of input",
        Case('go = input("continue? ")\nEOFError: EOF when reading a line', "1", (LastPhase(phase="load"),)),
        Case("", "hang", (TreeVerdict(verdict=Verdict.SLEEPING),)),
        Case(
            "wandb: Enter your choice: (30 second timeout)\nwandb: You chose 'Don't visualize my results'\nKeyError: 'text'",
            "1",
        ),
    ),
    reproduced_by="tests/lab/test_evidence.py",
)
