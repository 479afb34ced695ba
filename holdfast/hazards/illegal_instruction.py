"""A library uses processor instructions that this CPU does not have.

What you see: "Illegal instruction (core dumped)", "Illegal instruction: 4", SIGILL or exit code 132, mostly at import
or at the first large operation.
Why: wheels are built for newer processors (AVX, AVX2, ARMv8.1 atomics). Old machines, virtual machines with a generic
CPU type and emulators lack these instructions.
What we do: make torch and the math libraries use their plain kernels; otherwise give the virtual machine the host's CPU
type.
"""

from holdfast.core.facts import MachineFacts
from holdfast.core.plan import Plan, Remedy
from holdfast.hazards import Case, Hazard, Invited, ended_by, fallout, proves, seen, suggests


def invited_by(facts: MachineFacts, plan: Plan) -> Invited | None:
    """Say why this machine and plan invite the hazard; None when they do not."""
    if not facts.cpu_flags:
        return None
    if facts.arch in ("x86_64", "amd64") and facts.os != "macos":
        missing = [flag for flag in ("avx", "avx2") if flag not in facts.cpu_flags]
        if missing:
            return Invited(f"this CPU lacks {' and '.join(missing)}, which many wheels need")
    # torch 2.10's allocator was built with ARMv8.1 atomics (vectorize-io/hindsight#4142).
    if facts.arch == "aarch64" and "atomics" not in facts.cpu_flags and facts.has_at_least("torch", "2.10"):
        return Invited(
            f"this ARM CPU has no LSE atomics, which torch {facts.distributions['torch']} uses at import", "blocker"
        )
    return None


HAZARD = Hazard(
    slug="illegal-instruction",
    title="a library used an instruction that this CPU lacks",
    kind="crash",
    invited_by=invited_by,
    over=("corrupt-checkpoint",),  # a pickle may say "invalid opcode" too
    signs=(
        proves(
            "log",
            r"\bIllegal instruction\b|illegal hardware instruction|非法指令|Instruction non permise|Ungültiger Maschinenbefehl",
            unless=(seen("log", r"qemu: uncaught"),),
        ),
        proves(
            "log",
            r"EXC_BAD_INSTRUCTION|trap invalid opcode|STATUS_ILLEGAL_INSTRUCTION",
        ),
        proves("log", r"\bSIGILL\b|died with <Signals\.SIGILL"),
        proves("log", r"compiled to use [\w., ]*instructions, but these aren't available"),
        proves("log", r"built using AVX instructions, which your CPU"),
        proves("log", r"built with baseline optimizations:[\s\S]{0,200}(?:but )?your machine doesn't support"),
        suggests(
            "log", r"Missing required CPU features|(?i:CPU (?:does not|doesn't) support (?:AVX|SSE4|FMA|the required))"
        ),
        suggests(
            "frame", r"_GLOBAL__sub_I_\w+\.cpp\.AVX|_(?:AVX2|AVX512|avx2|avx512\w*)\b", also=(ended_by("SIGILL"),)
        ),
        fallout(ended_by("SIGILL")),
    ),
    remedies=(
        Remedy(
            "use the plain kernels of torch, MKL and faiss",
            change={
                "ATEN_CPU_CAPABILITY": "default",
                "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
                "FAISS_OPT_LEVEL": "generic",
            },
            cost="slower on the CPU",
        ),
        Remedy(
            "give the virtual machine the host's CPU type",
            command="qm set VMID --cpu host   # Proxmox; 'host-passthrough' in libvirt",
        ),
        Remedy(
            "install builds for older processors",
            command="conda install -c conda-forge pytorch-cpu",
            cost="another installer",
        ),
    ),
    sources=(
        "pytorch/pytorch#37577",
        "pytorch/pytorch#22338",
        "tensorflow/tensorflow#25822",
        "nexi-lab/nexus#3776",
        "vectorize-io/hindsight#4142",
        "t0mer/Find-my-kids#1",
    ),
    matches=(
        ">>> import torch\nIllegal instruction (core dumped)",
        ">>> import tensorflow\nIllegal instruction: 4",
        "zsh: illegal hardware instruction  python train.py",
        "Program received signal SIGILL, Illegal instruction.\n0x00007fffe9076f17 in _GLOBAL__sub_I_BinaryOpsKernel.cpp.AVX2.cpp () from libtorch_cpu.so",
        "F tensorflow/core/platform/cpu_feature_guard.cc:37] The TensorFlow library was compiled to use AVX instructions, but these aren't available on your machine.",
        "RuntimeError: This version of jaxlib was built using AVX instructions, which your CPU and/or operating system do not support.",
        "kernel: traps: python[13378] trap invalid opcode ip:405821 sp:7fff1cb723c0 error:0 in libc10.so",
        Case("Loading faiss.", "132"),
        "RuntimeError: NumPy was built with baseline optimizations: \n(SSE SSE2 SSE3) but your machine doesn't support:\n(AVX2).",
        "ImportError: Missing required CPU features: avx2",
        Case("Thread 0 Crashed:\n0   libtorch_cpu.so   0x00007f12 dot_kernel_AVX512 + 12", "SIGILL"),
    ),
    near_misses=(
        "RuntimeError: CUDA error: an illegal instruction was encountered",
        "I tensorflow/core/platform/cpu_feature_guard.cc:193] This TensorFlow binary is optimized with oneAPI Deep Neural Network Library (oneDNN) to use the following CPU instructions in performance-critical operations:  AVX2 FMA",
        "[W NNPACK.cpp:53] Could not initialize NNPACK! Reason: Unsupported hardware.",
    ),
)
