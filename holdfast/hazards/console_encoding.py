"""The console's or the system's encoding cannot show a character that the program writes.

What you see: "UnicodeEncodeError: 'charmap' codec can't encode character '\\u258f'", mostly from a progress bar, an emoji
or a name in a log line; on Windows, or in a container or cron job without a locale.
Why: without PYTHONUTF8, Python uses the code page of Windows or the locale of the shell for the console and for files
that are opened without an encoding.
What we do: switch the program to UTF-8, which changes nothing else.
"""

from holdfast.core.plan import Remedy
from holdfast.hazards import Hazard, proves, suggests

HAZARD = Hazard(
    slug="console-encoding",
    title="the console or the locale cannot show a character that the program prints",
    kind="error",
    signs=(
        proves(
            "error",
            r"UnicodeEncodeError: '(?:charmap|ascii|latin-1|gbk|gb2312|big5|cp\d+|shift_jis|euc[-_]kr|iso8859[-_]\d+)' codec can't encode",
        ),
        suggests(
            "error",
            r"Python was built with ASCII|configured to use ASCII as encoding|locale\.Error: unsupported locale setting",
        ),
    ),
    remedies=(
        Remedy(
            "let Python write UTF-8 everywhere", change={"PYTHONUTF8": "1", "PYTHONIOENCODING": "utf-8"}, cost="none"
        ),
        Remedy("on Windows: switch the console to UTF-8", command="chcp 65001"),
        Remedy("in a container or cron job: set a locale", command="export LC_ALL=C.UTF-8"),
    ),
    sources=("tqdm/tqdm#1339", "georgian-io/LLM-Finetuning-Toolkit#174", "radis/radis#162", "WyattBlue/auto-editor#34"),
    matches=(
        '  File "C:\\Python312\\Lib\\encodings\\cp1252.py", line 19, in encode\n    return codecs.charmap_encode(input,self.errors,encoding_table)[0]\n'
        "UnicodeEncodeError: 'charmap' codec can't encode characters in position 0-3: character maps to <undefined>",
        "RuntimeError: Click will abort further execution because Python 3 was configured to use ASCII as encoding for the environment.",
    ),
    near_misses=(
        "UnicodeDecodeError: 'utf-8' codec can't decode byte 0xb2 in position 26: invalid start byte",
        "UnicodeEncodeError: 'utf-8' codec can't encode character '\\ud83d' in position 0: surrogates not allowed",
    ),
)
