"""Benchmarks are started by hand and seldom: what they import of this project must still be there."""

import ast
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
PERF = PROJECT / "perf"


def source_of(module: str) -> Path | None:
    """The file of one of our own modules; a benchmark may import its neighbours by their bare names."""
    places = (PROJECT / module.replace(".", "/"), PERF / module)
    files = [file for place in places for file in (place.with_suffix(".py"), place / "__init__.py")]
    return next((file for file in files if file.is_file()), None)


def names_in(file: Path) -> set[str]:
    """What a module defines or imports at its top level, and the modules beside it if it is a package."""
    names = {path.stem for path in file.parent.iterdir()} if file.name == "__init__.py" else set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            names |= {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
    return names


@pytest.mark.parametrize("path", sorted(PERF.glob("*.py")), ids=lambda path: path.stem)
def test_benchmark_imports_exist(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ImportFrom) or not node.module:
            continue
        file = source_of(node.module)
        is_ours = node.module.split(".")[0] in ("holdfast", "tests", "perf")
        assert file or not is_ours, f"there is no {node.module}"
        if file:
            missing = {alias.name for alias in node.names} - names_in(file)
            assert not missing, f"{node.module} has no {', '.join(sorted(missing))}"
