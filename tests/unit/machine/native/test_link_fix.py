"""`doctor --fix` and `--unfix`: one copy through links, taken back exactly, whatever happened in between."""

import contextlib
import json
import shutil
from pathlib import Path

import mac_packages as mac
import pytest
from build_binaries import GOMP, KMP, LIBOMP_12, elf, install, macho

from holdfast.core.errors import MachineError, RequestError
from holdfast.doctor import link_fix
from holdfast.doctor.link_fix import apply_fix, apply_unfix, plan_fix, plan_unfix, render_fix, render_unfix
from holdfast.doctor.link_log import LOG_NAME, read_log
from holdfast.machine.native import loaders
from holdfast.machine.native.survey import survey_folder

FAISS = "lib/python3.11/site-packages/faiss/.dylibs/libomp.dylib"
SKLEARN = "lib/python3.11/site-packages/sklearn/.dylibs/libomp.dylib"
KEPT = FAISS + ".holdfast-original"


@pytest.fixture(autouse=True)
def _on_linux(monkeypatch):
    monkeypatch.setattr(loaders, "HOST_SYSTEM", "linux")


@pytest.fixture
def environment(tmp_path) -> Path:
    folder = tmp_path / "env"
    site = folder / "lib/python3.11/site-packages"
    mac.torch(site)
    mac.faiss(site)
    (folder / "pyvenv.cfg").write_text("home = /usr/bin\n")
    return folder


def contents(folder: Path) -> dict[str, tuple[str, bytes | str, int]]:
    """Everything in a folder: kind, content and inode of each file."""
    found: dict[str, tuple[str, bytes | str, int]] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            found[name] = ("link", str(path.readlink()), 0)
        elif path.is_file():
            found[name] = ("file", path.read_bytes(), path.stat().st_ino)
    return found


def outcomes(folder: Path) -> set[str]:
    return {pair.outcome for pair in survey_folder(folder, homebrew=True).conflicts}


def test_a_fix_leaves_one_copy_and_an_unfix_restores_everything(environment):
    before = contents(environment)
    plan = plan_fix(environment)
    assert [entry.link for entry in plan.actions] == [FAISS]
    assert "would become a link to ../../torch/lib/libomp.dylib" in render_fix(plan)
    assert contents(environment) == before  # a plan touches nothing
    apply_fix(plan)
    assert outcomes(environment) == {"shared"}
    assert (environment / KEPT).read_bytes() == before[FAISS][1]
    undo = plan_unfix(environment)
    assert "the original is put back" in render_unfix(undo)
    apply_unfix(undo)
    assert contents(environment) == before
    assert plan_unfix(environment).steps == ()


def test_a_second_fix_finds_nothing_to_do(environment):
    apply_fix(plan_fix(environment))
    after = contents(environment)
    again = plan_fix(environment)
    assert again.actions == ()
    assert [entry.link for entry in again.done] == [FAISS]
    apply_fix(again)
    assert contents(environment) == after


def test_an_installers_cache_is_not_written_through(environment, tmp_path):
    cached = tmp_path / "cache.dylib"
    cached.hardlink_to(environment / FAISS)
    original = cached.read_bytes()
    apply_fix(plan_fix(environment))
    assert cached.read_bytes() == original
    apply_unfix(plan_unfix(environment))
    assert cached.samefile(environment / FAISS)


def test_a_tolerated_copy_is_linked_too_when_that_does_no_harm(environment):
    mac.sklearn(environment / "lib/python3.11/site-packages")
    apply_fix(plan_fix(environment))
    assert outcomes(environment) == {"shared"}
    assert (environment / SKLEARN).is_symlink()


def test_an_old_copy_that_lives_with_homebrews_is_left_alone(environment):
    """Linked to torch's copy, scikit-learn would get the waiting code that clashes with xgboost's."""
    site = environment / "lib/python3.11/site-packages"
    mac.sklearn(site)
    mac.xgboost(site)
    plan = plan_fix(environment)
    assert [entry.link for entry in plan.actions] == [FAISS]
    left = " ".join(plan.left)
    assert (
        "scikit-learn 1.7.2: left as it is, because with a link xgboost 3.0.5 then scikit-learn 1.7.2 may crash" in left
    )
    assert "xgboost 3.0.5: asks for @rpath/libomp.dylib outside the environment" in left


