"""Every sentence about what the supervisor observed: activities, verdicts, waits, exits, and single observations."""

from holdfast.core import observations as ob
from holdfast.core.artifacts import to_plain
from holdfast.core.evidence import Diagnosis, Passage, Seen
from holdfast.core.observations import Verdict, WaitTarget
from holdfast.core.text import human_bytes, human_seconds, plural
from holdfast.runs.bug_wording import bug_reasons

_MOST_CHARACTERS, _MOST_RANKS, _MOST_PIDS = 240, 3, 6
_SHORT_WAIT_SECONDS = 5.0  # a wait that is not worth mentioning yet
_VERDICTS = {
    Verdict.MOVING: "is computing",
    Verdict.STARVED: "gets almost no CPU time",
    Verdict.SLEEPING: "sleeps",
    Verdict.WAIT_NET: "waits for the network",
    Verdict.WAIT_INPUT: "waits for input",
    Verdict.KERNEL: "waits in the kernel",
    Verdict.STOPPED: "is stopped",
    Verdict.TIMED: "waits for a limited time",
    Verdict.DEADLOCK: "deadlock",
    Verdict.CRASH_LOOP: "crash loop",
    Verdict.DEBUGGED: "is held by a debugger",
}
_STATES = {"starting": "has just begun", "progressing": "makes progress", "ended": "has ended"}
_TARGETS = {
    WaitTarget.NOTHING: "runs",
    WaitTarget.DEBUGGER: "is held by a debugger",
    WaitTarget.STOP_SIGNAL: "is stopped (SIGSTOP)",
    WaitTarget.FROZEN_CGROUP: "is frozen by its control group",
    WaitTarget.LOCK: "waits for a lock",
    WaitTarget.SHARED_LOCK: "waits for a lock shared between processes",
    WaitTarget.LOCK_WITH_TIMEOUT: "waits for a lock, with a timeout",
    WaitTarget.INTERPRETER_LOCK: "waits for the interpreter lock",
    WaitTarget.SLEEP: "sleeps",
    WaitTarget.TIMER: "waits for a timer",
    WaitTarget.SIGNAL: "waits for a signal",
    WaitTarget.OWN_THREAD: "waits for another of its threads",
    WaitTarget.CHILD: "waits for its child",
    WaitTarget.HIDDEN_CHILD: "waits for a child that cannot be seen",
    WaitTarget.PROCESS_END: "waits for a process to end",
}
_NAMED_TARGETS = {
    WaitTarget.OPEN: "waits to open {}",
    WaitTarget.OPEN_FIFO: "waits to open {}, a FIFO whose other end is not open",
    WaitTarget.FIFO: "waits for FIFO {}",
    WaitTarget.PIPE: "waits for an external pipe ({})",
    WaitTarget.TERMINAL: "waits for the terminal {}",
    WaitTarget.DEVICE: "waits for the device {}",
    WaitTarget.KERNEL_OBJECT: "waits for {}",
    WaitTarget.ADDRESS: "waits for {}",
    WaitTarget.CONNECTING: "connects to {}",
    WaitTarget.LISTENING: "waits for a connection at {}",
    WaitTarget.LOCAL_SOCKET: "waits for a local socket {}",
    WaitTarget.SOCKET: "waits for a socket ({})",
}
_PHASES = {  # what a run does; the first block are stages of the pipeline
    "store": "fetching files from the store",
    "detect": "reading the data",
    "model": "getting the model",
    "machine": "checking the machine",
    "look": "checking the machine",
    "plan": "planning",
    "prepare": "tokenizing the data",
    "prove": "testing a small run",
    "start": "starting",
    "import": "importing libraries",
    "load": "loading the model",
    "resume": "resuming from a checkpoint",
    "compile": "compiling the model",
    "begin epoch": "beginning an epoch",
    "first step": "first step",
    "step": "training",
    "evaluate": "evaluating",
    "save": "saving a checkpoint",
    "export": "writing the model",
    "download": "downloading",
    "tokenize": "tokenizing",
    "end": "ending",
}


def phase_text(phase: str) -> str:
    """What a run does in a phase or a stage: "loading the model"."""
    return _PHASES.get(phase, phase)


def exit_text(status: ob.ExitStatus | None) -> str:
    """How a process ended: "ended by signal SIGKILL", "ended with code 1", "hung"."""
    if status is None:
        return "ended"
    if status.is_hang:
        return "hung"
    return f"ended by signal {status.signal}" if status.signal else f"ended with code {status.code}"


