"""What `doctor` finds wrong among native libraries, and what `-v` lists of them."""

import mac_packages as mac
import pytest
from build_binaries import GOMP, KMP, elf, install, pe

from holdfast.doctor.native_findings import native_details, native_findings
from holdfast.machine.native import dynamic_loader
from holdfast.machine.native.native_report import survey_folder


@pytest.fixture(autouse=True)
def _on_linux(monkeypatch):
    monkeypatch.setattr(dynamic_loader, "HOST_SYSTEM", "linux")


def test_crashing_pair_is_one_finding_with_reason_and_fixes(tmp_path):
    mac.torch(tmp_path)
    mac.faiss(tmp_path)
    (finding,) = native_findings(survey_folder(tmp_path))
    assert finding.slug == "openmp-duplicate"
    assert "faiss-cpu 1.12.0" in finding.seen
    assert "torch 2.8.0" in finding.seen
    assert "__kmp_suspend_64" in finding.why
    assert "spawn" in finding.remedies[0].title


def test_an_order_that_works_is_recommended(tmp_path):
    mac.torch(tmp_path, "2.10.0")
    mac.xgboost(tmp_path)
    findings = native_findings(survey_folder(tmp_path, homebrew=True))
    assert [finding.slug for finding in findings] == ["openmp-duplicate"]
    assert findings[0].seen.index("xgboost 3.0.5") < findings[0].seen.index("torch 2.10.0")
    title = findings[0].remedies[0].title
    assert title.index("torch") < title.index("xgboost")


def test_older_torch_is_recommended_when_runtimes_never_merge(tmp_path):
    mac.torch(tmp_path, "2.13.0")
    mac.xgboost(tmp_path)
    (finding,) = native_findings(survey_folder(tmp_path, homebrew=True))
    assert 'pip install "torch>=2.4,<2.11,!=2.8.0"' in [remedy.command for remedy in finding.remedies]


def test_missing_runtime_names_providers_and_homebrew(tmp_path):
    mac.torch(tmp_path, "2.8.0")
    mac.xgboost(tmp_path)
    (finding,) = native_findings(survey_folder(tmp_path, homebrew=False))
    assert finding.slug == "native-lib-missing"
    assert "torch 2.8.0" in finding.seen
    assert finding.remedies[1].command == "brew install libomp"


def test_a_protobuf_clash_names_both_symptoms_and_the_fixed_version(tmp_path):
    mac.protobuf_user(tmp_path, "tensorflow", "2.20.0", old=False)
    mac.protobuf_user(tmp_path, "pyarrow", "21.0.0", old=True)
    (finding,) = native_findings(survey_folder(tmp_path))
    assert finding.slug == "abseil-mutex"
    hang, abort = finding.seen.split("; ")
    assert hang.startswith("pyarrow 21.0.0")
    assert "hang" in hang
    assert "abort" in abort
    assert finding.remedies[0].command == 'pip install -U "pyarrow>=22.0.0"'


def test_one_generation_of_protobuf_is_fine(tmp_path):
    mac.protobuf_user(tmp_path, "tensorflow", "2.19.0", old=True)
    mac.protobuf_user(tmp_path, "pyarrow", "21.0.0", old=True)
    report = survey_folder(tmp_path)
    assert native_findings(report) == ()
    assert sum(line.startswith("[ok] protobuf") for line in native_details(report)) == 3


def test_every_harmless_pair_is_listed(tmp_path):
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
    text = "\n".join(native_details(survey_folder(tmp_path)))
    assert text.count("coexist") == 10


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


def test_details_wrap_and_name_providers_and_users(tmp_path):
    mac.torch(tmp_path)
    mac.faiss(tmp_path)
    report = survey_folder(tmp_path)
    subjects = [line.split("  ")[0] for line in native_details(report)]
    assert [subject.split()[0] for subject in subjects] == ["[ok]"] * 5
    assert [subject.split()[-1] for subject in subjects] == [*["OpenMP"] * 4, "BLAS"]
    folded = native_details(report, width=80)
    assert all(len(line) <= 80 or " " not in line.strip() for line in folded)


def test_a_file_name_cannot_write_to_the_terminal(tmp_path):
    folder = tmp_path / "a\x1b[31mb"
    mac.torch(folder)
    mac.torch(folder / "torch\x1b[2J")
    assert "\x1b" not in "\n".join(native_details(survey_folder(folder)))
