"""What `doctor` prints: one line per thing, folded to the width, plain in a pipe."""

import json
from dataclasses import replace

from holdfast.core.facts import (
    CachedModel,
    DeviceTrial,
    Disk,
    Gpu,
    GpuProcess,
    MachineFacts,
    NativeConflict,
    Power,
    TorchBuild,
    Variable,
)
from holdfast.core.plan import Remedy
from holdfast.doctor.checkup import Checkup, Finding
from holdfast.doctor.render import Style, render_close, render_findings, render_json, render_section
from holdfast.doctor.sections import FOLDER_SECTIONS, SECTIONS
from holdfast.doctor.show_fact import show_fact

MAC = MachineFacts(
    os="macos",
    os_version="15.1",
    arch="arm64",
    chip="Apple M2 Pro",
    python_version="3.12.4",
    python_build="CPython, Homebrew, Clang 16.0.0, in a virtual environment",
    python_path="/Users/ann/project/.venv/bin/python",
    cpu_count=12,
    memory_bytes=34359738368,
    memory_free_bytes=12000000000,
    open_file_limit=256,
    disks=(
        Disk(role="output", path="/Users/ann", free_bytes=90_000_000_000, total_bytes=10**12, filesystem="apfs"),
        Disk(role="cache", path="/Volumes/x", free_bytes=5_000_000_000, total_bytes=10**11),
        Disk(role="temp", path="/tmp", free_bytes=90_000_000_000, total_bytes=10**12, filesystem="apfs"),
    ),
    distributions={"torch": "2.13.0", "transformers": "5.22.2"},
    torch=TorchBuild(version="2.13.0", mps=True),
    gpus=(Gpu(name="Apple M2 Pro (19 cores)", kind="mps", memory_bytes=34359738368),),
    trials=(DeviceTrial(device="mps", outcome="agrees", detail="loss 5.1", seconds=4.0),),
    models=(CachedModel(name="org/m", bytes=90_000_000, complete=True),),
    openmp_runtimes=("torch 2.13.0: torch/lib/libomp.dylib",),
    variables=(Variable(name="OMP_NUM_THREADS", value="1", effect="limits threads"),),
    sources={"gpus": "system_profiler", "conflicts": "9 native files", "chip": "sysctl"},
)
DRIVER = MachineFacts(
    gpus=(Gpu(name="NVIDIA H200", kind="cuda", memory_bytes=150 * 10**9, free_bytes=149 * 10**9),),
    driver_version="580.159.04",
    driver_cuda="13.0",
    torch=TorchBuild(version="2.11.0+cu130", cuda="13.0"),
)
WARNING = Finding(
    slug="openmp-duplicate",
    severity="warning",
    seen="torch 2.8.0 and faiss-cpu 1.12.0 load two OpenMP runtimes, in either order",
    remedies=(
        Remedy("first", command="pip install x", cost="slow"),
        Remedy("second", change={"OMP_NUM_THREADS": "1"}),
        Remedy("third", command="z", keeps=False),
    ),
    sources=("pytorch/pytorch#149201",),
)
NOTE = Finding(slug="check-failed", severity="note", seen="a check broke")


def lines_of(facts, parts=SECTIONS, style=None):
    return [line for section in parts for line in render_section(section, facts, style or Style())]


def test_mac_is_summarized_in_a_few_lines():
    assert lines_of(MAC) == [
        "[ok] macOS 15.1, Apple M2 Pro, arm64",
        "[ok] Python 3.12.4 (CPython, Homebrew, Clang 16.0.0, in a virtual environment), "
        "/Users/ann/project/.venv/bin/python",
        "[ok] 12 CPUs, 34.4 GB memory (12.0 GB free), at most 256 open files",
        "[ok] disk: 90.0 GB free for output and temp (apfs), 5.0 GB free for cache",
        "[ok] torch 2.13.0, built for the CPU and the Apple GPU",
        "[ok] 2 distributions installed, among them transformers 5.22.2",
        "[ok] 1 model in the hub's cache, 90.0 MB",
        "[ok] Apple M2 Pro (19 cores), 34.4 GB shared with the CPU",
        "[ok] 1 OpenMP runtime among the installed packages, no clash",
        "[ok] mps trains: loss 5.1 (4 s with loading torch)",
    ]


def test_an_nvidia_card_comes_with_its_driver():
    text = "\n".join(lines_of(DRIVER))
    assert all(part in text for part in ("NVIDIA H200", "150.0 GB", "149.0 GB", "580.159.04", "2.11.0+cu130", "13.0"))


def test_facts_that_are_missing_leave_no_holes():
    text = "\n".join(lines_of(MachineFacts()))
    assert "None" not in text


def test_a_folder_of_another_system():
    facts = MachineFacts(
        os="windows",
        arch="x86_64",
        distributions={"torch": "2.8.0"},
        sources={"distributions": "/env/Lib/site-packages", "conflicts": "9 native files"},
    )
    first, _ = lines_of(facts, FOLDER_SECTIONS)
    assert "Windows x86_64" in first
    assert "/env/Lib/site-packages" in first


def test_conflicts_are_left_to_the_findings():
    pair = NativeConflict(
        runtime="openmp", first="a 1", second="b 2", copies=2, outcome="crash", because="weak symbols"
    )
    facts = MachineFacts(conflicts=(pair,), sources={"conflicts": "files"})
    assert lines_of(facts, SECTIONS[-2:-1]) == []
    assert "weak symbols" in show_fact("conflicts", facts)


