"""GPUs, drivers and GPU processes, read from what the tools print."""

import json

from holdfast.core.facts import Gpu, GpuProcess
from holdfast.machine import gpu
from holdfast.machine.system import read_power

CARDS = "NVIDIA H200, 143771, 143156, 9.0\nTesla T4, 15360, 15102, 7.5\n"
OLD_DRIVER_CARD = "Tesla K80, 11441, [N/A], [Not Supported]\n"
BANNER = """Sat Nov 15 09:00:00 2026
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 580.159.04             Driver Version: 580.159.04     CUDA Version: 13.0     |
|-----------------------------------------+------------------------+----------------------+
"""
SPLIT_BANNER = "| NVIDIA-SMI 590.44.01    KMD Version: 590.44.01     CUDA UMD Version: 13.1     |"
PROCESSES = "4242, /usr/bin/python3, 10240\n77, /opt/a, b/python, 512\n99, [Not Found], [N/A]\n1000, python, 1\n"
M2_PRO = {
    "SPDisplaysDataType": [
        {
            "_name": "Apple M2 Pro",
            "spdisplays_mtlgpufamilysupport": "spdisplays_metal3",
            "sppci_bus": "spdisplays_builtin",
            "sppci_cores": "19",
            "sppci_model": "Apple M2 Pro",
        }
    ]
}
INTEL_MAC = {"SPDisplaysDataType": [{"_name": "kHW_AMDRadeonPro5300MItem", "sppci_model": "AMD Radeon Pro 5300M"}]}
CPU_NODE = "cpu_cores_count 64\nsimd_count 0\n"
MI210_NODE = "cpu_cores_count 0\nsimd_count 416\ngfx_target_version 90010\n"
BATTERY = (
    "Now drawing from 'Battery Power'\n -InternalBattery-0 (id=1234)\t81%; discharging; 5:12 remaining present: true\n"
)
MAINS = "Now drawing from 'AC Power'\n"
SETTINGS = """System-wide power settings:
Currently in use:
 standby              1
 lowpowermode         1
 displaysleep         10
 sleep                1 (sleep prevented by coreaudiod, caffeinate)
 disksleep            10
"""


def test_nvidia_cards_are_read_with_memory_and_capability():
    h200, t4 = gpu.read_nvidia_gpus(CARDS)
    assert h200 == Gpu(
        name="NVIDIA H200",
        kind="cuda",
        memory_bytes=143771 << 20,
        free_bytes=143156 << 20,
        has_bf16=True,
        capability="9.0",
    )
    assert not t4.has_bf16


def test_gpu_without_readable_figures_is_still_listed():
    (k80,) = gpu.read_nvidia_gpus(OLD_DRIVER_CARD)
    assert (k80.memory_bytes, k80.free_bytes, k80.capability, k80.has_bf16) == (11441 << 20, None, "", False)
    assert gpu.read_nvidia_gpus("No devices were found\n") == ()


def test_the_driver_says_which_cuda_it_takes():
    assert gpu.read_driver_cuda(BANNER) == "13.0"
    assert gpu.read_driver_cuda(SPLIT_BANNER) == "13.1"
    assert gpu.read_driver_cuda("| CUDA Version: N/A |") == ""


def test_processes_of_others_are_listed_without_ourselves():
    found = gpu.read_gpu_processes(PROCESSES, own_pid=1000, user_of=lambda pid: "ann" if pid == 4242 else "")
    assert found == (
        GpuProcess(pid=4242, name="/usr/bin/python3", user="ann", memory_bytes=10240 << 20),
        GpuProcess(pid=77, name="/opt/a, b/python", user="", memory_bytes=512 << 20),
        GpuProcess(pid=99, name="", user="", memory_bytes=None),
    )


def test_apple_gpu_shares_memory_and_m2_lacks_bf16():
    (m2,) = gpu.read_apple_gpus(json.dumps(M2_PRO), 32 << 30)
    assert m2 == Gpu(name="Apple M2 Pro (19 cores)", kind="mps", memory_bytes=32 << 30)
    assert gpu.read_apple_gpus(json.dumps(M2_PRO).replace("M2", "M4"), 0)[0].has_bf16
    assert gpu.read_apple_gpus(json.dumps(INTEL_MAC), 16 << 30) == ()


def test_amd_nodes_without_simd_units_are_cpus():
    assert gpu.read_amd_node(CPU_NODE) == ()
    assert gpu.read_amd_node(MI210_NODE) == (Gpu(name="AMD gfx90a", kind="rocm", has_bf16=True),)


def test_the_nvidia_driver_is_seen_without_waking_it(tmp_path):
    assert not gpu.has_nvidia_driver(tmp_path)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()
    assert gpu.has_nvidia_driver(tmp_path)


def test_power_and_sleep_of_a_mac():
    power = read_power(BATTERY, SETTINGS)
    assert (power.on_battery, power.sleep_after_minutes, power.low_power_mode) == (True, 1, True)
    never = read_power(MAINS, SETTINGS.replace("sleep                1 (", "sleep                0 ("))
    assert (never.on_battery, never.sleep_after_minutes) == (False, None)
    assert read_power(MAINS, "").sleep_after_minutes is None
