"""Creates the skeleton of a new hazard: `make hazard NAME=area-fault`."""

import re
import sys
from pathlib import Path

HAZARDS = Path(__file__).parents[1] / "holdfast" / "hazards"

SKELETON = '''"""One sentence that says what goes wrong.

What you see: the message, the signal, or the silence.
Why: the mechanism.
What we do: the remedy that is applied, or what the user can do.
"""

from holdfast.core.plan import Remedy
from holdfast.hazards import Hazard, proves, suggests

HAZARD = Hazard(
    slug="{slug}",
    title="a clause in lower case, without a full stop",
    kind="error",  # error | crash | hang | slow | wrong-results
    signs=(
        proves("error", r"text that nothing else prints"),
        suggests("log", r"text that points here"),
    ),
    remedies=(Remedy("what to do", command="a command to run"),),
    sources=("owner/repo#number",),
    matches=("a real log line",),
    near_misses=("the most similar line with a different meaning",),
)
'''


def main(slug: str) -> None:
    """Write the file, unless the name is invalid or taken."""
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+){1,3}", slug):
        raise SystemExit(
            f"{slug!r} is not a valid name: use area then fault, two to four words with hyphens, such as dataloader-shm"
        )
    target = HAZARDS / f"{slug.replace('-', '_')}.py"
    if target.exists():
        raise SystemExit(f"{target} already exists")
    target.write_text(SKELETON.format(slug=slug), encoding="utf-8")
    print(f"wrote {target}; fill it in, then run: make hazards")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