def nan_text(step: int, last_finite_step: int | None) -> str:
    """Since when the weights are not finite."""
    good = f" (still finite at step {last_finite_step:,})" if last_finite_step else ""
    return f"the weights are NaN since about step {step:,}{good}"


# Verdicts and waits


def activity_text(activity: ob.Activity | None) -> str:
    """What the processes of a running attempt do, and when a wait of theirs will be given up; empty when unknown."""
    if activity is None:
        return ""
    text = verdict_text(activity.verdict)
    if activity.limit_seconds is None:
        return text
    if activity.outside:
        waited, limit = human_seconds(activity.waited_seconds), human_seconds(activity.limit_seconds)
        return f"{outside_text(activity.outside)} for {waited}; given up after {limit}"
    is_told = activity.verdict.silent_seconds is not None or activity.waited_seconds < _SHORT_WAIT_SECONDS
    since = "" if is_told else f" since {human_seconds(activity.waited_seconds)}"
    return f"{text}{since}; given up after {human_seconds(activity.limit_seconds)}"


def outside_text(outside: ob.OutsideWait) -> str:
    """What outside of the training is waited for: "waiting for child 4711 (sleep)"."""
    match outside.kind:
        case "child":
            pid, name = f" {outside.pid}" if outside.pid else "", f" ({outside.name})" if outside.name else ""
            return f"waiting for child{pid}{name}"
        case "server":
            return f"waiting for {outside.name or 'a server'} to answer"
        case "client":
            return f"waiting for a connection{f' at {outside.name}' if outside.name else ''}"
        case "file_lock":
            holder = f", held by process {outside.pid}" if outside.pid else ""
            return f"waiting for the lock on {outside.name or 'a file'}{holder}"
        case "disk":
            return f"waiting for a disk or file server{f' ({outside.name})' if outside.name else ''}"
    return "sleeping"


def verdict_text(verdict: ob.TreeVerdict) -> str:
    """What a tree of processes does."""
    if verdict.state:
        return _STATES[verdict.state]
    match verdict.verdict:
        case Verdict.CRASH_LOOP:
            last = f", {exit_text(verdict.child_exit)}" if verdict.child_exit else ""
            failed, seconds = verdict.failed_children, f"{verdict.window_seconds:.0f} s"
            return f"{failed} of its children ended in failure within {seconds}{last}"
        case Verdict.MOVING if verdict.cpu_share is not None:
            return f"is computing ({verdict.cpu_share:.1f} cores)"
        case Verdict.STARVED:
            return f"gets almost no CPU time: {verdict.given_share:.0%} of what it needs"
        case Verdict.STOPPED if not verdict.main and verdict.pids:
            return f"process {verdict.pids[0]} is stopped (SIGSTOP)"
        case Verdict.DEBUGGED if verdict.has_inner_debugger:
            return "has a debugger in it"
    if verdict.has_left_tree:
        return "may wait for a process that left the tree"
    text = rank_verdict_text(verdict.main) if verdict.main else _VERDICTS[verdict.verdict]
    silent = verdict.silent_seconds
    return text if silent is None else f"{text}, nothing received for {silent:.0f} s"


def rank_verdict_text(one: ob.RankVerdict) -> str:
    """What one training process does."""
    if one.cpu_share is not None:
        return f"is busy ({one.cpu_share:.0%} of a core)"
    if one.verdict is Verdict.DEADLOCK:
        return _deadlock(one)
    if one.wait is None:
        return _VERDICTS[one.verdict]
    if one.verdict is Verdict.MOVING:
        return "has started computing"
    if one.helper is None:
        return wait_text(one.wait)
    helper = one.helper
    whose = f"its thread {helper.tid}" if helper.pid == one.pid else f"process {helper.pid}"
    return f"{wait_text(one.wait)}, while {whose} ({helper.name}) {wait_text(helper.wait)}"


def _deadlock(one: ob.RankVerdict) -> str:
    if one.stuck is None:
        return "its processes wait for each other; nothing external can wake any of its threads"
    waiting = f"; process {one.pid} waits for it" if one.stuck.pid != one.pid else ""
    return f"process {one.stuck.pid} ({one.stuck.command}) waits for a lock that nobody can release{waiting}"


