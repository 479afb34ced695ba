"""Reads every import of the package: nothing lower knows of anything higher; heavy libraries stay where they belong."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "holdfast"

MAY_IMPORT = {
    "core": set(),
    "logs": {"core"},
    "hazards": {"core"},
    "machine": {"core"},
    "data": {"core"},
    "models": {"core", "machine"},
    "doctor": {"core", "logs", "hazards", "machine"},
    "supervisor": {"core", "logs", "hazards"},
    "engine": {"core", "data"},
    "preload": set(),
    "pipeline": {"core", "hazards", "machine", "doctor", "data", "models"},
    "runs": {"core", "logs", "hazards", "machine", "data", "models", "pipeline", "doctor", "supervisor"},
    "selftest": {"core", "hazards", "machine", "doctor", "supervisor", "runs"},
    "integrations": {"core", "runs"},
    "cli": {"core", "logs", "doctor", "hazards", "data", "runs", "selftest", "service"},
    "service": {"core", "logs", "hazards", "data", "runs"},
}
HEAVY = {
    "torch": {"engine"},
    "transformers": {"engine"},
    "mlx": {"engine"},
    "mlx_lm": {"engine"},
    "django": {"service"},
    "celery": {"service"},
    "ninja": {"service"},
    "ray": {"integrations"},
}
# A child process of its own that asks torch, and imports it inside a function.
ASKS_TORCH = {"machine/device_trial.py"}


def imports_of(path: Path, top_only: bool = False) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = set()
    for node in tree.body if top_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the layer"
            found.add(node.module or "")
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way(path):
    parts = path.relative_to(PACKAGE).parts
    if len(parts) == 1:
        return
    layer = parts[0]
    for name in imports_of(path):
        top, _, rest = name.partition(".")
        if top == "holdfast" and rest:
            other = rest.split(".")[0]
            assert other in MAY_IMPORT[layer] | {layer, "__version__"}, f"{layer} may not import {other}"
        if top == "torch" and path.relative_to(PACKAGE).as_posix() in ASKS_TORCH:
            assert "torch" not in imports_of(path, top_only=True), f"{path}: torch at the top of the file"
            continue
        assert layer in HEAVY.get(top, {layer}), f"{layer} may not import {top}"


def test_core_uses_the_standard_library_and_msgspec_only():
    import sys

    for path in (PACKAGE / "core").rglob("*.py"):
        for name in imports_of(path):
            top = name.split(".")[0]
            assert top in ("holdfast", "msgspec") or top in sys.stdlib_module_names, f"{path.name} imports {top}"
