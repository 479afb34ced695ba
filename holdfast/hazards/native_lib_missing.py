"""A native library is missing, or is a different version than the package was built for.

What you see: "cannot open shared object file", "undefined symbol", "GLIBCXX_3.4.30 not found", "Library not loaded",
"DLL load failed", "[WinError 126]", mostly at import.
Why: a system library was never installed, an older one is found first, packages of one family (torch, torchvision, MKL)
come from different builds, or one was installed over another.
What we do: name the library and the command that installs it. A restart would not help.
"""

from holdfast.core.facts import MachineFacts, release
from holdfast.core.plan import Plan, Remedy
from holdfast.hazards import Hazard, Invited, proves, seen, suggests

# Lines that belong to other hazards, or that TensorFlow and torchvision print when they continue without an optional library.
_NOT_OURS = r"^(?!.*(?:dlerror|Could not load dynamic library|Failed to load image Python|CUDA SETUP|NCCL|bitsandbytes|flash_attn|fused_layer_norm|_gpu_|swigfaiss_gpu))"
_ONE_FAMILY = Remedy(
    "reinstall torch, torchvision and torchaudio together, so that they match",
    command="pip install --force-reinstall torch torchvision torchaudio",
)
_AFRESH = Remedy("reinstall torch", command="pip uninstall -y torch && pip install torch")


def invited_by(facts: MachineFacts, plan: Plan) -> Invited | None:
    """Say why this machine and plan invite the hazard; None when they do not."""
    torch, vision = facts.distributions.get("torch"), facts.distributions.get("torchvision")
    if torch and facts.torch and release(torch) != release(facts.torch.version):
        mixed = f"torch's files are {facts.torch.version}, its package record says {torch}: two installs overlap"
        return Invited(mixed, remedies=(_AFRESH,))
    if torch and vision:
        # torch 2.n belongs to torchvision 0.(15+n): 2.0 with 0.15, 2.13 with 0.28.
        major, minor, *_ = (*release(torch), 0, 0)
        expected = 15 + minor
        if major == 2 and release(vision)[:2] != (0, expected):
            return Invited(
                f"torchvision {vision} was built for another torch; torch {torch} needs torchvision 0.{expected}",
                remedies=(_ONE_FAMILY,),
            )
    return None


