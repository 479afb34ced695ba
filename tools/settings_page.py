"""Writes docs/settings.md, the page of every setting of `holdfast train`, from the request itself."""

from pathlib import Path

from holdfast.core.request import FIELDS
from holdfast.core.setting_values import allowed_words
from holdfast.core.text import option

PAGE = Path(__file__).parents[1] / "docs" / "settings.md"
_GROUPS = {"data": "The data", "learning": "What is learned", "machine": "How it is computed", "run": "The run"}


def page() -> str:
    """The whole page."""
    parts = [
        "# Settings of `holdfast train`\n",
        "Each is an option (`--batch-size 32`) and a key of a TOML file (`batch_size = 32`, for `--config`; tables are",
        "only for order). What is left out is found out, and printed with its reason. This page is made by",
        "`tools/settings_page.py`.",
    ]
    for group, title in _GROUPS.items():
        parts += [f"\n## {title}\n", "| setting | meaning | allowed | default |", "|---|---|---|---|"]
        parts += [_row(field) for field in FIELDS.values() if field.metadata["group"] == group]
    return "\n".join(parts) + "\n"


def _row(field: object) -> str:
    about, name, default = field.metadata, field.name, field.default
    names = [option(name), *("--" + other.replace("_", "-") for other in about["also"])]
    shown = "" if default in (None, (), "") else str(default).lower() if isinstance(default, bool) else str(default)
    names = list(dict.fromkeys(names)) if name != "data" else ["DATA"]
    return f"| {', '.join(f'`{one}`' for one in names)} | {about['text']} | {allowed_words(field)} | {shown} |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
