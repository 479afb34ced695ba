"""What a script will be able to continue from after a failure, read from its source before it starts.

Only the script itself is read, not the modules it imports, so there may be no answer.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from holdfast.core.events import ResumeForeseen
from holdfast.core.records import CommandRequest

_OPTION = re.compile(
    r"--(resume([_-](from|training|path))?([_-](checkpoint|ckpt))?|(init|continue|restart)[_-]from"
    r"|load[_-](checkpoint|ckpt))"
)
_LIGHTNING = {"lightning", "pytorch_lightning"}
_TRAINERS = {"transformers", "trl", "sentence_transformers"}
_RESUME = "resume"  # the value that options such as nanoGPT's --init_from take


def foresee(request: CommandRequest) -> ResumeForeseen | None:
    """How the command's script can resume; None if its source does not show it."""
    if request.resume_args:
        return ResumeForeseen(how="resume_args", option=" ".join(request.resume_args))
    tree = _script(request)
    if tree is None:
        return None
    imports = set(_imports(tree))
    roots = {module.split(".")[0] for module, _ in imports}
    if any(module.split(".")[0] in _TRAINERS and name.endswith("Trainer") for module, name in imports):
        return ResumeForeseen(how="trainer")
    if roots & _LIGHTNING:
        return ResumeForeseen(how="lightning")
    attributes = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    if "holdfast.steps" in attributes or ("holdfast", "steps") in imports:
        is_alone = any(word.endswith(".py") for word in request.command[:2])  # a launcher's processes are not saved
        return ResumeForeseen(how="steps") if is_alone else None
    if "torch" not in roots or not any(name.endswith(".backward") for name in attributes):
        return None  # it trains elsewhere, or not at all
    option = _own_option(tree)
    if option:
        is_given = any(word.partition("=")[0] == option.partition("=")[0] for word in request.command)
        return None if is_given else ResumeForeseen(how="own_option", option=option)
    if any(name.endswith((".load", ".load_state_dict", ".load_state")) for name in attributes):
        return None  # it may find its checkpoint without an option
    return ResumeForeseen(how="none")


def _script(request: CommandRequest) -> ast.Module | None:
    for word in request.command:
        if word.endswith(".py"):
            try:
                return ast.parse((Path(request.cwd) / word).read_bytes())
            except (OSError, SyntaxError, ValueError):
                return None
    return None


def _imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Every imported module, with the name that is imported from it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((node.module, alias.name) for alias in node.names)


def _own_option(tree: ast.Module) -> str:
    """The script's option for resuming as one would type it; empty if it has none."""
    compared = {
        ast.unparse(node.left).split(".")[-1]
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare)
        and any(isinstance(right, ast.Constant) and right.value == _RESUME for right in node.comparators)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("add_argument"):
            given = {word.arg: ast.unparse(word.value) for word in node.keywords}
            names = [one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
            for name in names:
                if _OPTION.fullmatch(name):
                    return _as_typed(name, given.get("action", ""), compared)
    # Settings that are variables of the script, which `--name=value` overrides, as in nanoGPT.
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = f"--{node.targets[0].id}"
            if node.targets[0].id in compared and _OPTION.fullmatch(name) and _is_configured(tree):
                return f"{name}={_RESUME}"
    return ""


def _as_typed(name: str, action: str, compared: set[str]) -> str:
    if action in ("'store_true'", "argparse.BooleanOptionalAction", "BooleanOptionalAction"):
        return name
    return f"{name}={_RESUME if name.lstrip('-').replace('-', '_') in compared else 'CHECKPOINT'}"


def _is_configured(tree: ast.Module) -> bool:
    """Whether the script executes a file that can set its variables from the command line."""
    return any(
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "exec"
        for node in ast.walk(tree)
    )
