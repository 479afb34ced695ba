"""Benchmarks are started by hand and seldom: what they import of the package must still be there."""

import ast
import importlib
from pathlib import Path

import pytest

PERF = Path(__file__).parents[2] / "perf"


@pytest.mark.parametrize("path", sorted(PERF.glob("*.py")), ids=lambda path: path.stem)
def test_what_a_benchmark_imports_is_there(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ("holdfast", "tests"):
            module = importlib.import_module(str(node.module))
            missing = [alias.name for alias in node.names if not hasattr(module, alias.name)]
            assert not missing, f"{node.module} has no {', '.join(missing)}"
