"""How a run ended, as its caller, its shell or its launcher says."""

import pytest

from holdfast.core.observations import ExitStatus
from holdfast.logs.exits import parse_exit_status
from holdfast.logs.log_text import read_evidence


class TestEnd:
    @pytest.mark.parametrize(
        ("text", "status"),
        [
            ("0", ExitStatus(code=0)),
            ("1", ExitStatus(code=1)),
            ("3", ExitStatus(code=3)),
            ("-1", ExitStatus(code=-1)),
            ("255", ExitStatus(code=255)),
            ("-9", ExitStatus(signal="SIGKILL")),
            ("137", ExitStatus(signal="SIGKILL")),
            ("139", ExitStatus(signal="SIGSEGV")),
            ("134", ExitStatus(signal="SIGABRT")),
            ("-10", ExitStatus(signal="SIGBUS")),
            ("247", ExitStatus(signal="SIGKILL")),
            ("-6 (SIGABRT)", ExitStatus(signal="SIGABRT")),
            ("sigsegv", ExitStatus(signal="SIGSEGV")),
            ("signal 11", ExitStatus(signal="SIGSEGV")),
            ("exit code 137", ExitStatus(signal="SIGKILL")),
            ("0xC0000005", ExitStatus(signal="SIGSEGV")),
            ("3221225477", ExitStatus(signal="SIGSEGV")),
            ("-1073741819", ExitStatus(signal="SIGSEGV")),
            ("0xC0000409", ExitStatus(signal="SIGABRT")),
            ("3221225501", ExitStatus(signal="SIGILL")),
            ("OOMKilled", ExitStatus(signal="SIGKILL")),
            ("Abort trap: 6", ExitStatus(signal="SIGABRT")),
            ("hang", ExitStatus(is_hang=True)),
            ("timeout", ExitStatus(is_hang=True)),
            ("", None),
            ("no idea", None),
        ],
    )
    def test_every_form_of_an_exit_status_is_understood(self, text, status):
        assert parse_exit_status(text) == status

    @pytest.mark.parametrize(
        ("line", "signal"),
        [
            ("zsh: segmentation fault  python train.py", "SIGSEGV"),
            ("zsh: illegal hardware instruction  python train.py", "SIGILL"),
            ("[1]    24366 segmentation fault  python train.py", "SIGSEGV"),
            ("[1]  + 24366 killed     python train.py", "SIGKILL"),
            ("./run.sh: line 2:  1581 Abort trap: 6           python x.py", "SIGABRT"),
            ("./run.sh: line 2:  1581 Killed                  python x.py", "SIGKILL"),
            ("Segmentation fault (core dumped)", "SIGSEGV"),
            ("Aborted (core dumped)", "SIGABRT"),
            ("Abort trap: 6", "SIGABRT"),
            ("Killed: 9", "SIGKILL"),
            ("Killed", "SIGKILL"),
            ("Illegal instruction: 4", "SIGILL"),
            ("fish: Job 1, 'python train.py' terminated by signal SIGSEGV (Address boundary error)", "SIGSEGV"),
            ("Fatal Python error: Aborted", "SIGABRT"),
            (
                "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) local_rank: 0 (pid: 178)",
                "SIGKILL",
            ),
            ("  exitcode  : -9 (pid: 178)", "SIGKILL"),
            ("  traceback : Signal 9 (SIGKILL) received by PID 178", "SIGKILL"),
            ("torch.distributed.elastic.multiprocessing.api.SignalException: Process 12 got signal: 1", "SIGHUP"),
            ("subprocess.CalledProcessError: Command '['python']' died with <Signals.SIGKILL: 9>.", "SIGKILL"),
            ("CompletedProcess(args=['python'], returncode=-11)", "SIGSEGV"),
            ("[2026] [launch.py:321:sigkill_handler] ['python'] exits with return code = -9", "SIGKILL"),
            ("Process finished with exit code -1073741819 (0xC0000005)", "SIGSEGV"),
            ("Process finished with exit code 139 (interrupted by signal 11: SIGSEGV)", "SIGSEGV"),
            ("    Reason:       OOMKilled", "SIGKILL"),
            ("##[error]Process completed with exit code 137.", "SIGKILL"),
            ("Process 'PoolWorker-2' pid:81830 exited with 'signal 6 (SIGABRT)'", "SIGABRT"),
            ("[WARNING] Worker (pid:55773) was sent SIGSEGV!", "SIGSEGV"),
            ("[host:1] *** Process received signal ***\n[host:1] Signal: Segmentation fault (11)", "SIGSEGV"),
            ("Command terminated by signal 9", "SIGKILL"),
            ("Program terminated with signal SIGBUS, Bus error.", "SIGBUS"),
            ("srun: error: node7: task 0: Killed", "SIGKILL"),
        ],
    )
    def test_what_shells_and_launchers_say_of_a_signal(self, line, signal):
        assert read_evidence("starting\n" + line).exits[0].signal == signal

    @pytest.mark.parametrize(
        "line",
        [
            "the process was killed by its owner",
            "wifi signal 11 dBm",
            "Sending SIGKILL to worker 3",
            "exit code 1",
            "this may end with SIGSEGV",
            "RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.",
            "0 Killed, 3 alive",
            "OOMKilled: false",
            "There are some potential root causes. (1) The process is killed by SIGKILL (3) crashed due to SIGSEGV",
        ],
    )
    def test_output_without_information_on_the_end(self, line):
        assert not read_evidence("starting\n" + line).exits

    def test_callers_knowledge_takes_precedence(self):
        assert read_evidence("zsh: killed  python x.py", "SIGSEGV").exits[0].signal == "SIGSEGV"
        assert read_evidence("zsh: killed  python x.py", "0").ended_well
        assert read_evidence("  exitcode  : -9 (pid: 178)", "1").has_signal("SIGKILL")

    def test_a_launchers_own_kills_are_left_out(self):
        text = "failed (exitcode: -9) local_rank: 0\nfailed (exitcode: -15) local_rank: 1"
        assert read_evidence(text).exits[0].signal == "SIGKILL"