def test_a_copy_is_left_alone_when_torchs_lacks_a_symbol(environment):
    site = environment / "lib/python3.11/site-packages"
    needy = macho(
        needed=["@loader_path/.dylibs/libomp.dylib"], symbols={KMP: "imported", "__kmpc_new_thing": "imported"}
    )
    (site / "faiss/_swigfaiss.cpython-311-darwin.so").write_bytes(needy)
    plan = plan_fix(environment)
    assert plan.actions == ()
    assert plan.left == ("faiss-cpu 1.12.0: torch's copy lacks what it needs: ___kmpc_new_thing",)
    assert "nothing to link" in render_fix(plan)


def test_outside_a_virtual_environment_nothing_is_linked(tmp_path):
    mac.torch(tmp_path)
    mac.faiss(tmp_path)
    for refused in (tmp_path, tmp_path / "missing"):
        with pytest.raises(RequestError, match="not inside a virtual environment"):
            plan_fix(refused)


def test_other_systems_and_environments_without_torch_are_refused(tmp_path):
    (tmp_path / "pyvenv.cfg").write_text("home = x\n")
    site = tmp_path / "lib/python3.11/site-packages"
    mac.faiss(site)
    with pytest.raises(RequestError, match="no torch"):
        plan_fix(tmp_path)
    shutil.rmtree(site)
    install(site, "torch", "2.13.0", {"torch/libgomp.so.1": elf(symbols={GOMP: "strong"})})
    with pytest.raises(RequestError, match="macOS packages only"):
        plan_fix(tmp_path)


def test_the_site_packages_folder_may_be_named_as_well(environment):
    assert plan_fix(environment / "lib/python3.11/site-packages") == plan_fix(environment)


class _Killed(BaseException):
    pass


@pytest.mark.parametrize("steps", range(1, 6))
@pytest.mark.parametrize("can_hardlink", [True, False])
@pytest.mark.parametrize("then", ["fix", "unfix"])
def test_a_fix_killed_at_any_step_can_be_finished_or_undone(environment, monkeypatch, steps, can_hardlink, then):
    before = contents(environment)
    left = [steps]

    def limited(method):
        def call(self, *args, **kwargs):
            if left[0] == 0:
                raise _Killed
            left[0] -= 1
            return method(self, *args, **kwargs)

        return call

    def no_hardlink(self, target):
        raise OSError("not supported")

    plan = plan_fix(environment)
    with monkeypatch.context() as patch:
        for name in ("replace", "hardlink_to", "symlink_to"):
            patch.setattr(Path, name, limited(getattr(Path, name)))
        if not can_hardlink:
            patch.setattr(Path, "hardlink_to", no_hardlink)
        with contextlib.suppress(_Killed):
            apply_fix(plan)
    if then == "fix":
        apply_fix(plan_fix(environment))
        assert outcomes(environment) == {"shared"}
    apply_unfix(plan_unfix(environment))
    if not can_hardlink and then == "unfix":
        assert {name: found[:2] for name, found in contents(environment).items()} == {
            name: found[:2] for name, found in before.items()
        }
    else:
        assert contents(environment) == before


def test_a_reinstalled_package_is_left_alone(environment):
    apply_fix(plan_fix(environment))
    fresh = macho(name="/DLC/faiss/.dylibs/libomp.dylib", symbols=LIBOMP_12, built_for=(15, 0))
    (environment / FAISS).unlink()
    (environment / FAISS).write_bytes(fresh)
    plan = plan_unfix(environment)
    assert "faiss-cpu was reinstalled since; left alone" in render_unfix(plan)
    apply_unfix(plan)
    assert (environment / FAISS).read_bytes() == fresh
    assert not (environment / KEPT).exists()
    assert not (environment / LOG_NAME).exists()


def test_a_reinstalled_package_can_be_fixed_again(environment):
    apply_fix(plan_fix(environment))
    fresh = macho(name="/DLC/faiss/.dylibs/libomp.dylib", symbols=LIBOMP_12, built_for=(15, 0))
    (environment / FAISS).unlink()
    (environment / FAISS).write_bytes(fresh)
    apply_fix(plan_fix(environment))
    assert outcomes(environment) == {"shared"}
    apply_unfix(plan_unfix(environment))
    assert (environment / FAISS).read_bytes() == fresh


