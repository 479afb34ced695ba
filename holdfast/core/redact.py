"""Removes secrets and names from text before it leaves the machine: tokens, passwords, users, homes, hosts, addresses.

Known values (those of variables named like "token" or "key") are replaced everywhere; other secrets are recognized by
their shape. In doubt the text is removed: a bundle that says too little can be sent again, but one that says too much
cannot be taken back.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

_SECRET_NAME = re.compile(r"(?i)TOKEN|KEY|SECRET|PASSW|PASSPHRASE|CREDENTIAL|AUTH|COOKIE|DSN|_PAT$|_PWD$|SIGNATURE")
_NOT_SECRET_NAME = re.compile(r"(?i)^TOKENIZERS_|KEYBOARD|KEYMAP|^SSH_AUTH_SOCK$|_TOKENS$")
_LEAST_SECRET, _LEAST_NAME = 6, 4
# Names that are ordinary words; replacing them would spoil the text and protect no one.
_COMMON_NAMES = {
    "root",
    "user",
    "users",
    "admin",
    "ubuntu",
    "runner",
    "jovyan",
    "train",
    "test",
    "home",
    "main",
    "localhost",
}

_SHAPES: tuple[tuple[str, str], ...] = (
    ("private key", r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"),
    ("token", r"\bhfk?_[A-Za-z0-9]{16,}|\bapi_org_[A-Za-z0-9]{16,}"),
    ("token", r"\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_\w{20,}|\bglpat-[\w-]{16,}"),
    ("token", r"\bsk-(?:[a-z]+-)*[A-Za-z0-9_-]{16,}|\bxox[abprs]-[\w-]{10,}|\bAIza[\w-]{30,}|\bya29\.[\w-]{20,}"),
    ("token", r"\bey[JK][\w-]{8,}\.[\w-]{8,}\.[\w-]*|\bpypi-[\w-]{20,}|\bnpm_[A-Za-z0-9]{20,}|\bdckr_pat_[\w-]{16,}"),
    ("token", r"(?i)(?<=bearer )[\w.~+/=-]{8,}|(?<=basic )[\w+/=]{12,}"),
    ("key", r"\b(?:AKIA|ASIA|AGPA|AIDA|AROA)[0-9A-Z]{12,}\b"),
    ("password", r"(?<=://)[^\s/@:\"']{0,200}:[^\s/@\"']{1,200}(?=@)"),
    ("password", r"(?<=://)[^\s/@:\"']{8,200}(?=@)"),
    ("token", r"(?i)(?<=[?&])(?:[\w-]*(?:token|sig|signature|key|secret|password|credential)[\w-]*)=[^\s&\"'<>]{4,}"),
    ("e-mail", r"\b[\w.+-]{1,64}@[\w-]{1,64}(?:\.[\w-]{1,32})*\.[A-Za-z]{2,12}\b"),
    ("address", r"\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b"),
    (
        "address",
        r"(?<![\w.=-])(?!127\.|0\.0\.0\.0)(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)(?![\w.-])",
    ),
)
# NAME=value, "name": "value", --name value: the name says that the value is a secret.
_ASSIGNED = re.compile(
    r"(?i)(?P<name>[\w.-]*(?:token|api[_-]?key|secret|passw(?:or)?d|passphrase|credentials?|access[_-]?key|wandb[_-]?key|private[_-]?key)"
    r"[\w-]*)(?P<middle>[\"']?\s{0,3}(?:[:=]|(?<=\w)\s(?=\S))\s{0,3}[\"']?)(?P<value>[^\s\"',;{}\[\]()<>]{4,})"
)
# "--name", "value": a command as a list of its words.
_GIVEN = re.compile(
    r"(?i)(?P<name>--?[\w-]*(?:token|key|secret|passw(?:or)?d|passphrase|credentials?)[\w-]*)"
    r"(?P<middle>[\"']\s*,\s*[\"'])(?P<value>(?!-)[^\"']+)"
)
_HARMLESS_NAME = re.compile(
    r"(?i)(?:pad|eos|bos|unk|sep|cls|mask|start|end|stop|image|special|added|next|last|first|new|per|num|max|min|total|each|of)[_-]?tokens?"
    r"|tokens(?:$|[_-])|tokens?[_-](?:id|ids|per|count|type|class|length|mask|seen|limit)|tokeniz|^tokens?$|non_?token|sub_?token"
)
_HARMLESS_VALUE = re.compile(r"(?i)^(?:true|false|none|null|yes|no|\*+|is|was|not|and|the|for|in|of|to|or|with|error)$")
_NUMBER = re.compile(r"^-?[\d.,]{1,12}%?$")  # of tokens, not one
_HOMES = re.compile(
    r"(?P<top>/(?:home|Users|homes|export/home|nfs/home|users)/|(?i:[A-Z]:\\+Users\\+))(?P<name>[^\s/\\:\"'<>|,;)\]}]+)"
)
_NO_ONE = {"Shared", "Public", "USER"}


def is_secret_name(name: str) -> bool:
    """Whether the value of a variable must be kept secret."""
    return bool(_SECRET_NAME.search(name)) and not _NOT_SECRET_NAME.search(name)


def is_secret(name: str, value: str) -> bool:
    """Whether a variable must not be written to disk: because of its name, or a password or key in its value."""
    if is_secret_name(name) or re.search(r"(?i)session", name):
        return True
    shapes = (shape for kind, shape in _SHAPES if kind in ("private key", "token", "key", "password"))
    return any(re.search(shape, value) for shape in shapes)


class Redactor:
    """Removes secrets and names from texts, and counts what it removed."""

    def __init__(
        self,
        variables: Mapping[str, str] | None = None,
        users: Iterable[str] = (),
        hosts: Iterable[str] = (),
        homes: Iterable[str] = (),
    ):
        values = {value for name, value in (variables or {}).items() if is_secret_name(name)}
        self.removed: Counter[str] = Counter()
        self._rules: list[_Rule] = [
            *_literal("secret", (value for value in values if len(value) >= _LEAST_SECRET)),
            *_literal("home folder", (home.rstrip("/\\") for home in homes if len(home) > 2), "~"),
            *_literal("host name", _names(hosts), "HOST", whole=True),
            *((kind, re.compile(pattern), _mark(kind)) for kind, pattern in _SHAPES),
            ("secret", _ASSIGNED, _without_value),
            ("secret", _GIVEN, _without_value),
            ("home folder", _HOMES, _without_name),
            *_literal("user name", _names(users), "USER", whole=True),
        ]

    def __call__(self, text: str) -> str:
        """The text without secrets and names."""
        for kind, pattern, new in self._rules:
            text = self._replaced(text, kind, pattern, new)
        return text

    def _replaced(self, text: str, kind: str, pattern: re.Pattern[str], new: "_New") -> str:
        def counted(match: re.Match[str]) -> str:
            instead = new if isinstance(new, str) else new(match)
            self.removed[kind] += instead != match[0]
            return instead

        return pattern.sub(counted, text)


_New = str | Callable[[re.Match[str]], str]
_Rule = tuple[str, re.Pattern[str], _New]


def _mark(kind: str) -> str:
    return f"<{kind} removed>"


def _without_value(match: re.Match[str]) -> str:
    name, value = match["name"], match["value"]
    if _HARMLESS_NAME.search(name) or _HARMLESS_VALUE.match(value) or value.startswith(("<", "removed")):
        return match[0]
    if "token" in name.lower() and _NUMBER.match(value):
        return match[0]
    if match["middle"].isspace() and not name.startswith("-"):
        return match[0]  # a sentence, such as "the token was not found"
    return f"{name}{match['middle']}{_mark('secret')}"


def _without_name(match: re.Match[str]) -> str:
    return match[0] if match["name"] in _NO_ONE else f"{match['top']}USER"


def _names(names: Iterable[str]) -> set[str]:
    return {name for name in names if len(name) >= _LEAST_NAME and name.lower() not in _COMMON_NAMES}


def _literal(kind: str, values: Iterable[str], replacement: str = "", *, whole: bool = False) -> "Iterable[_Rule]":
    for value in sorted(set(values), key=len, reverse=True):
        pattern = re.escape(value)
        if whole:
            pattern = rf"(?<![A-Za-z0-9]){pattern}(?![A-Za-z0-9])"
        yield kind, re.compile(pattern), replacement or _mark(kind)
