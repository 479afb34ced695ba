"""Something in the dataset cannot be sent to a worker process.

What you see: "Can't pickle local object ...", "cannot pickle 'Environment' object" and similar errors when the first
worker starts; the child then prints "EOFError: Ran out of input".
Why: with spawn (macOS, Windows) and forkserver (Linux since Python 3.14) the dataset, collate function and model are
pickled and sent to the worker. Lambdas, inner functions, open files, HDF5 or LMDB handles, locks and generators cannot
be pickled.
What we do: load data in the main process, where nothing is pickled.
"""

from holdfast.core.plan import Remedy
from holdfast.hazards import Hazard, proves, seen, suggests

_CANNOT_PICKLE = (
    r"(?i:\bcan.?t (?:pickle|serialize|get local object)|\bcannot (?:pickle|serialize)|can(?:'|no)t be pickled"
    r"|\bPicklingError|not picklable|pickling of .{1,60}not supported|no default __reduce__ due to non-trivial"
    r"|cannot be converted to a Python object for pickling)"
)
_STARTS_A_PROCESS = seen(
    "log",
    r"popen_(?:spawn|forkserver)|\bmultiprocess(?:ing)?[/\\.]|dataloader\.py|ForkingPickler|_MultiProcessingDataLoaderIter"
    r"|spawn_main|num_workers",
)
_IN_THE_CHILD = seen("log", r"spawn_main|from_parent|forkserver\.py|[/\\]spawn\.py")
# Pickling also fails elsewhere, as an ordinary bug: saving a model, copying an object, other pools.
_OTHER_USES = (
    seen(
        "frame", r"^(?:save|_save|_legacy_save|_rebuild\w*) \(.*serialization|^deepcopy \(|^_?reconstruct \(.*copy\.py"
    ),
    seen("frame", r"[/\\](?:joblib|loky|ray|cloudpickle|dask|streamlit|sklearn)[/\\]"),
)


HAZARD = Hazard(
    slug="dataloader-pickle",
    title="the dataset or collate function cannot be sent to worker processes",
    kind="error",
    signs=(
        proves("error", _CANNOT_PICKLE, also=(_STARTS_A_PROCESS,), unless=_OTHER_USES),
        suggests("error", _CANNOT_PICKLE, unless=_OTHER_USES),
        suggests("error", r"cannot serialize a \w+ object larger than 4 ?GiB|attribute lookup \S+ on \S+ failed"),
        suggests("error", r"Can't get attribute '[^']+' on <module '__(?:mp_)?main__'", also=(_IN_THE_CHILD,)),
        suggests("error", r"EOFError: Ran out of input|pickle data was truncated", also=(_IN_THE_CHILD,)),
        # A traceback truncated before its last line: the popen module's line that writes the pickle.
        suggests(
            "log",
            r"popen_spawn_posix\.py(?:\", line |:)4[67]\b|popen_forkserver\.py(?:\", line |:)4[7-9]\b"
            r"|popen_spawn_win32\.py(?:\", line |:)(?:6[0-9]|[89]\d)\b|reduction\.py(?:\", line |:)\d+,? in dump",
            unless=(seen("log", r"BrokenPipeError|bootstrapping phase|freeze_support|_share_filename_|_share_fd_"),),
        ),
    ),
    remedies=(
        Remedy("load data in the main process", change={"loader_workers": 0}, cost="slower input"),
        Remedy(
            "open files and database handles inside the worker, at the first __getitem__, and use module-level functions instead of lambdas",
            command="grep -n 'lambda\\|h5py.File\\|lmdb.open' your_dataset.py",
            cost="a small change to the dataset",
        ),
    ),
    sources=(
        "h5py/h5py#1512",
        "thuml/Time-Series-Library#354",
        "taoyang1122/MutualNet#5",
        "yandex-research/sparqling-queries#1",
    ),
    matches=(
        '  File "C:\\lib\\multiprocessing\\reduction.py", line 60, in dump\n    ForkingPickler(file, protocol).dump(obj)\n'
        "AttributeError: Can't pickle local object 'get_data.<locals>.<lambda>'",
        "TypeError: h5py objects cannot be pickled",
        '  File "/lib/python3.12/multiprocessing/popen_spawn_posix.py", line 47, in _launch\n    reduction.dump(process_obj, fp)\n'
        "TypeError: cannot pickle 'Environment' object",
        "TypeError: can't pickle _thread.lock objects",
        "_pickle.PicklingError: Can't pickle <function <lambda> at 0x7f>: attribute lookup <lambda> on __main__ failed",
        "AttributeError: Can't get local object 'main.<locals>.collate'",
        '  File "C:\\lib\\multiprocessing\\spawn.py", line 126, in _main\n    self = reduction.pickle.load(from_parent)\n'
        "EOFError: Ran out of input",
        '  File "/lib/python3.9/multiprocessing/popen_fork.py", line 19, in __init__\n    self._launch(process_obj)\n'
        '  File "/lib/python3.9/multiprocessing/popen_spawn_posix.py", line 47, in _launch\n',
        "OverflowError: cannot serialize a bytes object larger than 4 GiB",
        "  File \"/usr/lib/python3.11/multiprocessing/spawn.py\", line 132, in _main\n    self = reduction.pickle.load(from_parent)\nAttributeError: Can't get attribute 'MyDataset' on <module '__main__' (built-in)>",
    ),
    near_misses=(
        '  File "/lib/torch/serialization.py", line 850, in _save\n    pickler.dump(obj)\n'
        "AttributeError: Can't pickle local object 'Net.__init__.<locals>.<lambda>'",
        "  File \"/lib/python3.9/copy.py\", line 161, in deepcopy\n    rv = reductor(4)\nTypeError: cannot pickle '_thread.lock' object",
        '  File "/lib/torch/serialization.py", line 1046, in _legacy_load\nEOFError: Ran out of input',
        "_pickle.UnpicklingError: invalid load key, 'v'.",
    ),
)
