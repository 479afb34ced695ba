"""Logs that no one would write by hand: no sign may take minutes over them, and none may break."""

import random
import re

import pytest

from holdfast.hazards import Case, all_hazards
from holdfast.hazards.diagnose import diagnose
from holdfast.logs.log_text import read_evidence

SIZE = 100_000
CASES = [
    case.log if isinstance(case, Case) else case
    for hazard in all_hazards()
    for case in (*hazard.matches, *hazard.near_misses)
]
NO_MEMORY = "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
NO_MATCH = (
    "RuntimeError: The size of tensor a (130) must match the size of tensor b (128) at non-singleton dimension 2\n"
)


def salad() -> str:
    """Words of all known failures in an order that means nothing."""
    words = sorted({word for case in CASES for word in case.split()})
    chance = random.Random(1)
    return "\n".join(" ".join(chance.choices(words, k=12)) for _ in range(SIZE // 100))


ODD_LOGS = {
    "digits": "1234567890" * (SIZE // 10),
    "lines of digits": ("1234567890" * 10 + "\n") * (SIZE // 101),
    "word salad": salad(),
    "one long line": salad().replace("\n", " "),
    "spaces": " " * SIZE,
    "the same error again and again": NO_MEMORY * (SIZE // len(NO_MEMORY)),
    "the same numbers again and again": NO_MATCH * (SIZE // len(NO_MATCH)),
}


@pytest.mark.timeout(30)  # each takes about a second; a pattern that walks a line twice over takes minutes
@pytest.mark.parametrize("log", ODD_LOGS.values(), ids=ODD_LOGS)
def test_no_sign_takes_long_over_a_log_that_means_nothing(log):
    assert diagnose(read_evidence(log, "hang")).slug


@pytest.mark.parametrize("number", ["...", "1.2.3", "", "9" * 30, "٣", "nan"])
def test_numbers_that_were_taken_out_or_garbled_break_no_sign(number):
    log = re.sub(r"\d+(?:\.\d+)?", number, "\n".join(CASES))
    assert diagnose(read_evidence(log, "1")).slug