def wait_text(wait: ob.Wait) -> str:
    """What one thread waits for."""
    name, function = wait.name or "unknown", wait.function or "unknown"
    match wait.target:
        case WaitTarget.KERNEL:
            return f"waits in the kernel ({name})"
        case WaitTarget.UNKNOWN:
            return f"waits ({name})"
        case WaitTarget.SYSTEM_CALL:
            return f"waits in {name} ({function})"
        case WaitTarget.FILE:
            return f"waits in {function} on {name}"
        case WaitTarget.TIMEOUT:
            return "waits for a limited time" + (f" ({wait.name})" if wait.name else "")
        case WaitTarget.FILE_LOCK:
            holder = f", held by process {min(wait.wakers)}" if wait.wakers else ""
            return f"waits for the lock on {name}{holder}"
        case WaitTarget.PROCESSES:
            pids = sorted(wait.wakers)
            return f"waits for process{'es' * (len(pids) > 1)} {', '.join(map(str, pids[:_MOST_PIDS]))}"
    return _TARGETS.get(wait.target) or _NAMED_TARGETS[wait.target].format(wait.name).rstrip()


# Evidence, a line each


def proof_fields(seen: Seen) -> dict[str, object]:
    """What a conclusion rests on, for `--json` and the API: where it is from, and its text."""
    if isinstance(seen, Passage):
        return {"source": seen.source, "line": seen.line, "text": seen.text}
    source, line = ("exit", seen.line) if isinstance(seen, ob.ExitStatus) else ("sample", 0)
    return {"source": source, "line": line, "text": observation_text(seen)}


def diagnosis_fields(diagnosis: Diagnosis) -> dict[str, object]:
    """A diagnosis for `--json`, its proof as text."""
    plain = to_plain(diagnosis)
    assert isinstance(plain, dict)
    fields = {**plain, "because": [proof_fields(seen) for seen in diagnosis.because]}
    if diagnosis.bug:
        fields["bug"] = {**plain["bug"], "reasons": bug_reasons(diagnosis.bug)}
    return fields


def seen_text(seen: Seen, *, node: str = "") -> str:
    """A passage of a log, or an observation, as a line."""
    return seen.text.strip() if isinstance(seen, Passage) else observation_text(seen, node=node)


def observation_text(seen: ob.Observation, *, node: str = "") -> str:
    """One observation as a line."""
    match seen:
        case ob.ExitStatus():
            return "hang" if seen.is_hang else f"signal {seen.signal}" if seen.signal else f"code {seen.code}"
        case ob.TreeVerdict():
            return f"verdict: {verdict_text(seen)}"
        case ob.GivenUp():
            return f"given up: {given_up_text(seen)}" if seen.reason != "verdict" else "given up immediately"
        case ob.LastPhase():
            of = f" of {seen.steps}" if seen.steps else ""
            return f"phase {seen.phase}, step {seen.step}{of}"
        case ob.ProcessView():
            return _process_view(seen)
        case ob.MutexWait():
            return _mutex_wait(seen)
        case ob.ProcessExit():
            return _process_exit(seen, node)
        case ob.FailedExits():
            return f"{plural(seen.count, 'process')} failed in total"
        case ob.KilledExternally():
            return _killed_externally(seen, node)
        case ob.Blindness():
            return blindness_text(seen)
        case ob.Asked():
            return f"asked: {', '.join(question.replace('_', ' ') for question in seen.questions)}"
        case ob.OwnCode():
            return _own_code(seen)
        case ob.ProgramExit():
            return _program_exit(seen)
        case ob.RankStack():
            return _rank_stack(seen, node)
    return _resource_text(seen)


