"""A path with a space or a letter outside ASCII is not understood.

What you see: "No such file or directory" for a path that is cut off at a space, OpenCV's "can't open/read file: check
file path/integrity" for a file that exists, or "Not found" from a native reader on Windows.
Why: a command line without quotes splits at spaces. Native libraries such as OpenCV and SentencePiece open files with
the code page of Windows, in which the letters of a UTF-8 path are others.
What we do: name the path. A folder whose name has only ASCII letters and no spaces works everywhere.
"""

import re

from holdfast.core.evidence import Evidence, Passage
from holdfast.core.plan import Remedy
from holdfast.hazards import Hazard, judged, proves

_NOT_FOUND = r"No such file or directory|can't open file|[Nn]ot found|cannot open|can't open/read|unrecognized arguments|does not exist"
_PATH = re.compile(r"['\"(: ](?P<path>(?:[A-Za-z]:)?[/\\][^'\"\n]{2,200}?)(?=['\"):]|$)")
_NATIVE = r"imread_|cv::findDecoder|OSError: Not found: \"|filesystem_utils|loadsave\.cpp"


def _native_reader_of_other_letters(evidence: Evidence) -> Passage | None:
    """A native reader that cannot open a path with letters outside ASCII."""
    for _, passage in evidence.log.search(_NATIVE):
        path = re.search(r"['\"]([^'\"]*[/\\][^'\"]*)['\"]", passage.text)
        if path and not path[1].isascii():
            # The image is None afterwards, and the error that follows speaks of something else.
            failed = next((error for error in evidence.errors if error.line >= passage.line), passage)
            return Passage(failed.source, failed.line, f"{failed.text}  [not opened: {path[1]}]")
    return None


def _cut_at_a_space(evidence: Evidence) -> Passage | None:
    """A missing path that appears elsewhere in the log with a space and more after it."""
    for _, error in evidence.log.search(_NOT_FOUND):
        for match in _PATH.finditer(error.text):
            longer = re.escape(match["path"]) + r" [^\s'\"/\\]+[/\\]"
            if whole := re.search(longer, evidence.log.joined):
                return Passage(error.source, error.line, f"{error.text}  [the whole path: {whole[0]}...]")
    return None


HAZARD = Hazard(
    slug="path-characters",
    title="a path with a space or a letter outside ASCII is not understood",
    kind="error",
    signs=(
        judged("suggests", _native_reader_of_other_letters),
        judged("proves", _cut_at_a_space),
        proves(
            "error", r"(?i)path[^\n]{0,60}(?:contains?|has|with)[^\n]{0,30}(?:non-ascii|spaces?|special characters)"
        ),
    ),
    remedies=(
        Remedy(
            "move the data and the program to a folder without spaces and with ASCII letters only",
            command="mv 'My Data' my_data",
        ),
        Remedy("put the path into quotes", command='python "$HOME/My Drive/train.py" --data "$HOME/My Drive/data"'),
    ),
    over=("program-missing",),
    sources=("hvoss-tech/AutoForge#30", "opencv/opencv#18305", "MouseLand/cellpose#1150", "deepfakes/faceswap#734"),
    matches=(
        "[ WARN:0@1.204] global loadsave.cpp:268 cv::findDecoder imread_('D:/Bilder/Größe/0001.png'): can't open/read file: check file path/integrity\nAttributeError: 'NoneType' object has no attribute 'shape'",
        "$ python /Users/jo/My Drive/exp/train.py\npython: can't open file '/Users/jo/My': [Errno 2] No such file or directory",
        "ValueError: the dataset path contains non-ASCII characters",
    ),
    near_misses=(
        "FileNotFoundError: [Errno 2] No such file or directory: '/data/train.csv'",
        "AttributeError: 'NoneType' object has no attribute 'shape'",
        "FileNotFoundError: [Errno 2] No such file or directory: '/données/train.csv'",
    ),
)
