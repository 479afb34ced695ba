"""The machine goes to sleep or saves power during a run.

What you see: no error. The run pauses for hours and continues when somebody wakes the machine, connections time out at
that moment, or every step takes longer than it did on mains power.
Why: an idle computer goes to sleep, a laptop also when its lid is closed, and every process stops with it. On battery
and in Low Power Mode the processors run slower.
What we do: say before the run when this Mac would sleep, and how to keep it awake with the display off.
"""

from holdfast.core.facts import MachineFacts
from holdfast.core.plan import Plan, Remedy
from holdfast.hazards import Case, Hazard, Invited, suggests

_STAY_AWAKE = Remedy("keep the Mac awake while the run lasts", command="caffeinate -is COMMAND")
_CHARGER = Remedy("connect the charger", command="pmset -g batt")
_FULL_POWER = Remedy("turn off Low Power Mode", command="sudo pmset -a lowpowermode 0")


def invited_by(facts: MachineFacts, plan: Plan) -> Invited | None:
    """Say why this machine and plan invite the hazard; None when they do not."""
    power = facts.power
    if power is None:
        return None
    reasons, remedies = list[str](), list[Remedy]()
    if power.on_battery:
        reasons.append("this Mac runs on battery: it slows down, sleeps with its lid closed, and may run out of power")
        remedies += [_CHARGER, _STAY_AWAKE]
    elif power.sleep_after_minutes:
        reasons.append(f"this Mac sleeps after {power.sleep_after_minutes} min without input, and the run with it")
        remedies.append(_STAY_AWAKE)
    if power.low_power_mode:
        reasons.append("Low Power Mode is on: the GPU and the CPU run slower")
        remedies.append(_FULL_POWER)
    if not reasons:
        return None
    return Invited("; ".join(reasons), "warning" if power.on_battery else "note", tuple(remedies))


HAZARD = Hazard(
    slug="machine-sleep",
    title="the machine slept or saved power during the run",
    kind="hang",
    invited_by=invited_by,
    signs=(
        suggests("log", r"PM: suspend entry \(|PM: Preparing system for (?:\w+ )?sleep"),
        suggests(
            "log",
            r"systemd-sleep\[\d+\]: (?:Entering sleep state|Suspending system)|systemd-logind\[\d+\]: The system will suspend now",
        ),
        suggests("log", r"\bEntering Sleep state due to '"),
    ),
    remedies=(
        _STAY_AWAKE,
        Remedy(
            "keep a Linux machine awake while the run lasts",
            command="systemd-inhibit --what=sleep:idle:handle-lid-switch COMMAND",
        ),
        _CHARGER,
        _FULL_POWER,
    ),
    sources=(
        "ddalcu/mlx-serve#251",
        "jundot/omlx#1081",
        "atomantic/PortOS#1750",
        "ml-explore/mlx#3267",
    ),
    matches=(
        Case("step 120/9000 loss 0.52\nMar 02 01:14:09 box kernel: PM: suspend entry (deep)", "hang"),
        Case("Mar 02 01:14:08 box systemd-sleep[4121]: Entering sleep state 'suspend'...", "hang"),
        Case(
            "2026-03-02 01:14:09 +0100 Sleep  Entering Sleep state due to 'Clamshell Sleep':TCPKeepAlive=active Using Batt",
            "hang",
        ),
    ),
    near_misses=(
        "PM: hibernation: Registered nosave memory: [mem 0x00000000-0x00000fff]",
        Case("retrying in 5 s\n    time.sleep(5)", "hang"),
        "Mar 02 01:14:09 box kernel: PM: suspend entry (deep)\nRuntimeError: CUDA error: unspecified launch failure",
    ),
)
