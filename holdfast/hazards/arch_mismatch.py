"""A library was built for a different processor than the Python that loads it.

What you see: "incompatible architecture (have 'x86_64', need 'arm64')", "wrong ELF class", "not a valid Win32
application", "Exec format error", mostly at import.
Why: an Intel Python on an Apple chip (Rosetta), a package built under the other architecture, or a container image for
another CPU.
What we do: say which side is wrong. The fix is a Python for this chip, with freshly installed packages.
"""

from holdfast.core.facts import MachineFacts
from holdfast.core.plan import Plan, Remedy
from holdfast.hazards import Hazard, Invited, proves, seen, suggests

_NATIVE_PYTHON = Remedy(
    "recreate the environment with a Python for this chip",
    command="CONDA_SUBDIR=osx-arm64 conda create -n train python=3.12   # or: /opt/homebrew/bin/python3 -m venv .venv",
    cost="a new environment",
)


def invited_by(facts: MachineFacts, plan: Plan) -> Invited | None:
    """Say why this machine and plan invite the hazard; None when they do not."""
    if facts.is_rosetta or (facts.os == "macos" and facts.arch == "x86_64" and facts.chip.startswith("Apple")):
        python = facts.python_path or "this Python"
        seen_here = f"{python} is an Intel build under Rosetta on {facts.chip or 'an Apple chip'}: no MPS, arm64 libraries cannot load"
        return Invited(seen_here, "warning", (_NATIVE_PYTHON,))
    return None


HAZARD = Hazard(
    slug="arch-mismatch",
    title="a library was built for a different processor",
    kind="error",
    invited_by=invited_by,
    signs=(
        proves("log", r"mach-o(?: file)?, but (?:is an )?(?:incompatible|wrong) architecture"),
        proves("log", r"incompatible architecture \(have "),
        proves("log", r"wrong ELF class: ELFCLASS"),
        proves("log", r"[Bb]ad CPU type in executable"),
        proves("log", r"found architecture '[^']+', required architecture '"),
        proves("log", r"WinError 193\b|is not a valid Win32 application"),
        proves("log", r"(?:building for|built for) mac\S*-(?:arm64|x86_64)[^\n]*(?:built for|attempting to link)"),
        suggests(
            "log", r"no suitable image found\.\s+Did find", unless=(seen("log", r"code signature|file too short"),)
        ),
        suggests("log", r"(?i)\bexec format error"),
        suggests("log", r"requested image's platform \([^)]*\) does not match the detected host platform"),
        suggests("log", r"qemu: uncaught target signal \d+"),
        suggests(
            "log",
            r"(?:arm64|aarch64|x86_64|amd64|win32)\.whl is not a supported wheel on this platform",
        ),
    ),
    remedies=(
        Remedy(
            "reinstall the package named in the error for this processor",
            command="pip install --force-reinstall --no-cache-dir PACKAGE",
        ),
        _NATIVE_PYTHON,
        Remedy("build or pull the container for this processor", command="docker build --platform linux/arm64 ..."),
    ),
    sources=(
        "huggingface/tokenizers#712",
        "AUTOMATIC1111/stable-diffusion-webui#4594",
        "ml-explore/mlx#621",
        "Vaibhavs10/insanely-fast-whisper#126",
        "LaurentMazare/tch-rs#881",
    ),
    matches=(
        "ImportError: dlopen(/venv/lib/python3.10/site-packages/tokenizers/tokenizers.cpython-310-darwin.so, 0x0002): tried: '/venv/tokenizers.so' (mach-o file, but is an incompatible architecture (have 'x86_64', need 'arm64'))",
        "OSError: dlopen(libtorch_global_deps.dylib, 0x000A): tried: 'x' (mach-o file, but is an incompatible architecture (have (x86_64), need (arm64e)))",
        "ImportError: dlopen(/venv/_C.so, 2): no suitable image found.  Did find:\n\t/venv/_C.so: mach-o, but wrong architecture",
        "OSError: [WinError 193] %1 is not a valid Win32 application",
        "ImportError: /opt/app/libfoo.so: wrong ELF class: ELFCLASS32",
        "OSError: [Errno 8] Exec format error: '/usr/local/bin/ninja'",
        "zsh: bad CPU type in executable: ./python",
        "ImportError: dlopen(/venv/lib/python3.11/site-packages/regex/_regex.so, 0x0002): missing compatible arch: found architecture 'x86_64', required architecture 'arm64'",
        "ld: warning: ignoring file /usr/local/lib/libomp.dylib, building for macOS-arm64 but attempting to link with file built for macOS-x86_64",
        "WARNING: The requested image's platform (linux/amd64) does not match the detected host platform (linux/arm64/v8) and no specific platform was requested",
        "qemu: uncaught target signal 11 (Segmentation fault) - core dumped",
        "ERROR: torch-2.1.0-cp311-none-macosx_11_0_arm64.whl is not a supported wheel on this platform.",
    ),
    near_misses=(
        "ImportError: dlopen(/venv/lightgbm/lib_lightgbm.dylib, 0x0006): Library not loaded: @rpath/libomp.dylib\n  Reason: tried: '/opt/homebrew/opt/libomp/lib/libomp.dylib' (no such file)",
        "ImportError: /usr/lib/libtorch_cpu.so: undefined symbol: iJIT_NotifyEvent",
    ),
)
