"""Writes a script as a container: a Dockerfile with everything it needs beside it."""

import textwrap
from pathlib import Path

_DOCKERFILE = """\
# {about}
#
#   docker build -t {name} .
#   mkdir -p model
#   docker run --rm --user "$(id -u)" -v "$PWD/model:/app/model" {name}
#   docker run --rm --user "$(id -u)" -v "$PWD/model:/app/model" --gpus all -e DEVICE=cuda {name}
#
# torch's wheels bring CUDA; the host brings the driver. --build-arg PIP_ARGS="..." hands options to pip, such as an
# index with smaller builds for the CPU alone.
ARG BASE=python:{python}-slim
FROM ${{BASE}}
ARG PIP_ARGS=""
ENV PIP_NO_CACHE_DIR=1 PYTHONUNBUFFERED=1 HF_HOME=/tmp/hf HF_HUB_DISABLE_TELEMETRY=1 TOKENIZERS_PARALLELISM=false
WORKDIR /app
COPY requirements.txt ./
RUN pip install ${{PIP_ARGS}} -r requirements.txt
{copies}
COPY train.py ./
# Nothing is loaded by worker processes, so the small shared memory of a container is enough.
CMD ["python", "-X", "faulthandler", "train.py"]
"""
_IGNORE = "model\n**/__pycache__\n"


def write_container(folder: Path, script: str, about: str) -> None:
    """Write Dockerfile, script and requirements; data and model lie beside them."""
    import sys

    from holdfast.runs.export import requirements

    copies = "\n".join(f"COPY {name} ./{name}" for name in ("data", "base") if (folder / name).is_dir())
    filled = _DOCKERFILE.format(
        about="\n# ".join(textwrap.wrap(" ".join(about.split()), 110)),
        name="fine-tune",
        python=f"{sys.version_info.major}.{sys.version_info.minor}",
        copies=copies,
    )
    (folder / "Dockerfile").write_text(filled, encoding="utf-8")
    (folder / ".dockerignore").write_text(_IGNORE, encoding="utf-8")
    (folder / "train.py").write_text(script, encoding="utf-8")
    (folder / "requirements.txt").write_text(requirements(script), encoding="utf-8")