def _resource_text(seen: ob.Observation) -> str:
    match seen:
        case ob.OomKill(cgroup=""):
            return f"{plural(seen.kills, 'OOM kill')} counted in the whole system, and no cgroup shows whose"
        case ob.OomKill():
            limits = _limits(seen.limit_bytes, seen.peak_bytes)
            return f"{plural(seen.kills, 'OOM kill')} counted in cgroup {seen.cgroup}{limits}"
        case ob.OomKillerOff():
            limits = _limits(seen.limit_bytes, seen.peak_bytes)
            return f"cgroup {seen.cgroup} is out of memory and its OOM killer is switched off{limits}"
        case ob.NoOomKill():
            asked = [f"cgroup {group}" for group in seen.cgroups]
            asked += ["the whole system"] if seen.is_system_asked else []
            elsewhere = f"; {seen.other_kills} of other processes" if seen.other_kills else ""
            return f"no OOM kill counted{' in ' * bool(asked)}{' or '.join(asked)}{elsewhere}"
        case ob.KernelKill():
            return f"kernel log: {seen.text}"
        case ob.JetsamKill():
            resident = human_bytes(seen.resident_bytes)
            return f"macOS ended pid {seen.pid} ({seen.name or '?'}): {seen.reason}, resident {resident}"
        case ob.MemoryRoom():
            free, total = human_bytes(seen.lowest_free_bytes), human_bytes(seen.total_bytes)
            return f"at least {free} of {total} of memory stayed free"
        case ob.MemoryUse():
            growth = f", growing by {human_bytes(seen.growth_per_step)} a step since step {seen.since_step}"
            most = f"resident {human_bytes(seen.last_bytes)} in the last sample, peak {human_bytes(seen.peak_bytes)}"
            return most + (growth if seen.growth_per_step else "")
        case ob.DiskSpace():
            return _disk_space(seen)
        case ob.NonFiniteNumbers():
            return f"bad numbers at step {seen.step}: {seen.reason}" if seen.reason else f"bad numbers at {seen.step}"
        case ob.UnusableCheckpoint():
            state = "incomplete" if seen.is_incomplete else "damaged"
            return f"checkpoint {seen.path or '?'} is {state}: {seen.reason}"
        case ob.UnsavedCheckpoint():
            return f"a checkpoint could not be saved: the disk was full at step {seen.step}"
        case ob.FailedProbe():
            return f"the supervisor could not collect the {seen.probe}: {seen.error}"
    return str(getattr(seen, "fields", seen))


def given_up_text(seen: ob.GivenUp) -> str:
    """Why the attempt was judged to hang."""
    match seen.reason:
        case "verdict":
            return "more time would change nothing"
        case "step_timeout":
            busy = "busy, but " if seen.is_busy else ""
            return f"{busy}no progress for {seen.seconds:.0f} s, and the limit is {seen.limit_seconds:.0f} s"
        case "wait_too_long" | "outside_too_long":
            return f"{seen.seconds:.0f} s in phase {seen.phase}, where the limit is {seen.limit_seconds:.0f} s"
    stack = {
        "busy_stacks_unseen": "; its stacks cannot be read",
        "busy_stack_still": ", and its stack does not change",
        "busy_stack_moves": ", though its stack changes",
    }[seen.reason]
    return (
        f"busy in phase {seen.phase} for {seen.seconds:.0f} s without progress, where the limit is "
        f"{seen.limit_seconds:.0f} s{stack}"
    )


def blindness_text(seen: ob.Blindness) -> str:
    """What the watcher of this system cannot see."""
    hidden = ", ".join(_UNSEEN[name] for name in seen.unseen)
    return f"this system does not show {hidden}; a hang is noticed by time" if hidden else ""


_UNSEEN = {
    "threads": "single threads",
    "waits": "what a process waits for",
    "wait_targets_without_stacks": "what a thread waits for, except by its stack",
    "exits": "how other processes end",
    "descendants": "other processes than the one it started",
}


def _process_view(seen: ob.ProcessView) -> str:
    parts = [plural(seen.threads, "thread")]
    if seen.wait:
        call = seen.system_call
        if call == "futex":
            call += " with timeout" if seen.has_timeout else " without timeout"
        where = (f" in {call}" if call else "") + (f" called by {seen.caller}" if seen.caller else "")
        parts.append(wait_text(seen.wait) + where)
    if seen.forked_from is not None:
        threads = plural(seen.parent_threads, "thread")
        parts.append(f"forked without exec from pid {seen.forked_from}, which has {threads}")
    if seen.libraries:
        parts.append(f"has loaded {' '.join(seen.libraries)}")
    if seen.tracer_pid:
        parts.append(f"held by the debugger with pid {seen.tracer_pid}")
    if seen.frozen_cgroup:
        parts.append(f"frozen by cgroup {seen.frozen_cgroup}")
    return f"pid {seen.pid} {seen.command}: {', '.join(parts)}"


def _mutex_wait(seen: ob.MutexWait) -> str:
    who = f"pid {seen.pid} {seen.command}"
    match seen.how:
        case "own":
            return f"{who}: thread {seen.tid} waits for a mutex it holds itself"
        case "mutual":
            return f"{who}: threads {seen.tid} and {seen.owner_tid} each wait for a mutex that the other holds"
    whose = (
        "which is not in its process" if seen.parent_pid is None else f"a thread of its parent pid {seen.parent_pid}"
    )
    return f"{who}: thread {seen.tid} waits for a mutex owned by thread {seen.owner_tid}, {whose}: orphaned by fork"


