"""An installed release of a package is known malware.

What you see: nothing. `lightning` 2.6.2 and 2.6.3 trained as usual while they collected tokens and keys.
Why: both were uploaded to the package index on 30 April 2026 by an attacker; importing them starts a hidden program
that collects credentials. They were withdrawn the same day, but an environment or a cache may still hold them.
What we do: refuse to start, and say what to remove and which secrets to rotate.
"""

from holdfast.core.facts import MachineFacts
from holdfast.core.plan import Plan, Remedy
from holdfast.hazards import Hazard, Invited, proves

_BAD_RELEASES = {"lightning": ("2.6.2", "2.6.3")}  # their twin pytorch-lightning was not reported


def invited_by(facts: MachineFacts, plan: Plan) -> Invited | None:
    """Say why this machine and plan invite the hazard; None when they do not."""
    found = [
        f"{name} {facts.distributions[name]}"
        for name, versions in _BAD_RELEASES.items()
        if facts.distributions.get(name) in versions
    ]
    return Invited(f"{' and '.join(found)} is installed: known malware", "blocker") if found else None


HAZARD = Hazard(
    slug="package-malicious",
    title="an installed package release is known malware",
    kind="error",
    invited_by=invited_by,
    signs=(
        proves("log", r"^\s*lightning\s+\(?2\.6\.[23]\)?(?:\s|$)"),
        proves("log", r"(?<![\w-])lightning==2\.6\.[23](?![\d.])"),
        proves(
            "log", r"(?:installed|Downloading|Collecting|Using cached)\b[^\n]*(?<![\w-])lightning-2\.6\.[23](?![\d.])"
        ),
        proves("version", r"^lightning 2\.6\.[23]$"),
    ),
    remedies=(
        Remedy("remove it, and the caches that may hold it", command="pip uninstall -y lightning && pip cache purge"),
        Remedy("install a clean release", command='pip install "lightning>=2.6.6"'),
        Remedy(
            "treat every token, key and password this account could read as stolen, and replace it",
            command="huggingface-cli logout; gh auth logout   # then make new tokens",
        ),
    ),
    sources=("Lightning-AI/pytorch-lightning#21691", "GHSA-w37p-236h-pfx3", "Lightning-AI/pytorch-lightning#21689"),
    matches=(
        "Package           Version\nlightning         2.6.2\ntorch             2.11.0",
        "lightning==2.6.3",
        "Successfully installed lightning-2.6.3 torch-2.11.0",
    ),
    near_misses=("lightning         2.6.1", "lightning==2.6.30", "Successfully installed lightning-utilities-0.15.2"),
)
