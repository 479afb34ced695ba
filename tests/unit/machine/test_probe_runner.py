"""Probes asked together: one that fails is named with its reason and stops no other."""

import threading

from holdfast.core.facts import Answer
from holdfast.machine.commands import Unanswerable
from holdfast.machine.probe_runner import Probe, ProbeRunner


def raises(error):
    def ask():
        raise error

    return ask


def test_answers_become_facts_with_their_sources():
    asking = ProbeRunner(
        (Probe("os", lambda: Answer("linux", "sys.platform")), Probe("arch", lambda: Answer("arm64", "uname")))
    )
    facts = asking.start().all_facts()
    assert (facts.os, facts.arch, facts.unanswered) == ("linux", "arm64", ())
    assert facts.sources == {"os": "sys.platform", "arch": "uname"}


def test_broken_probe_does_not_stop_the_others():
    probes = (
        Probe("chip", raises(ValueError("no line"))),
        Probe("power", raises(Unanswerable("no pmset"))),
        Probe("gpus", raises(KeyboardInterrupt())),
        Probe("os", lambda: Answer("linux", "here")),
    )
    facts = ProbeRunner(probes).start().all_facts()
    assert facts.os == "linux"
    assert facts.unanswered == (
        "chip: ValueError: no line",
        "power: no pmset",
        "gpus: KeyboardInterrupt",
    )


def test_hanging_probe_is_given_up():
    gate = threading.Event()

    def stuck():
        gate.wait(30)
        return Answer("late", "never")

    waits = []
    probes = (Probe("disks", stuck, limit_seconds=0.05), Probe("os", lambda: Answer("linux", "here")))
    facts = (
        ProbeRunner(probes, {"disks": "reading disks"})
        .start()
        .all_facts(lambda waiting, seconds: waits.append(waiting))
    )
    gate.set()
    (unanswered,) = facts.unanswered
    assert unanswered.startswith("disks: ")
    assert unanswered.endswith("0.05 s")
    assert (facts.os, facts.disks) == ("linux", ())
    assert waits[0] == ["reading disks"]


def test_one_probe_fills_several_facts_and_reports_oddities():
    value = {"conflicts": (), "openmp_runtimes": ("torch: libomp",), "unanswered": ["a.so: cut off"], "report": 42}
    asking = ProbeRunner(
        (Probe("native", lambda: Answer(value, "files"), fills=("conflicts", "openmp_runtimes")),)
    ).start()
    facts = asking.all_facts()
    assert facts.openmp_runtimes == ("torch: libomp",)
    assert facts.unanswered == ("native: a.so: cut off",)
    assert asking.extras == {"report": 42}


def test_parts_can_be_read_before_all_have_answered():
    gate = threading.Event()

    def slow():
        gate.wait(30)
        return Answer((), "tried")

    asking = ProbeRunner((Probe("trials", slow), Probe("os", lambda: Answer("linux", "here")))).start()
    asking.wait_for(["os"])
    assert asking.facts().os == "linux"
    assert "trials" not in asking.facts().sources
    gate.set()
    assert "trials" in asking.all_facts().sources
