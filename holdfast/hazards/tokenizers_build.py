"""pip tries to build the tokenizers package from source, and the build fails.

What you see: "Failed building wheel for tokenizers", "can't find Rust compiler", "error: casting `&T` to `&mut T` is
undefined behavior", "Cargo, the Rust package manager, is not installed".
Why: that old version has no wheel for this Python or processor, so pip compiles it. That needs Rust, and versions
before 0.14 do not compile with current Rust.
What we do: name a version that has a wheel. A restart would not help.
"""

from holdfast.core.facts import MachineFacts
from holdfast.core.plan import Plan, Remedy
from holdfast.hazards import Hazard, Invited, proves, seen, suggests

_RUST_PACKAGES = r"(?:tokenizers|safetensors|tiktoken|sentencepiece|sudachipy|hf[-_]xet)"


def invited_by(facts: MachineFacts, plan: Plan) -> Invited | None:
    """Say why this machine and plan invite the hazard; None when they do not."""
    if "transformers" in facts.distributions and "tokenizers" not in facts.distributions:
        return Invited(f"transformers {facts.distributions['transformers']} is installed without tokenizers", "blocker")
    return None


HAZARD = Hazard(
    slug="tokenizers-build",
    title="the tokenizers package could not be built",
    kind="error",
    invited_by=invited_by,
    signs=(
        proves("log", rf"Failed (?:building wheel for|to build)[^\n]*\b{_RUST_PACKAGES}\b"),
        proves("log", rf"Could not build wheels for[^\n]*\b{_RUST_PACKAGES}\b"),
        proves(
            "log",
            rf"Building wheel for {_RUST_PACKAGES} [^\n]*(?:\.\.\. error|status 'error'|did not run successfully)",
        ),
        proves("log", rf"could not compile `{_RUST_PACKAGES}`|tokenizers-lib[/\\]src[/\\]"),
        proves("log", r"casting `&T` to `&mut T` is undefined behavior"),
        suggests(
            "log",
            r"(?i)can(?:'t| ?not) find Rust compiler|is not installed or is not on PATH[^\n]*\bcargo|Cargo, the Rust package manager, is not installed|requires Rust and Cargo to compile",
        ),
        suggests(
            "log",
            r"cargo (?:rustc|build|metadata)[^\n]*(?:failed with code|returned non-zero)|maturin failed|setuptools[_-]rust",
        ),
        suggests("log", r"metadata-generation-failed", also=(seen("log", rf"(?i)\b{_RUST_PACKAGES}\b|rust|maturin"),)),
        suggests("error", r"No module named 'tokenizers\.tokenizers'"),
        suggests("log", r"No matching distribution found for tokenizers"),
    ),
    remedies=(
        Remedy(
            "install a version that has a wheel",
            command="pip install -U pip && pip install --only-binary=:all: -U tokenizers transformers",
        ),
        Remedy(
            "keep the old version and use a Python that it has wheels for",
            command="conda create -n train python=3.10 && conda run -n train pip install transformers==4.30.2",
        ),
        Remedy("install a prebuilt package from conda-forge", command="conda install -c conda-forge tokenizers"),
        Remedy(
            "or build it: 0.14.1 and later compile with current Rust",
            command="curl https://sh.rustup.rs -sSf | sh && pip install tokenizers",
        ),
    ),
    sources=(
        "huggingface/tokenizers#1359",
        "huggingface/tokenizers#1050",
        "huggingface/transformers#2831",
        "huggingface/transformers#4307",
        "astral-sh/uv#3342",
    ),
    over=("version-api-rename",),
    matches=(
        "  ERROR: Failed building wheel for tokenizers\nFailed to build tokenizers",
        "error: can't find Rust compiler",
        "error: can not find Rust Compiler",
        "ERROR: Could not build wheels for tokenizers, which is required to install pyproject.toml-based projects",
        "  Building wheel for tokenizers (pyproject.toml) did not run successfully.",
        "error: casting `&T` to `&mut T` is undefined behavior, even if the reference is unused, consider instead using an `UnsafeCell`\n --> tokenizers-lib/src/models/bpe/trainer.rs:526:47",
        "error: could not compile `tokenizers` (lib) due to 1 previous error; 3 warnings emitted",
        "  Cargo, the Rust package manager, is not installed or is not on PATH.\n  This package requires Rust and Cargo to compile extensions.",
        "error: cargo rustc --lib failed with code 101",
        "tokenizers\nerror: metadata-generation-failed",
        "ModuleNotFoundError: No module named 'tokenizers.tokenizers'",
        "ERROR: No matching distribution found for tokenizers==0.10.3",
    ),
    near_misses=(
        "Building wheels for collected packages: tokenizers\n  Building wheel for tokenizers (pyproject.toml) ... done\nSuccessfully built tokenizers",
        "ERROR: Failed building wheel for flash-attn",
        "huggingface/tokenizers: The current process just got forked, after parallelism has already been used.",
    ),
)