HAZARD = Hazard(
    slug="native-lib-missing",
    title="a native library is missing or does not fit",
    kind="error",
    invited_by=invited_by,
    over=("nccl-error",),  # "undefined symbol: nccl..." is a library that does not fit
    signs=(
        proves("log", _NOT_OURS + r".*\b(?:ImportError|OSError|RuntimeError)\b.*cannot open shared object file"),
        proves("log", _NOT_OURS + r".*\b(?:ImportError|OSError|AttributeError|RuntimeError)\b.*undefined symbol"),
        suggests("log", _NOT_OURS + r".*(?:cannot open shared object file|undefined symbol:|symbol lookup error:)"),
        proves("log", r"version [`'\"]?(?:GLIBC|GLIBCXX|CXXABI|GOMP|GCC|OPENSSL)_[\d.]+['\"]? not found"),
        proves(
            "log",
            _NOT_OURS + r".*(?:Library not loaded: |image not found$|[Ss]ymbol not found)",
            unless=(seen("log", r"architecture"),),
        ),
        proves("log", r"WinError (?:126|127|182|1114|1157)\b"),
        proves("log", r"DLL load failed", unless=(seen("log", r"valid Win32|WinError 1455"),)),
        proves(
            "log",
            r"Error loading \"?[^\n\"]+\.dll\"? or one of its dependencies|Could not find module '[^']+\.dll'",
            unless=(seen("log", r"WinError (?:1455|193)|paging file"),),
        ),
        proves(
            "log",
            r"cannot allocate memory in static TLS block|invalid ELF header|failed to map segment from shared object",
        ),
        proves(
            "log",
            r"(?i:intel mkl fatal error): (?:Cannot|cannot) load|Could not load library libcudnn|Unable to load any of \{libcudnn",
        ),
        proves("log", r"operator torchvision::nms does not exist|Couldn't load custom C\+\+ ops"),
        proves(
            "log",
            r"(?:sndfile|portaudio|XGBoost|LightGBM)[^\n]*(?:library|Library)[^\n]*(?:not found|could not be loaded)",
        ),
        suggests("log", r"No module named '_(?:ctypes|lzma|bz2|sqlite3|ssl)'"),
        suggests("log", r"PyTorch and torch(?:vision|audio) were compiled with different CUDA(?: major)? versions"),
        suggests("log", r"(?:ImportError|OSError): [^\n]*(?:file too short|cannot load library)"),
        suggests("frame", r"_load_(?:dll_libraries|global_deps) \(.*torch|^load_library \(.*torch[/\\]_ops"),
    ),
    remedies=(
        _ONE_FAMILY,
        Remedy(
            "install a newer libstdc++ in the environment",
            command="conda install -c conda-forge libstdcxx-ng libgcc-ng",
        ),
        Remedy(
            "install the system library named in the error",
            command="apt-get install libgomp1 libgl1 libsndfile1   # macOS: brew install libomp",
        ),
        Remedy("on Windows, install the Visual C++ runtime", command="winget install Microsoft.VCRedist.2015+.x64"),
        Remedy("with torch from conda and mkl 2024.1 or later", command='conda install "mkl<2024.1"'),
    ),
    sources=(
        "pytorch/pytorch#157709",
        "open-mmlab/mmpretrain#1900",
        "kohya-ss/sd-scripts#1597",
        "pytorch/pytorch#165812",
        "pytorch/pytorch#157648",
        "nagadomi/nunif#701",
        "lightgbm-org/LightGBM#6262",
    ),
    matches=(
        "ImportError: /lib/x86_64-linux-gnu/libstdc++.so.6: version `GLIBCXX_3.4.30' not found (required by /opt/libtorch_python.so)",
        "ImportError: /opt/torch/lib/libtorch_cpu.so: undefined symbol: iJIT_NotifyEvent",
        "ImportError: libcudnn.so.9: cannot open shared object file: No such file or directory",
        "ImportError: libGL.so.1: cannot open shared object file: No such file or directory",
        'OSError: [WinError 1114] A dynamic link library (DLL) initialization routine failed. Error loading "D:\\torch\\lib\\c10.dll" or one of its dependencies.',
        'ERROR    Could not load torch: [WinError 126] Das angegebene Modul wurde nicht gefunden. Error loading "fbgemm.dll" or one of its dependencies.',
        "ImportError: DLL load failed while importing _C: The specified module could not be found.",
        "OSError: dlopen(/opt/lightgbm/lib/lib_lightgbm.dylib, 0x0006): Library not loaded: @rpath/libomp.dylib\n  Reason: tried: '/opt/homebrew/opt/libomp/lib/libomp.dylib' (no such file)",
        "RuntimeError: operator torchvision::nms does not exist",
        "ImportError: /opt/sklearn/.libs/libgomp-d22c30c5.so.1.0.0: cannot allocate memory in static TLS block",
        "OSError: /usr/local/lib/python3.8/dist-packages/torchaudio/lib/libtorchaudio.so: undefined symbol: _ZNK3c107SymBool10guard_boolEPKcl",
        "INTEL MKL ERROR: libmkl_avx2.so: undefined symbol: mkl_sparse_optimize_bsr_trsm_i8.\nIntel MKL FATAL ERROR: Cannot load libmkl_avx2.so or libmkl_def.so.",
        "Could not load library libcudnn_cnn_infer.so.8. Error: libcuda.so: cannot open shared object file: No such file or directory",
        "OSError: sndfile library not found",
        "ModuleNotFoundError: No module named '_lzma'",
        "RuntimeError: Detected that PyTorch and torchvision were compiled with different CUDA versions.",
        "OSError: /venv/lib/libtorch_global_deps.so: file too short",
        '  File "/venv/lib/python3.11/site-packages/torch/__init__.py", line 174, in _load_global_deps\n',
    ),
    near_misses=(
        "W tensorflow/stream_executor/platform/default/dso_loader.cc:64] Could not load dynamic library 'libnvinfer.so.7'; dlerror: libnvinfer.so.7: cannot open shared object file: No such file or directory",
        "/opt/torchvision/io/image.py:13: UserWarning: Failed to load image Python extension: /opt/torchvision/image.so: undefined symbol: _ZN3c105ErrorC2ENS_14SourceLocationESs",
        "ModuleNotFoundError: No module named 'einops'",
        'OSError: [WinError 1455] The paging file is too small for this operation to complete. Error loading "shm.dll" or one of its dependencies.',
    ),
)
