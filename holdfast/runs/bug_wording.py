"""What `explain` adds to an error: the user's own line with likely reasons, or what the installed package has."""

from collections.abc import Iterator, Mapping

from holdfast.core.evidence import BugKind, InstalledName, OrdinaryBug

# {value} is the wrong value as the error prints it, {near} a similar name that the log has.
_REASONS: Mapping[BugKind, tuple[str, str]] = {
    "missing_key": (
        "the data or the configuration has no {value}: print the keys that are there",
        "the key is spelled differently there, perhaps with a space or in capitals",
    ),
    "missing_attribute": (
        "the object is not of the class that the code expects: print type(...) there",
        "{value} is misspelled, or is only set by a method that has not run",
    ),
    "none_value": (
        "a function returned None: a lookup that found nothing, or a function without a return",
        "a file, image or optional setting was not there, and its None was used later",
    ),
    "undefined_name": (
        "{value} is misspelled, or its import is missing",
        "in a notebook: the cell that defines {value} has not run since the kernel started",
    ),
    "unassigned_name": (
        "the branch or loop that assigns {value} did not run: the condition was false or the loop was empty",
        "an assignment later in the function makes {value} local, although a global was meant",
    ),
    "index_range": (
        "the sequence is shorter than expected, perhaps empty: print its length",
        "the index starts at 1 instead of 0, or belongs to another sequence",
    ),
    "wrong_arguments": (
        "the call does not fit the signature: an argument is misspelled, missing or in the wrong position",
        "the call was written for another version of the function",
    ),
    "wrong_type": (
        "a value has an unexpected type: print type(...) there",
        "a value was read as text from a file, the command line or the environment",
    ),
    "shape": (
        "two layers or tensors disagree about a size: print the shapes right before this line",
        "the last batch is smaller, or the number of classes, tokens or channels is not what the code assumes",
    ),
    "device": (
        "the model or a tensor was not moved to the same device as the others: .to(device)",
        "a tensor is created inside forward() or the loss without device=...",
    ),
    "unpack": (
        "the function or dataset returns a different number of values than this line unpacks",
        "a single value was returned where a pair was expected",
    ),
    "conversion": (
        "a row has text where a number is expected, such as a header, a unit or an empty field",
        "the columns are not in the order that the code assumes",
    ),
    "missing_file": (
        "the path is relative and the program runs in another folder: print os.getcwd()",
        "the file was not downloaded, or its name differs in case or extension",
    ),
    "import": (
        "the file that defines {value} is not on the path: run the program from the project's folder",
        "{value} was renamed, or one of your own files has the same name as the package",
    ),
    "assertion": (
        "the program's own check failed: its condition is on this line",
        "the input differs from what the code was written for",
    ),
    "division": (
        "a count is zero: no batches, no examples or no positive labels",
        "an average is computed before anything was added",
    ),
    "syntax": (
        "a bracket, a quote or a colon is missing on this line or the one before",
        "the code is written for another version of Python",
    ),
    "recursion": (
        "a function calls itself endlessly, often a property or __getattr__ that reads itself",
        "a structure refers to itself",
    ),
    "interrupted": (
        "someone pressed Ctrl-C, or a notebook or job was stopped; this is where the program was at that moment",
        "if it had stopped responding: this line is what it was waiting for",
    ),
    "other": (
        "the code reached a state that this line does not allow; the message says which one",
        "an input differs from what the code was written for: print the values on this line",
    ),
}


def bug_reasons(bug: OrdinaryBug) -> tuple[str, ...]:
    """The two most likely reasons; a similar name in the log comes first."""
    reasons = tuple(reason.format(value=bug.value or "it") for reason in _REASONS[bug.kind])
    return (f"{bug.value} may be a misspelling of {bug.near}", reasons[0]) if bug.near else reasons


def bug_place(bug: OrdinaryBug) -> str:
    """The user's own line: its file, number and source."""
    if bug.place is None:
        return ""
    line = f":{bug.place.line}" if bug.place.line else ""
    source = f": {bug.place.source}" if bug.place.source else ""
    inside = f" (raised inside {bug.raised_in})" if bug.raised_in else ""
    return f"{bug.place.file}{line}{source}{inside}"


def installed_lines(found: InstalledName) -> Iterator[str]:
    """What the installed package has of a name, and which versions are asked for."""
    has = "has" if found.has_name else "does not have"
    near = f"; similar names there: {', '.join(found.near)}" if found.near and not found.has_name else ""
    yield f"{found.library} {found.version} {has} {found.name}{near}"
    if found.gone_since:
        yield f"a note in its files about {found.name} names version {found.gone_since}"
    for pin in found.pins:
        yield f"{pin.source} asks for {pin.requirement}" + ("" if pin.is_met else ", which is not what is installed")