def _process_exit(seen: ob.ProcessExit, node: str) -> str:
    status = exit_text(seen.status) if seen.status.signal or seen.status.code is not None else "ended"
    text = f"{_who(seen.rank, seen.pid, seen.name, node)} {status}"
    if not seen.is_first:
        return text
    where = (f", in phase {seen.phase}" if seen.phase else "") + (f" at step {seen.step}" if seen.step else "")
    return text + (", while other ranks were at work" if seen.status.code == 0 else ", before the other ranks") + where


def _killed_externally(seen: ob.KilledExternally, node: str) -> str:
    if seen.signal != "SIGKILL":
        return f"ended externally by {seen.signal}, which Holdfast did not send"
    if seen.victim == "root" or seen.pid is None:
        return f"killed externally by SIGKILL; {_sender(seen)}"
    whom = _who(seen.rank, seen.pid, seen.name, node)
    if seen.victim == "launcher":
        whom = f"the launcher of the ranks (pid {seen.pid})"
    return f"{whom} was killed externally by SIGKILL; {_sender(seen)}"


def _sender(seen: ob.KilledExternally) -> str:
    """Who sent it, as far as that is known."""
    note = f": {seen.sender_note}" if seen.sender_note else ""
    match seen.sender:
        case "slurm_time_limit":
            return f"the job reached its Slurm time limit{note}"
        case "slurm_preemption":
            return f"Slurm preempted the job{note}"
        case "slurm_cancel":
            return f"the Slurm job was cancelled{note}"
        case "":
            return "no OOM kill was counted, and who sent it is not known"
    return f"sent by {seen.sender}{note}"


def _who(rank: int | None, pid: int, name: str, node: str) -> str:
    if rank is None:
        return f"worker pid {pid} ({name})"
    return f"rank {rank}{f' on {node}' if node else ''} (pid {pid})"


def _own_code(seen: ob.OwnCode) -> str:
    place = place_text(seen.place)
    match seen.how:
        case "waits_for_own_lock":
            return f"waits for one of the program's own locks at {place}: {seen.place.source}"
        case "ended_itself":
            return f"ended itself at {place}: {seen.call}"
        case "crashed":
            return f"crashed at {place}"
    return f"is at {place}"


def place_text(place: ob.CodePlace) -> str:
    """A line of a program as one would look it up: `train.py:12 in save`."""
    return f"{place.file}:{place.line}" + (f" in {place.function}" if place.function else "")


def _program_exit(seen: ob.ProgramExit) -> str:
    text = "it exited without a message"
    if seen.message or seen.last_line:
        text = f"its message: {seen.message}" if seen.message else f"its last line: {seen.last_line}"
    crashed = {"exit_handler": "; then one of its exit handlers crashed", "process": "; then its process crashed"}
    return text + crashed.get(seen.crashed_after, "")


def _rank_stack(seen: ob.RankStack, node: str) -> str:
    who, place = _who(seen.rank, seen.pid, "", node), place_text(seen.place)
    if seen.collective:
        return f"{who} waits for the others in {seen.collective}, at {place}"
    calling = f", calling {seen.call}" if seen.call else ""
    return f"{who} {'holds up the others: it ' if seen.holds_up else ''}is at {place}{calling}"


def _disk_space(seen: ob.DiskSpace) -> str:
    if seen.is_out_of_inodes:
        return f"no new files can be created on {seen.folder}: all its inodes are used"
    output = ", where its own output goes" if seen.is_output else ""
    return f"free space on {seen.folder}: {human_bytes(seen.free_bytes)} of {human_bytes(seen.total_bytes)}{output}"


def _limits(limit_bytes: int | None, peak_bytes: int | None) -> str:
    limit = f", limit {human_bytes(limit_bytes)}" if limit_bytes is not None else ", no limit"
    return limit + (f", peak {human_bytes(peak_bytes)}" if peak_bytes else "")


def process_text(process: ob.LeftProcess) -> str:
    """A process that outlived its attempt and, if it could not be ended, why."""
    who = f"pid {process.pid}" + (f" ({process.name})" if process.name else "")
    match process.held_by:
        case "frozen_cgroup":
            return f"{who}, in the frozen control group {process.holder}; it will end when the group is thawed"
        case "debugger":
            return f"{who}, held by the debugger with pid {process.holder}; it will end when the debugger detaches"
        case "kernel":
            function = process.holder or "unknown function"
            return f"{who}, waiting in the kernel ({function}); it will end when that wait is over"
    return who


def short_text(text: str) -> str:
    """One line, not endless."""
    flat = " ".join(text.split())
    return flat if len(flat) <= _MOST_CHARACTERS else flat[:_MOST_CHARACTERS] + " ..."
