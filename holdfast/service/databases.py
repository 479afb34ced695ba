"""Reads the database's address: a URL for PostgreSQL, nothing for the embedded SQLite."""

from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from holdfast.core.errors import RequestError

# 4 processes that claim 400 jobs: the defaults gave 23 "database is locked"; these gave none and were 5 times as fast.
_PRAGMAS = "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA busy_timeout=20000; PRAGMA foreign_keys=ON;"


def database_settings(url: str, embedded: Path) -> dict[str, Any]:
    """What Django needs to know of the database."""
    if not url:
        return {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": str(embedded),
            "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 20, "init_command": _PRAGMAS},
        }
    parts = urlsplit(url)
    if parts.scheme not in ("postgres", "postgresql") or not parts.path.strip("/"):
        raise RequestError(
            "HOLDFAST_DATABASE_URL cannot be used",
            seen=f"it begins with {parts.scheme or 'no scheme'}://",
            try_next=("HOLDFAST_DATABASE_URL=postgresql://USER:PASSWORD@HOST:5432/NAME",),
        )
    # No CONN_MAX_AGE: under ASGI each request has a thread of its own, whose connection nobody would use again.
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(parts.path.strip("/")),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname or "",
        "PORT": str(parts.port or ""),
        "OPTIONS": {"connect_timeout": 5, **dict(parse_qsl(parts.query))},
    }