def test_verbose_lists_facts_with_their_sources():
    text = "\n".join(lines_of(MAC, style=Style(verbose=True)))
    assert "     chip: Apple M2 Pro   (sysctl)" in text
    assert show_fact("is_rosetta", MAC) == "no"
    assert show_fact("memory_bytes", MAC) == "34.4 GB"
    assert show_fact("distributions", MAC) == "torch 2.13.0, transformers 5.22.2"
    assert show_fact("variables", MAC) == "OMP_NUM_THREADS=1 limits threads"
    assert show_fact("driver_cuda", MAC) == "none"
    assert show_fact("torch", MAC) == "2.13.0, CUDA no, ROCm no, MPS yes"
    assert show_fact("gpus", DRIVER) == "NVIDIA H200, bf16 no"
    assert show_fact("models", MAC) == "org/m 90.0 MB"
    power = MachineFacts(power=Power(on_battery=True, sleep_after_minutes=1))
    assert show_fact("power", power) == "battery, sleeps after 1 min, Low Power Mode no"
    held = MachineFacts(gpu_processes=(GpuProcess(pid=7, name="python", user="ann", memory_bytes=10**9),))
    assert show_fact("gpu_processes", held) == "python (pid 7, ann, 1.0 GB)"


def test_hidden_gpu_is_reported():
    hides = Variable(name="CUDA_VISIBLE_DEVICES", value="", effect="hides every NVIDIA GPU from torch")
    text = "\n".join(lines_of(replace(DRIVER, variables=(hides,))))
    assert "CUDA_VISIBLE_DEVICES" in text


def test_finding_shows_observation_advice_and_link():
    checkup = Checkup(facts=MachineFacts(), findings=(WARNING, NOTE), unanswered=("gpus: nvidia-smi did not answer",))
    assert render_findings(checkup, Style()) == [
        "[!]  torch 2.8.0 and faiss-cpu 1.12.0 load two OpenMP runtimes, in either order   [openmp-duplicate]",
        "     try   first  (pip install x; cost: slow)",
        "     try   second  (export OMP_NUM_THREADS=1)",
        "           1 more with -v",
        "     more  holdfast explain openmp-duplicate",
        "[!]  not answered: gpus: nvidia-smi did not answer",
    ]
    verbose = "\n".join(render_findings(checkup, Style(verbose=True)))
    assert "third  (z; changes what the model learns)" in verbose
    assert "read  pytorch/pytorch#149201" in verbose
    assert "[ok] a check broke   [check-failed]" in verbose


def test_one_remedy_that_can_be_typed_is_always_shown():
    remedies = (Remedy("a", change={"device": "cpu"}), Remedy("b", change={"threads": 1}), Remedy("c", command="pip x"))
    finding = Finding(slug="some-thing", severity="warning", seen="s", remedies=remedies)
    lines = render_findings(Checkup(facts=MachineFacts(), findings=(finding,)), Style())
    assert lines[1:] == [
        "     try   a  (use_cpu=True in TrainingArguments, or .to('cpu'))",
        "     try   c  (pip x)",
        "           1 more with -v",
    ]


def test_lines_fold_at_60_columns_without_breaking_commands():
    checkup = Checkup(facts=MachineFacts(), findings=(WARNING,))
    lines = lines_of(MAC, style=Style(width=60)) + render_findings(checkup, Style(width=60))
    assert max(map(len, lines)) <= 60
    assert any(f"holdfast explain {WARNING.slug}" in line for line in lines)


def test_a_command_is_never_broken_over_two_lines():
    long = 'pip install "tensorflow<2.20" "pyarrow<22" and much more'
    finding = Finding(slug="some-thing", severity="warning", seen="s", remedies=(Remedy("take these", command=long),))
    checkup = Checkup(facts=MachineFacts(), findings=(finding,))
    assert any(long in line for line in render_findings(checkup, Style(width=60)))
    assert long in "\n".join(render_close(checkup, Style(width=60), ""))


def test_colour_is_on_the_box_alone():
    (line,) = render_section(SECTIONS[0], MAC, Style(color=True))
    assert line.startswith("\x1b[32m[ok]\x1b[0m macOS")


def test_control_characters_never_reach_the_terminal():
    finding = Finding(slug="environment-variable", severity="warning", seen="X=\x1b[31mred\x07 does harm")
    (line,) = render_findings(Checkup(facts=MachineFacts(), findings=(finding,)), Style())
    assert "\x1b" not in line
    assert "\x07" not in line


def test_the_last_line_counts_and_names_the_next_command():
    def close(*findings, unanswered=(), verbose=False):
        checkup = Checkup(facts=MachineFacts(), findings=findings, unanswered=unanswered)
        return render_close(checkup, Style(verbose=verbose), "holdfast train DATA")[-1]

    assert close() == "no problems found. Next: holdfast train DATA"
    assert close(NOTE) == "no problems found, 1 note (-v shows it). Next: holdfast train DATA"
    assert close(WARNING, NOTE, NOTE) == ("1 warning, 2 notes (-v shows them). Next: holdfast explain openmp-duplicate")
    assert close(unanswered=("x: y",)) == "1 question unanswered. Next: holdfast train DATA"
    assert close(NOTE, verbose=True) == "no problems found, 1 note. Next: holdfast train DATA"


def test_json_has_exactly_the_three_keys_and_is_ascii():
    checkup = Checkup(
        facts=MachineFacts(python_path="/home/zo\u00eb/\udcff"), findings=(WARNING,), unanswered=("a: b",)
    )
    text = render_json(checkup)
    value = json.loads(text)
    assert text.isascii()
    assert list(value) == ["facts", "findings", "unanswered"]
    assert value["findings"][0]["slug"] == "openmp-duplicate"
    assert value["findings"][0]["remedies"][0]["command"] == "pip install x"
    assert value["unanswered"] == ["a: b"]
