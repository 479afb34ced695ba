"""A weights or state file is truncated, damaged, or not a weights file at all.

What you see: "failed finding central directory", "HeaderTooLarge", "unexpected EOF", "invalid load key, 'v'", "Ran out
of input" when a model or checkpoint is loaded.
Why: a download or a save was interrupted (`torch.save` writes directly to the final name), git fetched the 130-byte
pointer of a large file, or an HTML page was saved under the file's name.
What we do: verify checksums before loading, fall back to the previous checkpoint, and download broken model files
again.
"""

from holdfast.core.facts import MachineFacts
from holdfast.core.plan import Plan, Remedy
from holdfast.hazards import Hazard, Invited, proves, seen, suggests


def invited_by(facts: MachineFacts, plan: Plan) -> Invited | None:
    """Say why this machine and plan invite the hazard; None when they do not."""
    halves = [model.name for model in facts.models if not model.complete]
    if halves:
        return Invited(f"the model cache holds an unfinished download: {', '.join(halves)}", "note")
    return None


_LOADING = seen(
    "log",
    r"torch[./\\]serialization|torch\.load\(|load_state_dict|load_checkpoint|safe_open|safetensors|from_pretrained|load_file\("
    r"|_legacy_load|pickle_module\.load|\.(?:ckpt|pth?|bin|safetensors|pkl)\b|magic_number|checkpoint",
)

