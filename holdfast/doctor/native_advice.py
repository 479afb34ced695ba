"""What to do about each native finding: the honest fixes first, each with its cost.

Setting KMP_DUPLICATE_LIB_OK is never among them: it silences the abort and leaves the crash.
"""

from collections.abc import Sequence
from shlex import quote

from holdfast.core.facts import NativeConflict, release
from holdfast.core.plan import Remedy
from holdfast.machine.native.runtimes import Carried

_PROTOBUF_FIXED_IN = {
    "pyarrow": "22.0.0",
    "sentencepiece": "0.2.2",
    "array-record": "0.8.6",
    "tink": "1.16.1",
    "ydf": "0.16.1",
}
_ASKS_HOMEBREW = ("xgboost", "lightgbm")
_IMPORT_NAMES = {"faiss-cpu": "faiss", "scikit-learn": "sklearn", "xgboost-cpu": "xgboost"}
_OWN_PROCESS = "only if your code allows it; the one fix without a catch"


def openmp_remedies(
    system: str,
    pair: NativeConflict,
    all_pairs: Sequence[NativeConflict],
    carried: Sequence[Carried],
    environment: str = "",
) -> tuple[Remedy, ...]:
    """Ways out of a pair that may crash, the one with the least loss first; links only inside an environment."""
    first, second = pair.first, pair.second
    names = {first.partition(" ")[0], second.partition(" ")[0]}
    apart = Remedy(f"use {_other(names)} in a process of its own (spawn)", cost=_OWN_PROCESS)
    if system == "windows" and "faiss-cpu" in names:
        return (
            Remedy("take a faiss-cpu that uses Microsoft's runtime", command='pip install -U "faiss-cpu>=1.12"'),
            apart,
        )
    if system != "macos":
        return (apart, Remedy("remove one of the two runtimes", cost="its package must be able to use the other"))
    remedies = []
    if any(_is_other_order(pair, other) and other.outcome == "shared" for other in all_pairs):
        remedies.append(
            Remedy(
                f"import {_module(second)} before {_module(first)}, in every script and worker",
                cost="one import in the other order brings the second copy back",
            )
        )
    remedies.append(apart)
    older = _older_torch(pair, names)
    if older:
        remedies.append(older)
    if environment and _is_linkable(pair, carried):
        remedies.append(
            Remedy(
                f"let {_other(names)} use torch's copy through a link; `--unfix` takes it back",
                command=f"holdfast doctor --env {quote(environment)} --fix",
                cost="edits the environment; reinstalling the package undoes it",
            )
        )
    remedies.append(
        Remedy(
            "take all of them from one conda-forge environment, where they share one libomp",
            cost="pip wheels added later bring their copies back",
        )
    )
    remedies.append(
        Remedy(
            "run on one OpenMP thread",
            change={"threads": 1, "OMP_NUM_THREADS": "1"},
            command="export OMP_NUM_THREADS=1",
            cost="slower on the CPU, same on a GPU; OMP: Error #15 may still stop it",
        )
    )
    return tuple(remedies)


def protobuf_remedies(pair: NativeConflict) -> tuple[Remedy, ...]:
    """Ways out of the protobuf clash. The Python package `protobuf` takes no part in it."""
    names = (_name(pair.first), _name(pair.second))
    upgrades = [f'"{name}>={_PROTOBUF_FIXED_IN[name]}"' for name in names if name in _PROTOBUF_FIXED_IN]
    remedies = []
    if upgrades:
        remedies.append(
            Remedy("take a version that keeps its protobuf to itself", command=f"pip install -U {' '.join(upgrades)}")
        )
    if set(names) == {"tensorflow", "pyarrow"}:
        remedies.append(
            Remedy("or the older generation on both sides", command='pip install "tensorflow<2.20" "pyarrow<22"')
        )
    if "tensorflow" in names:
        remedies += [
            Remedy("keep transformers 4 from loading TensorFlow by itself", command="export USE_TF=0"),
            Remedy(
                "remove TensorFlow from an environment that trains with PyTorch", command="pip uninstall tensorflow"
            ),
        ]
    remedies.append(
        Remedy(f"use {names[0]} and {names[1]} in separate processes", cost="import order only picks hang or abort")
    )
    return tuple(remedies)


def missing_remedies(
    system: str, owner: str, helped_by: Sequence[str], clashes_with: Sequence[str]
) -> tuple[Remedy, ...]:
    """Ways to give a package the OpenMP runtime it asks for and does not bring."""
    remedies = [
        Remedy(f"import {_module(helper)} first, in every script and worker", cost=f"{_name(owner)} then uses its copy")
        for helper in helped_by
    ]
    if system == "macos":
        also = (
            f"with {', '.join(clashes_with)} two copies then load in some order and may crash" if clashes_with else ""
        )
        remedies.append(Remedy("install Homebrew's libomp", command="brew install libomp", cost=also))
    else:
        remedies.append(Remedy(f"install the OpenMP runtime that {owner} asks for"))
    return tuple(remedies)


def _is_linkable(pair: NativeConflict, carried: Sequence[Carried]) -> bool:
    """True when a link to torch's copy would leave one copy: both carry their own, and one is torch."""
    owners = {copy.owner for copy in carried if copy.used and not copy.link_to}
    return {pair.first, pair.second} <= owners and "torch" in (_name(pair.first), _name(pair.second))


def _older_torch(pair: NativeConflict, names: set[str]) -> Remedy | None:
    torch = next((side for side in (pair.first, pair.second) if _name(side) == "torch"), None)
    if torch is None or not names.intersection(_ASKS_HOMEBREW):
        return None
    if release(torch.partition(" ")[2]) < (2, 11):
        return None
    return Remedy(
        f"take a torch whose copy answers for Homebrew's, and import it before {_other(names)}",
        command='pip install "torch>=2.4,<2.11,!=2.8.0"',
        cost="an older torch; 2.8.0 is left out because it computes wrong results on MPS",
    )


def _is_other_order(pair: NativeConflict, other: NativeConflict) -> bool:
    same_case = other.when in ("", pair.when)
    return (other.runtime, other.first, other.second) == (pair.runtime, pair.second, pair.first) and same_case


def _other(names: set[str]) -> str:
    """The package to move, which is not torch."""
    return sorted(names - {"torch"} or names)[0]


def _name(owner: str) -> str:
    return owner.partition(" ")[0]


def _module(owner: str) -> str:
    """The name to import, which is often not the distribution's."""
    return _IMPORT_NAMES.get(_name(owner), _name(owner).replace("-", "_"))
