"""Recognizes binary files by their first bytes, whatever their extension."""

import io
import zipfile

_MAGIC = (
    (b"PAR1", "parquet"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "excel"),  # the old .xls
    (b"\x89PNG", "a PNG picture"),
    (b"\xff\xd8\xff", "a JPEG picture"),
    (b"GIF8", "a GIF picture"),
    (b"%PDF", "a PDF document"),
    (b"\x7fELF", "a program"),
    (b"MZ\x90", "a Windows program"),
    (b"\xcf\xfa\xed\xfe", "a macOS program"),
    (b"SQLite format 3", "an SQLite database"),
    (b"\x89HDF", "an HDF5 file"),
    (b"ARROW1", "arrow"),
    (b"\xff\xff\xff\xff", "arrow"),  # the format of a stream, as `datasets` writes it
    (b"FEA1", "a Feather file"),
    (b"\x93NUMPY", "a NumPy array (.npy)"),
    (b"GGUF", "a GGUF model"),
    (b"\x28\xb5\x2f\xfd", "zstd-compressed data"),
    (b"BZh", "bzip2-compressed data"),
    (b"\xfd7zXZ", "xz-compressed data"),
    (b"7z\xbc\xaf", "a 7z archive"),
    (b"Rar!\x1a\x07", "a RAR archive"),
    (b"Obj\x01", "an Avro file"),
    (b"ORC", "an ORC file"),
)
_PICKLE = tuple(bytes((0x80, protocol)) for protocol in (2, 3, 4, 5))
_CONTROL = bytes(byte for byte in range(32) if byte not in b"\t\n\r\f\x1a\x1b\x00") + b"\x7f"
_CONTROL_SHARE = 0.02
_NUL_SHARE = 0.1


def name_of_binary(head: bytes) -> str:
    """The kind of a binary file: "parquet", "excel", "arrow", "npz", or a phrase for any other; empty for text."""
    if head[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
        return _name_of_zip(head)
    for magic, name in _MAGIC:
        # Some magic numbers are plain letters, which a text may start with too.
        if head.startswith(magic) and not (magic.isalnum() and looks_like_text(head)):
            return name
    if head.startswith(_PICKLE):
        return "a pickle"
    if head[257:262] == b"ustar":
        return "a tar archive"
    return "" if looks_like_text(head) else "binary data"


def looks_like_text(head: bytes) -> bool:
    """Say whether bytes may be text in some encoding."""
    if not head or head.startswith((b"\xff\xfe", b"\xfe\xff", b"\xef\xbb\xbf")) or utf16_by_zeros(head):
        return True
    if head.count(0) > _NUL_SHARE * len(head):
        return False
    return len(head) - len(head.translate(None, _CONTROL)) <= _CONTROL_SHARE * len(head)


def utf16_by_zeros(head: bytes) -> str:
    """The byte order of UTF-16 without a mark, known by zeros in every other byte; empty for anything else."""
    even, odd = head[0:4096:2], head[1:4096:2]
    if len(odd) < 4:
        return ""
    even_share, odd_share = even.count(0) / len(even), odd.count(0) / len(odd)
    if odd_share > 0.4 and even_share < 0.05:
        return "utf-16-le"
    if even_share > 0.4 and odd_share < 0.05:
        return "utf-16-be"
    return ""


def _name_of_zip(head: bytes) -> str:
    names = _first_names(head)
    if any(name.startswith("xl/") for name in names):
        return "excel"
    if any(name.startswith("word/") for name in names):
        return "a Word document"
    if names and all(name.endswith(".npy") for name in names):
        return "npz"
    if any(name.endswith("data.pkl") for name in names):
        return "a PyTorch checkpoint"
    return "a ZIP archive"


def _first_names(head: bytes) -> list[str]:
    """Names of the entries whose headers are in the head."""
    try:
        with zipfile.ZipFile(io.BytesIO(head)) as archive:
            return archive.namelist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError, OSError):
        pass  # a long file has its list of names at the end, beyond the head: walk the headers
    names, at = [], 0
    while (at := head.find(b"PK\x03\x04", at)) >= 0 and at + 30 <= len(head):
        length = int.from_bytes(head[at + 26 : at + 28], "little")
        names.append(head[at + 30 : at + 30 + length].decode("utf-8", "replace"))
        at += 30 + length
    return names
