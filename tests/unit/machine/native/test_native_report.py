"""What `doctor --env` prints and gives as JSON."""

import json

import mac_packages as mac
import pytest
from build_binaries import GOMP, KMP, elf, install, pe

from holdfast.doctor.native_findings import native_findings, native_value
from holdfast.doctor.native_report import render_native
from holdfast.machine.native import loaders
from holdfast.machine.native.survey import survey_folder


@pytest.fixture(autouse=True)
def _on_linux(monkeypatch):
    monkeypatch.setattr(loaders, "HOST_SYSTEM", "linux")


def test_a_crashing_pair_is_one_line_with_its_reason_and_fixes(tmp_path):
    mac.torch(tmp_path)
    mac.faiss(tmp_path)
    text = render_native(survey_folder(tmp_path))
    lines = text.splitlines()
    crash = next(index for index, line in enumerate(lines) if line.startswith("[x]"))
    assert "faiss-cpu 1.12.0 and torch 2.8.0, either order: 2 copies, may crash" in lines[crash]
    assert "__kmp_suspend_64" in lines[crash + 1]
    assert "process of its own" in lines[crash + 2]
    assert lines[-1].startswith("1 OpenMP pair that may crash. Do not set KMP_DUPLICATE_LIB_OK")
    assert "--fix" not in text  # no environment, no links


def test_inside_an_environment_the_link_is_offered(tmp_path):
    (tmp_path / "pyvenv.cfg").write_text("home = x\n")
    mac.torch(tmp_path / "lib/python3.11/site-packages")
    mac.faiss(tmp_path / "lib/python3.11/site-packages")
    assert render_native(survey_folder(tmp_path)).endswith(f"Next: holdfast doctor --env {tmp_path} --fix")


def test_an_order_that_works_is_recommended(tmp_path):
    mac.torch(tmp_path, "2.10.0")
    mac.xgboost(tmp_path)
    findings = native_findings(survey_folder(tmp_path, homebrew=True))
    assert [finding.slug for finding in findings] == ["openmp-duplicate"]
    assert findings[0].seen.startswith("xgboost 3.0.5 then torch 2.10.0: 2 copies")
    assert findings[0].remedies[0].title == "import torch before xgboost, in every script and worker"


def test_a_torch_that_never_shares_gets_an_older_one_recommended(tmp_path):
    mac.torch(tmp_path, "2.13.0")
    mac.xgboost(tmp_path)
    (finding,) = native_findings(survey_folder(tmp_path, homebrew=True))
    assert 'pip install "torch>=2.4,<2.11,!=2.8.0"' in [remedy.command for remedy in finding.remedies]


def test_a_missing_runtime_says_who_could_help_and_what_homebrew_would_bring(tmp_path):
    mac.torch(tmp_path, "2.8.0")
    mac.xgboost(tmp_path)
    (finding,) = native_findings(survey_folder(tmp_path, homebrew=False))
    assert finding.slug == "native-lib-missing"
    assert "unless torch 2.8.0 is imported first" in finding.seen
    assert finding.remedies[1].command == "brew install libomp"
    assert "may crash" in finding.remedies[1].cost


def test_a_protobuf_clash_names_both_symptoms_and_the_fixed_version(tmp_path):
    mac.protobuf_user(tmp_path, "tensorflow", "2.20.0", old=False)
    mac.protobuf_user(tmp_path, "pyarrow", "21.0.0", old=True)
    report = survey_folder(tmp_path)
    text = render_native(report)
    assert (
        "pyarrow 21.0.0 first may hang: the newer protobuf waits for ever on the older one's std::mutex: \"[mutex.cc"
        in text
    )
    assert "tensorflow 2.20.0 first may abort" in text
    assert 'pip install -U "pyarrow>=22.0.0"' in text
    (finding,) = native_findings(report)
    assert finding.slug == "abseil-mutex"


def test_one_generation_of_protobuf_is_fine(tmp_path):
    mac.protobuf_user(tmp_path, "tensorflow", "2.19.0", old=True)
    mac.protobuf_user(tmp_path, "pyarrow", "21.0.0", old=True)
    report = survey_folder(tmp_path)
    assert native_findings(report) == ()
    assert render_native(report).endswith("no clash among these native libraries.")


def test_many_harmless_pairs_are_counted_and_listed_on_request(tmp_path):
    for index in range(5):
        library = f"libgomp-{index}.so.1"
        install(
            tmp_path,
            f"p{index}",
            "1",
            {
                f"p{index}/{library}": elf(name=library, symbols={GOMP: "strong"}),
                f"p{index}/core.so": elf(needed=[library], rpaths="$ORIGIN"),
            },
        )
    report = survey_folder(tmp_path)
    assert "10 harmless pairs: 10 load two that coexist" in render_native(report)
    assert "p0 1 and p1 1, either order: 2 copies, coexist" in render_native(report, verbose=True)


def test_windows_names_the_faiss_without_the_conflict(tmp_path):
    install(
        tmp_path,
        "torch",
        "2.8.0",
        {"torch/lib/libiomp5md.dll": pe(exports=[KMP]), "torch/lib/torch_cpu.dll": pe(needed=["libiomp5md.dll"])},
    )
    install(
        tmp_path,
        "faiss-cpu",
        "1.11.0",
        {"faiss/libomp140.x86_64-1.dll": pe(exports=[KMP]), "faiss/_s.pyd": pe(needed=["libomp140.x86_64-1.dll"])},
    )
    (finding,) = native_findings(survey_folder(tmp_path))
    assert "Error #15" in finding.why
    assert finding.remedies[0].command == 'pip install -U "faiss-cpu>=1.12"'


def test_lines_fold_to_the_width_and_the_json_is_plain(tmp_path):
    mac.torch(tmp_path)
    mac.faiss(tmp_path)
    report = survey_folder(tmp_path)
    folded = render_native(report, width=80).splitlines()
    assert all(len(line) <= 80 or " " not in line.strip() for line in folded)
    value = json.loads(json.dumps(native_value(report)))
    assert value["native"]["native_files"] == 5
    assert value["findings"][0]["slug"] == "openmp-duplicate"


def test_a_folder_name_cannot_write_to_the_terminal(tmp_path):
    folder = tmp_path / "a\x1b[31mb"
    mac.torch(folder)
    (folder / "torch/lib\x1b[2J").mkdir()
    (folder / "torch/lib\x1b[2J/x.so").write_bytes(b"x")
    assert "\x1b" not in render_native(survey_folder(folder))