def test_an_uninstalled_package_is_forgotten(environment):
    apply_fix(plan_fix(environment))
    site = environment / "lib/python3.11/site-packages"
    (environment / FAISS).unlink()
    shutil.rmtree(site / "faiss_cpu-1.12.0.dist-info")
    plan = plan_unfix(environment)
    assert "was uninstalled since" in render_unfix(plan)
    apply_unfix(plan)
    assert not (environment / KEPT).exists()
    assert read_log(environment) == ()


def test_a_link_of_someone_else_is_left_alone(environment):
    apply_fix(plan_fix(environment))
    (environment / FAISS).unlink()
    (environment / FAISS).symlink_to("/opt/other/libomp.dylib")
    apply_unfix(plan_unfix(environment))
    assert str((environment / FAISS).readlink()) == "/opt/other/libomp.dylib"
    assert (environment / KEPT).is_file()  # the only copy of the original


@pytest.mark.parametrize("damage", ["gone", "changed"])
def test_an_original_that_is_lost_is_said_and_stays_on_record(environment, damage):
    apply_fix(plan_fix(environment))
    if damage == "gone":
        (environment / KEPT).unlink()
    else:
        (environment / KEPT).write_bytes(b"other")
    plan = plan_unfix(environment)
    assert "reinstall faiss-cpu 1.12.0" in render_unfix(plan)
    apply_unfix(plan)
    assert (environment / FAISS).is_symlink()
    assert [entry.link for entry in read_log(environment)] == [FAISS]


def test_when_torch_went_away_the_broken_link_is_told_and_undone(environment):
    original = (environment / FAISS).read_bytes()
    apply_fix(plan_fix(environment))
    site = environment / "lib/python3.11/site-packages"
    shutil.rmtree(site / "torch")
    mac.torch(site, "2.2.0")
    (site / "torch/lib/libomp.dylib").rename(site / "torch/lib/libother.dylib")
    shutil.move(site / "torch/lib/libother.dylib", site / "torch/libomp.dylib")
    (site / "torch/lib/libtorch_cpu.dylib").write_bytes(macho(needed=["@loader_path/../libomp.dylib"]))
    assert any("leads nowhere" in reason for reason in plan_fix(environment).left)
    apply_unfix(plan_unfix(environment))
    assert (environment / FAISS).read_bytes() == original


def test_a_file_that_changes_between_plan_and_fix_is_not_replaced(environment):
    plan = plan_fix(environment)
    (environment / FAISS).write_bytes(b"new")
    with pytest.raises(RequestError, match="changed after it was looked at"):
        apply_fix(plan)
    assert (environment / FAISS).read_bytes() == b"new"


def test_a_read_only_environment_is_a_machine_error(environment, monkeypatch):
    plan = plan_fix(environment)

    def refuse(*args):
        raise PermissionError(13, "Permission denied", "x")

    monkeypatch.setattr(link_fix, "write_log", refuse)
    with pytest.raises(MachineError, match="could not be changed"):
        apply_fix(plan)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"links": [{"owner": "x"}]}',
        json.dumps({"links": [dict.fromkeys(("owner", "link", "target", "kept", "sha256"), "../x")]}),
    ],
)
def test_a_record_that_is_broken_or_leads_outside_is_refused(environment, text):
    (environment / LOG_NAME).write_text(text)
    with pytest.raises(RequestError, match="record of links"):
        plan_unfix(environment)


def test_a_record_that_leads_outside_through_a_folder_link_is_refused(environment, tmp_path):
    (tmp_path / "outside").mkdir()
    (environment / "way").symlink_to(tmp_path / "outside")
    entry = {"owner": "x 1", "link": "way/libomp.dylib", "target": "y", "kept": "way/kept", "sha256": ""}
    (environment / LOG_NAME).write_text(json.dumps({"links": [entry]}))
    with pytest.raises(RequestError, match="outside the environment"):
        plan_unfix(environment)
