"""The NVIDIA driver and the CUDA build are incompatible, or the driver does not respond.

What you see: "The NVIDIA driver on your system is too old", "CUDA driver version is insufficient", error 803 or 804
from `cudaGetDeviceCount`, or "Driver/library version mismatch". torch then quietly uses the CPU.
Why: each CUDA version needs a driver at least as new. After an update, the loaded kernel module and the libraries on
disk differ until a restart. A container may bring a different driver library.
What we do: train on the CPU and say which driver or build is needed.
"""

from holdfast.core.facts import MachineFacts, release
from holdfast.core.plan import Plan, Remedy
from holdfast.hazards import Case, Hazard, Invited, proves, seen, suggests


def invited_by(facts: MachineFacts, plan: Plan) -> Invited | None:
    """Say why this machine and plan invite the hazard; None when they do not."""
    if facts.torch is None or facts.torch.cuda is None or not facts.driver_cuda or plan.device not in ("auto", "cuda"):
        return None
    built_for, driver = release(facts.torch.cuda), release(facts.driver_cuda)
    # Since CUDA 11 a driver runs every minor version of its major version.
    too_old = built_for[:1] > driver[:1] if built_for >= (11,) else built_for > driver
    if too_old:
        seen_here = f"the driver supports CUDA up to {facts.driver_cuda}; torch {facts.torch.version} was built for {facts.torch.cuda}"
        return Invited(seen_here, "blocker")
    return None


# TensorFlow prints this on every machine without a card.
_TENSORFLOW = seen("log", r"cuda_driver\.cc|stream_executor|cuda_diagnostics")

HAZARD = Hazard(
    slug="cuda-driver-mismatch",
    title="the NVIDIA driver is not compatible with this CUDA build",
    kind="error",
    invited_by=invited_by,
    signs=(
        proves(
            "log",
            r"NVIDIA driver on your system is too old|CUDA driver version is insufficient|cudaErrorInsufficientDriver|cuda runtime error \(35\)|cudaGetDeviceCount returned 35",
        ),
        proves(
            "log",
            r"forward compatibility was attempted on non supported HW|system has unsupported display driver|CUDA_ERROR_SYSTEM_DRIVER_MISMATCH|cudaErrorSystemDriverMismatch|cudaErrorCompatNotSupportedOnDevice|CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
        ),
        proves(
            "log",
            r"Driver/library version mismatch|NVML_ERROR_LIB_RM_VERSION_MISMATCH|RmInitAdapter failed|API mismatch: the (?:client|NVIDIA kernel module)|does not match DSO version",
        ),
        proves(
            "log",
            r"NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver|unsatisfied condition: (?:cuda|driver)\s*>=|please update your driver to a newer version",
        ),
        proves(
            "log",
            r"provided PTX was compiled with an unsupported toolchain|CUDA_ERROR_UNSUPPORTED_PTX_VERSION|cudaErrorUnsupportedPtxVersion|CUDA driver is a stub library|cudaErrorStubLibrary",
        ),
        proves(
            "log",
            r"CUDA unknown error - this may be due to an incorrectly set up environment|CUDA driver initialization failed",
        ),
        # A forked worker also gets error 3 here; that is another hazard (cuda-fork).
        proves("log", r"Unexpected error from cudaGetDeviceCount\(\)(?![^\n]*Error 3:)"),
        proves("log", r"(?:Error|error|CUDA failure) ?\(?(?:802|803|804)\)?: |system not yet initialized"),
        suggests(
            "log",
            r"Found no NVIDIA driver on your system|No CUDA GPUs are available|no CUDA-capable device is detected|CUDA_ERROR_NO_DEVICE|cudaErrorNoDevice|cuda runtime error \((?:38|100)\)",
            unless=(_TENSORFLOW,),
        ),
        suggests(
            "log",
            r"cuda runtime error \((?:30|999)\)|CUDA error: unknown error|CUDA_ERROR_UNKNOWN|cudaErrorUnknown",
            unless=(_TENSORFLOW,),
        ),
        suggests(
            "log",
            r"(?:Failed|Can't|could not|Unable) to initialize NVML|Can't initialize NVML|NVML Shared Library Not Found|NVMLError_(?:DriverNotLoaded|LibRmVersionMismatch|Unknown|NotSupported|LibraryNotFound)",
        ),
        suggests(
            "error",
            r"libcuda\.so(?:\.1)?: cannot open shared object file|libnvidia-ml\.so(?:\.1)?: cannot open",
            unless=(seen("log", r"tensorflow|bitsandbytes"),),
        ),
        suggests(
            "log",
            r"nvidia-container-cli: .*(?:error|failed)|could not select device driver \"?\S* ?with capabilities: \[\[gpu\]\]",
        ),
    ),
    remedies=(
        Remedy("train on the CPU until the driver is fixed", change={"device": "cpu"}, cost="much slower"),
        Remedy(
            "install a torch built for a CUDA version that the driver supports (see nvidia-smi)",
            command="pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu126",
        ),
        Remedy(
            "update the driver, then restart the machine", command="sudo apt install nvidia-driver-570 && sudo reboot"
        ),
        Remedy(
            "after a driver update: restart, so that the kernel module and the libraries match",
            command="sudo reboot",
        ),
        Remedy(
            "in a container: skip its compat libraries",
            command="LD_LIBRARY_PATH=$(echo $LD_LIBRARY_PATH | sed 's#/usr/local/cuda/compat[^:]*:\\?##g') python train.py",
        ),
        Remedy(
            "on machines with NVSwitch (error 802): start the fabric manager",
            command="sudo systemctl start nvidia-fabricmanager",
        ),
    ),
    sources=(
        "ultralytics/yolov5#2389",
        "gpustack/gpustack#1254",
        "microsoft/human-pose-estimation.pytorch#23",
        "nagadomi/nunif#702",
        "pytorch/pytorch#35710",
    ),
    over=("native-lib-missing",),
    matches=(
        "UserWarning: CUDA initialization: The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver",
        "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() that might have already set an error? Error 804: forward compatibility was attempted on non supported HW",
        "RuntimeError: cuda runtime error (35) : CUDA driver version is insufficient for CUDA runtime version at torch/csrc/cuda/Module.cpp:107",
        "Failed to initialize NVML: Driver/library version mismatch",
        "RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment, e.g. changing env variable CUDA_VISIBLE_DEVICES after program start.",
        "RuntimeError: CUDA error: the provided PTX was compiled with an unsupported toolchain.",
        "docker: Error response from daemon: nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.4, please update your driver to a newer version",
        "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and installed a driver from http://www.nvidia.com/Download/index.aspx",
        "RuntimeError: No CUDA GPUs are available",
        "RuntimeError: CUDA error: unknown error",
        "ImportError: libcuda.so.1: cannot open shared object file: No such file or directory",
    ),
    near_misses=(
        "AssertionError: Torch not compiled with CUDA enabled",
        Case(
            "W tensorflow/compiler/xla/stream_executor/platform/default/dso_loader.cc:64] Could not load dynamic library 'libnvinfer.so.7'; dlerror: libnvinfer.so.7: cannot open shared object file",
            "0",
        ),
        "I tensorflow/stream_executor/cuda/cuda_diagnostics.cc:156] kernel driver does not appear to be running on this host",
        "RuntimeError: CUDA error: invalid device ordinal",
    ),
)
