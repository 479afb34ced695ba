"""The system, the chip and the interpreter, read from what real machines print."""

from holdfast.machine import system
from holdfast.machine.resources import read_flags, read_mac_flags

XEON = """processor\t: 0
vendor_id\t: GenuineIntel
model name\t: Intel(R) Xeon(R) Platinum 8488C
flags\t\t: fpu vme sse4_2 avx f16c avx2 avx512f fma amx_bf16 amx_tile hypervisor

processor\t: 1
model name\t: Intel(R) Xeon(R) Platinum 8488C
flags\t\t: fpu vme sse4_2 avx f16c avx2 avx512f fma amx_bf16 amx_tile hypervisor
"""
GRAVITON = """processor\t: 0
BogoMIPS\t: 2100.00
Features\t: fp asimd evtstrm aes atomics fphp asimdhp sve bf16 i8mm
CPU implementer\t: 0x41
CPU part\t: 0xd40
"""
APPLE_SYSCTL = """hw.optional.arm.FEAT_BF16: 1
hw.optional.arm.FEAT_I8MM: 1
hw.optional.arm.FEAT_FP16: 1
hw.optional.arm.FEAT_LSE: 1
hw.optional.arm.FEAT_SVE2: 0
hw.optional.arm.AdvSIMD: 1
hw.optional.neon: 1
"""
INTEL_SYSCTL = "hw.optional.avx1_0: 1\nhw.optional.avx2_0: 1\nhw.optional.avx512f: 0\nhw.optional.sse4_2: 1\n"


def test_chips_are_named_from_cpuinfo():
    assert system.read_chip(XEON) == "Intel(R) Xeon(R) Platinum 8488C"
    assert system.read_chip(GRAVITON) == "Neoverse V1"
    assert system.read_chip("processor : 0\nCPU part : 0xfff\n") == "ARM part 0xfff"
    assert system.read_chip("") == ""


def test_apple_generations_are_distinguished():
    assert system.apple_generation("Apple M2 Pro") == 2
    assert system.apple_generation("Apple M4") == 4
    assert system.apple_generation("Intel(R) Core(TM) i7-9750H CPU @ 2.60GHz") is None


def test_rosetta_is_read_from_sysctl():
    assert system.read_translated("1\n")
    assert not system.read_translated("0\n")
    assert not system.read_translated("")  # an Intel Mac does not know the name


def test_linux_is_named_with_its_kernel():
    debian = {"PRETTY_NAME": "Debian GNU/Linux 12 (bookworm)"}
    assert system.read_linux_version(debian, "6.1.0-18-amd64") == "Debian GNU/Linux 12 (bookworm), kernel 6.1.0"
    ubuntu = {"NAME": "Ubuntu"}
    wsl = system.read_linux_version(ubuntu, "5.15.153.1-microsoft-standard-WSL2")
    assert wsl == "Ubuntu, kernel 5.15.153.1 under WSL"


def test_containers_leave_marks(tmp_path):
    assert system.probe_in_container(tmp_path, {}).value is False
    assert system.probe_in_container(tmp_path, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}).value is True
    (tmp_path / "proc/1").mkdir(parents=True)
    (tmp_path / "proc/1/cgroup").write_text("0::/kubepods.slice/pod1\n")
    found = system.probe_in_container(tmp_path, {})
    assert found.value is True
    assert {"/proc/1/cgroup", "kubepods"} <= set(found.source.split())
    (tmp_path / ".dockerenv").touch()
    assert system.probe_in_container(tmp_path, {}).source == "/.dockerenv exists"


def test_kernel_flags_are_read_on_every_cpu_make():
    assert read_flags(XEON) == ("amx_bf16", "amx_tile", "avx", "avx2", "avx512f", "f16c", "fma", "sse4_2")
    assert {"atomics", "bf16", "sve"} <= set(read_flags(GRAVITON))
    assert read_flags("") == ()
    assert read_mac_flags(APPLE_SYSCTL) == ("asimd", "asimdhp", "atomics", "bf16", "i8mm")
    assert read_mac_flags(INTEL_SYSCTL) == ("avx", "avx2", "sse4_2")


def test_makers_of_pythons_are_known_by_their_folders():
    assert system.maker_of("/opt/homebrew/Cellar/python@3.12/3.12.4/Frameworks") == "Homebrew"
    assert system.maker_of("/Library/Frameworks/Python.framework/Versions/3.12") == "python.org"
    assert system.maker_of("/Users/x/.local/share/uv/python/cpython-3.12.4-macos-aarch64-none") == "uv"
    assert system.maker_of("/usr") == ""