HAZARD = Hazard(
    slug="corrupt-checkpoint",
    title="a checkpoint or weights file is damaged or incomplete",
    kind="error",
    invited_by=invited_by,
    over=("weights-only-load",),
    signs=(
        proves("log", r"failed finding central directory|PytorchStreamReader failed"),
        proves("log", r"not a ZIP archive|BadZipFile|File is not a zip file|Bad (?:CRC-32|magic number for)"),
        proves(
            "log", r"HeaderTooLarge|HeaderTooSmall|InvalidHeader\w*|MetadataIncompleteBuffer|InvalidOffset|JsonError"
        ),
        proves("log", r"(?:[Ee]rror while deserializing header|Error while deserializing)\b"),
        proves(
            "log",
            r"invalid load key|unpickling stack underflow|pickle data was truncated|could not find MARK|invalid opcode",
            unless=(seen("log", r"\.safetensors['\"]"),),  # a whole safetensors file, given to torch.load
        ),
        proves("log", r"unexpected EOF, expected \d+ more bytes|[Tt]he file might be corrupted"),
        proves(
            "log",
            r"Invalid magic number; corrupt file|storage has wrong size: expected|pickle exhausted before end of frame",
        ),
        proves("log", r"cloned a repository without having git-lfs|version https://git-lfs\.github\.com"),
        proves(
            "error",
            r"(?:hash|checksum|sha256)\w*[^\n]{0,30}(?:mismatch|does not match|not match)",
        ),
        proves("log", r"invalid hash value \(expected"),
        proves("log", r"It looks like the config file at [^\n]* is not a valid JSON file"),
        proves("log", r"truncated file: eof =|file signature not found|Unable to open file[^\n]*bad object header"),
        proves(
            "error",
            r"(?i)(?:checkpoint|weights?|model)(?: file)?\b[^\n]{0,60}\b(?:is|are|may be|might be|seems?|appears?)(?: to be)? (?:corrupt|truncated|incomplete|damaged)",
        ),
        # 118 is the "v" of a git-lfs pointer, 60 the "<" of a web page: no pickle starts with these bytes.
        proves("log", r"WeightsUnpickler error: Unsupported operand (?:118|60|10|32|123)\b"),
        suggests(
            "error",
            r"Ran out of input",
            also=(_LOADING,),
            unless=(seen("log", r"popen_spawn|multiprocessing[/\\]spawn|spawn_main"),),
        ),
        suggests("log", r"Unable to load weights from (?:pytorch|the) checkpoint file"),
        suggests(
            "log",
            r"model_proto->ParseFromArray|Protobuf parsing failed|error parsing message|could not parse ModelProto",
            unless=(seen("log", r"TypeError: not a string"),),
        ),
        suggests(
            "error",
            r"tarfile\.ReadError|ReadError: (?:file could not be opened|unexpected end of data|not a gzip)",
            also=(_LOADING,),
        ),
        suggests(
            "error", r"zlib\.error|Error -3 while decompressing|EOFError: Compressed file ended", also=(_LOADING,)
        ),
        suggests(
            "error",
            r"UnpicklingError|EOFError",
            also=(seen("log", r"torch[/\\]serialization\.py|torch\.load\("),),
            unless=(seen("log", r"[Ww]eights[ _]only"),),
        ),
        suggests(
            "frame",
            r"_open_zipfile_reader|_legacy_load|__init__ \(.*torch.serialization",
            unless=(seen("error", r"."),),
        ),
    ),
    remedies=(
        Remedy(
            "resume from the previous checkpoint",
            command="python train.py --resume_from_checkpoint out/checkpoint-500   # one whose trainer_state.json is whole",
            cost="the steps between the two checkpoints",
        ),
        Remedy(
            "download the model's files again",
            command="hf download MODEL --force-download",
            cost="the download",
        ),
        Remedy(
            "fetch the files that git left as pointers",
            command="git lfs install && git lfs pull",
            cost="the download",
        ),
    ),
    sources=(
        "deepseek-ai/DeepSeek-V3#557",
        "hhj1897/face_parsing#3",
        "svip-lab/PPGNet#2",
        "open-mmlab/mmagic#876",
        "pytorch/pytorch#150998",
    ),
    matches=(
        "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",
        "_pickle.UnpicklingError: invalid load key, 'v'.",
        "RuntimeError: unexpected EOF, expected 2097823 more bytes. The file might be corrupted.",
        "safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata, file not fully covered",
        '    magic_number = pickle_module.load(f, **pickle_load_args)\n  File "torch/serialization.py", line 1033, in _legacy_load\nEOFError: Ran out of input',
        'RuntimeError: invalid hash value (expected "b627a593", got "e3b0c44298fc1c14")',
        "OSError: You seem to have cloned a repository without having git-lfs installed.",
        "Please file an issue with the following: WeightsUnpickler error: Unsupported operand 118",
        "zipfile.BadZipFile: File is not a zip file",
        "safetensors_rust.SafetensorError: HeaderTooLarge",
        "RuntimeError: Invalid magic number; corrupt file?",
        "ValueError: sha256 mismatch for model.bin",
        "OSError: It looks like the config file at 'out/config.json' is not a valid JSON file.",
        "OSError: Unable to open file (truncated file: eof = 96, sblock->base_addr = 0, stored_eof = 2048)",
        "RuntimeError: the checkpoint file out/last.ckpt seems to be corrupt",
        "OSError: Unable to load weights from pytorch checkpoint file for 'out/pytorch_model.bin'",
        "RuntimeError: Internal: src/sentencepiece_processor.cc(1101) [model_proto->ParseFromArray(serialized.data(), serialized.size())]",
        "    tar = open_model('weights.pth')\ntarfile.ReadError: file could not be opened successfully",
        "    weights = torch.load('model.pth')\nzlib.error: Error -3 while decompressing data: invalid distance too far back",
        '  File "/venv/lib/python3.11/site-packages/torch/serialization.py", line 1033, in _legacy_load\n    magic_number = pickle_module.load(f)\n',
    ),
    near_misses=(
        "_pickle.UnpicklingError: Weights only load failed. WeightsUnpickler error: Unsupported global: GLOBAL numpy.core.multiarray._reconstruct",
        '  File "<string>", line 1, in <module>\n  File "C:\\Python\\lib\\multiprocessing\\spawn.py", line 105, in spawn_main\nEOFError: Ran out of input',
        "RuntimeError: Error(s) in loading state_dict for Net:",
        "RuntimeError: [enforce fail at inline_container.cc:298] . unexpected pos 322619584 vs 322619488",
    ),
)
