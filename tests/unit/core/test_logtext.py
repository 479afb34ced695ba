"""What is read from a log besides stacks: its lines, its errors, how it ended, versions, progress."""

# ruff: noqa: E501

import pytest

from holdfast.core.logtext import exit_words, read_evidence


def errors_of(text: str) -> list[str]:
    errors = read_evidence(text).errors
    return errors.joined.split("\n") if errors else []


class TestLines:
    def test_terminal_codes_and_control_characters_go(self):
        text = "\x1b[1;31mValueError\x1b[0m: no\x1b]8;;http://x\x07!\x00\x1b]8;;\x07"
        assert read_evidence(text).log.joined == "ValueError: no!"

    def test_of_a_redrawn_line_the_last_state_is_kept(self):
        text = "\r".join(f"{step}%|{'█' * step}| {step}/100 [00:01<00:02]" for step in range(100)) + "\r\ndone\r\n"
        assert read_evidence(text).log.joined.split("\n")[:2] == [f"99%|{'█' * 99}| 99/100 [00:01<00:02]", "done"]

    def test_an_error_between_two_states_of_a_bar_is_kept(self):
        text = "  1%| | 1/100 [00:01<00:02]\rRuntimeError: boom\r  2%| | 2/100 [00:01<00:02]"
        assert errors_of(text) == ["RuntimeError: boom"]

    def test_an_error_that_follows_a_bar_on_its_line_is_seen(self):
        evidence = read_evidence(
            " 12%|█ | 12/100 [00:01<00:02, 9.1it/s]Traceback (most recent call last):\nKeyError: 'x'"
        )
        assert evidence.errors.joined == "KeyError: 'x'"
        assert [passage.line for passage in evidence.log] == [1, 1, 2]

    def test_a_very_long_line_is_cut_in_pieces_of_the_same_number(self):
        evidence = read_evidence("first\n" + "x" * 4000 + "\nlast")
        assert [passage.line for passage in evidence.log] == [1, 2, 2, 2, 3]

    def test_a_phrase_is_not_lost_where_a_long_line_is_cut(self):
        for before in range(1200, 1600, 7):
            assert "CUDA out of memory" in read_evidence("x" * before + " CUDA out of memory " + "y" * 3000).log.joined

    def test_terminal_codes_that_lost_their_first_character_go(self):
        assert errors_of("[2m[36m(Worker pid=19, ip=10.0.0.1)[0m RuntimeError: boom") == ["RuntimeError: boom"]

    def test_lines_that_a_paste_glued_together_are_taken_apart(self):
        text = (
            "  0%|     | 0/2 [00:00<?, ?it/s]WARNING:x:closing" + " " * 90 + "ERROR:x:failed (exitcode: -9)" + " " * 70
        )
        evidence = read_evidence(text + 'Traceback (most recent call last):          File "a.py", line 3, in')
        assert evidence.errors.joined == "ERROR:x:failed (exitcode: -9)"
        assert evidence.frames.joined == "<module> (a.py)"
        assert evidence.exit.joined == "signal SIGKILL"

    def test_docker_json_lines_are_opened(self):
        text = '{"log":"RuntimeError: boom\\n","stream":"stderr","time":"2026-01-01T00:00:00Z"}'
        assert errors_of(text) == ["RuntimeError: boom"]


class TestErrors:
    @pytest.mark.parametrize(
        "prefix",
        [
            "[rank0]: ",
            "[1,0]<stderr>:",
            "0: ",
            "(RayTrainWorker pid=812, ip=10.0.0.4) ",
            "trainer-1  | ",
            "E   ",
            "E       ",
            "2026-06-04 15:59:12 ",
            "2026-06-04T15:59:12.1234567Z ",
            "Jun 04 15:59:12 host python[812]: ",
            "2026-06-04 15:59:12 ERROR trainer - ",
            "2026-06-04 15:59:12,123 - lib.pipeline - ERROR - Failed to load the model: ",
            "[2026-06-04 15:59:12,119: ERROR/MainProcess] ",
            "[2026-06-04 15:59:12,119: WARNING/ForkPoolWorker-1] ",
            "ERROR:root:",
            "2026-06-04 15:59:12.123 | ERROR    | __main__:main:12 - ",
            "ERROR    | ",
            "Uncaught exception: ",
            "> ",
        ],
    )
    def test_an_exception_is_seen_behind_any_prefix(self, prefix):
        assert errors_of(prefix + "RuntimeError: boom (1 of 2)") == ["RuntimeError: boom (1 of 2)"]

    @pytest.mark.parametrize(
        "line",
        [
            "KeyboardInterrupt",
            "MemoryError",
            "AssertionError",
            "torch.cuda.OutOfMemoryError: CUDA out of memory.",
            "torch._dynamo.exc.Unsupported: call_function",
            "subprocess.TimeoutExpired: Command 'x' timed out after 3 seconds",
            "billiard.exceptions.WorkerLostError: Worker exited prematurely: signal 11 (SIGSEGV) Job: 0.",
            "queue.Empty",
            "_queue.Empty",
            "socket.timeout: timed out",
            "pyarrow.lib.ArrowInvalid: JSON parse error",
            "concurrent.futures.process.BrokenProcessPool: A process in the process pool was terminated abruptly",
            "SystemExit: 2",
            "KeyError: 0",
            "Exception: boom",
        ],
    )
    def test_types_of_every_kind_are_known_without_a_traceback(self, line):
        assert errors_of("starting\n" + line) == [line]

    @pytest.mark.parametrize(
        "last", ["my.own.Oops: it broke", "StopIteration", "UserWarning: treated as an error", "Http404"]
    )
    def test_whatever_ends_a_traceback_is_its_exception(self, last):
        text = 'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n    run()\n' + last
        assert errors_of(text) == [last]

    def test_source_in_a_traceback_is_no_error(self):
        text = (
            'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    raise ValueError("RuntimeError: not me")\n'
            '  File "b.py", line 2, in g\n    except KeyError: raise OSError("nor me")\n    ^^^^^^^^^^^^^\n'
            "ValueError: me\n"
        )
        assert errors_of(text) == ["ValueError: me"]

    def test_source_in_a_notebook_and_in_a_box_is_no_error(self):
        text = (
            "/lib/x.py in f(self)\n   1670         if not ready:\n-> 1672             raise ImportError(\n"
            '   1673                 "ImportError: quoted"\n\nImportError: real\n'
            "╭──── Traceback (most recent call last) ────╮\n│ /lib/y.py:19 in g                         │\n"
            '│ ❱ 19 │   raise RuntimeError("RuntimeError: x") │\n╰───────────────────────────────╯\nMyOwn: real too\n'
        )
        assert errors_of(text) == ["ImportError: real", "MyOwn: real too"]

    def test_a_message_goes_on_over_lines_until_something_else_begins(self):
        text = (
            "RuntimeError: Error(s) in loading state_dict for Net:\n\tMissing key(s): a\n\tsize mismatch for b\n"
            "  3%|▎ | 3/100 [00:01<00:02, 1.0it/s]\nwandb: Waiting for the process to finish\nordinary text\n"
        )
        assert len(errors_of(text)) == 3

    def test_a_message_with_empty_lines_goes_on_while_it_is_indented(self):
        text = "RuntimeError: \n        An attempt has been made\n\n        This probably means\n\nunrelated\n"
        assert [line.strip() for line in errors_of(text)] == [
            "RuntimeError:",
            "An attempt has been made",
            "This probably means",
        ]

    def test_chained_exceptions_stand_in_order(self):
        text = (
            'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    x\nOSError: root\n\n'
            'The above exception was the direct cause of the following exception:\n\nTraceback (most recent call last):\n  File "b.py", line 1, in g\n    y\nValueError: second\n'
        )
        assert errors_of(text) == ["OSError: root", "ValueError: second"]

    def test_a_loader_workers_own_error_is_seen_beside_the_callers(self):
        text = (
            'Traceback (most recent call last):\n  File "train.py", line 9, in <module>\n    next(it)\n'
            "RuntimeError: Caught IndexError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
            '  File "worker.py", line 308, in _worker_loop\n    data = fetcher.fetch(index)\nIndexError: list index out of range\n'
        )
        assert errors_of(text) == [
            "RuntimeError: Caught IndexError in DataLoader worker process 0.",
            "IndexError: list index out of range",
        ]

    def test_an_exception_group(self):
        text = (
            "  + Exception Group Traceback (most recent call last):\n"
            '  |   File "a.py", line 1, in f\n  |     x\n  | ExceptionGroup: two (2 sub-exceptions)\n'
            "  +-+---------------- 1 ----------------\n    | OSError: first\n    +---------------- 2 ----------------\n    | ValueError: second\n"
        )
        assert [error.partition(":")[0] for error in errors_of(text)] == ["ExceptionGroup", "OSError", "ValueError"]

    def test_a_stack_after_a_message_is_not_part_of_it(self):
        assert errors_of("RuntimeError: stuck\npoll (libc.so.6)\nselect (selectors.py:415)") == ["RuntimeError: stuck"]

    def test_ranks_that_write_at_once_do_not_mix_their_messages(self):
        text = "[rank0]: RuntimeError: one\n[rank1]: loading\n[rank0]:   more of one\n[rank1]: still loading"
        assert [line.strip() for line in errors_of(text)] == ["RuntimeError: one", "more of one"]

    @pytest.mark.parametrize(
        "line",
        [
            "Fatal Python error: Segmentation fault",
            "terminate called after throwing an instance of 'c10::Error'",
            "libc++abi: terminating due to uncaught exception of type std::__1::system_error: mutex lock failed",
            "OMP: Error #15: Initializing libomp.dylib, but found libomp.dylib already initialized.",
            "-[MTLBuffer x]:213: failed assertion `commit an already committed command buffer'",
            "x.cu:106: kernel: block: [0,0,0], thread: [7,0,0] Assertion `t >= 0 && t < n_classes` failed.",
            "python: symbol lookup error: /lib/x.so: undefined symbol: foo",
            "dyld[123]: Library not loaded: @rpath/libomp.dylib",
            "double free or corruption (!prev)",
            "munmap_chunk(): invalid pointer",
            "/tmp/x/cuda_utils.c:5:10: fatal error: Python.h: No such file or directory",
            "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=1.0",
            "[ 89075.584285] Out of memory: Killed process 116013 (python)".replace("[ ", "["),
            "[E ProcessGroupNCCL.cpp:475] [Rank 2] Watchdog caught collective operation timeout",
            "[E1024 05:12:31.123456789 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught",
            "thread '<unnamed>' panicked at 'index out of bounds', src/lib.rs:9",
            "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).",
            "zsh: killed     python train.py",
            "[1]    24366 abort      python train.py",
            "THCudaCheck FAIL file=x.cu line=66 error=2 : out of memory",
            "Illegal instruction: 4",
            "Bus error: 10",
            "Killed: 9",
            "E1119 08:26:02.715000 28705 site-packages/torch/distributed/elastic/api.py:882] failed (exitcode: -11)",
            "ray.exceptions.RayTaskError(RuntimeError): ray::TrainTrainable.train() (pid=1876)",
        ],
    )
    def test_the_last_words_of_native_code_are_errors(self, line):
        assert len(errors_of("starting\n" + line)) == 1

    @pytest.mark.parametrize(
        "line",
        [
            "/lib/x.py:33: UserWarning: RuntimeError: will be raised in the next version",
            "FutureWarning: in a later version a ValueError: bad will be raised",
            "2026-06-04 15:59:12 WARNING x.py: RuntimeError: failed once, falling back",
            "INFO - retrying after ConnectionError: reset",
            "WARNING  | RuntimeError: failed once",
            "If you see RuntimeError: CUDA out of memory, use a smaller batch",
            "This may cause a segmentation fault",
            "***** Running training *****",
            "MeanSquaredError: 0.123",
            "Test Error: 12.5%",
            "train_error: 0.25",
            "Error rate: 0.25",
            "E external/local_xla/xla/stream_executor/cuda/cuda_dnn.cc:9261] Unable to register cuDNN factory",
            "W tensorflow/x.cc:64] Could not load dynamic library 'libnvinfer.so.7': cannot open shared object file",
            "2360 found, 0 missing, 470 empty, 0 corrupted: 100%|",
            "ERROR: pip's dependency resolver does not currently take into account all the packages that are installed.",
            "node08:27106:27302 [0] NCCL INFO include/shm.h:41 -> 2",
            "Sending process 123 closing signal SIGTERM",
            'parser.add_argument("--on-error")',
        ],
    )
    def test_what_only_mentions_an_error_is_none(self, line):
        assert errors_of("starting\n" + line + "\ngoing on") == []

    def test_a_healthy_log_has_no_errors(self):
        evidence = read_evidence(
            "Package           Version\n----------------- --------------\nexceptiongroup    1.2.0\ntorch             2.8.0\n"
            "[INFO|trainer.py:2409] 2026-01-01 00:00:00,000 >> ***** Running training *****\n  Num examples = 9,988\n"
            "{'loss': 0.69, 'grad_norm': 1.2, 'learning_rate': 2e-05, 'epoch': 0.1}\n"
            "100%|██████████| 312/312 [01:00<00:00,  5.2it/s]\nError analysis written to out/errors.csv\n"
            "Epoch 1: test error 0.12, 0 errors, 3 killed zombies in the game\nTraining finished. signal-to-noise 11\n"
        )
        assert not evidence.errors
        assert not evidence.exit
        assert not evidence.frames


class TestEnd:
    @pytest.mark.parametrize(
        ("status", "words"),
        [
            ("0", "code 0"),
            ("1", "code 1"),
            ("3", "code 3"),
            ("-1", "code -1"),
            ("255", "code 255"),
            ("-9", "signal SIGKILL"),
            ("137", "signal SIGKILL"),
            ("139", "signal SIGSEGV"),
            ("134", "signal SIGABRT"),
            ("-10", "signal SIGBUS"),
            ("247", "signal SIGKILL"),
            ("-6 (SIGABRT)", "signal SIGABRT"),
            ("sigsegv", "signal SIGSEGV"),
            ("signal 11", "signal SIGSEGV"),
            ("exit code 137", "signal SIGKILL"),
            ("0xC0000005", "signal SIGSEGV"),
            ("3221225477", "signal SIGSEGV"),
            ("-1073741819", "signal SIGSEGV"),
            ("0xC0000409", "signal SIGABRT"),
            ("3221225501", "signal SIGILL"),
            ("OOMKilled", "signal SIGKILL"),
            ("Abort trap: 6", "signal SIGABRT"),
            ("hang", "hang"),
            ("timeout", "hang"),
            ("", ""),
            ("no idea", ""),
        ],
    )
    def test_every_form_of_an_exit_status_gets_the_same_words(self, status, words):
        assert exit_words(status) == words

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
        assert read_evidence("starting\n" + line).exit.joined == f"signal {signal}"

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
    def test_words_that_say_nothing_of_the_runs_end(self, line):
        assert not read_evidence("starting\n" + line).exit

    def test_what_the_caller_knows_comes_first(self):
        assert read_evidence("zsh: killed  python x.py", "SIGSEGV").exit.joined == "signal SIGSEGV"
        assert read_evidence("zsh: killed  python x.py", "0").ended_well
        assert read_evidence("  exitcode  : -9 (pid: 178)", "1").exit.joined == "code 1\nsignal SIGKILL"

    def test_a_launchers_own_kills_are_left_out(self):
        text = "failed (exitcode: -9) local_rank: 0\nfailed (exitcode: -15) local_rank: 1"
        assert read_evidence(text).exit.joined == "signal SIGKILL"


class TestVersions:
    @pytest.mark.parametrize(
        ("text", "banner"),
        [
            ("torch 2.8.0", "torch 2.8.0"),
            ("PyTorch version: 2.1.0+cu118", "torch 2.1.0+cu118"),
            ("PyTorch version (GPU?): 2.0.1+cu118 (True)", "torch 2.0.1+cu118"),
            ("transformers==4.57.0", "transformers 4.57.0"),
            ("[pip3] numpy==1.26.4", "numpy 1.26.4"),
            ("[conda] numpy                     1.26.4          py311h24aa872_0", "numpy 1.26.4"),
            ("- `transformers` version: 4.30.0", "transformers 4.30.0"),
            ("- Huggingface_hub version: 0.23.0", "huggingface-hub 0.23.0"),
            ("torch                    2.13.0+cpu", "torch 2.13.0+cpu"),
            ("faiss-cpu                 1.6.1            py27h6bb024c_0    pytorch", "faiss-cpu 1.6.1"),
            ("Python 3.11.7", "python 3.11.7"),
            ("Python 3.6.8 (v3.6.8:3c6b436a57, Dec 24 2018, 02:04:31)", "python 3.6.8"),
            ("Python version: 3.10.12 (main, Nov 20 2023) [GCC 11.4.0]", "python 3.10.12"),
            ("macOS 14.4", "macos 14.4"),
            ("Platform: macOS-14.4-arm64-arm-64bit", "macos 14.4"),
            ("OS Version:            Mac OS X 10.9 (13A603)", "macos 10.9"),
            ("torch.__version__ '2.2.2+cpu'", "torch 2.2.2+cpu"),
            (">>> torch.__version__\n'2.5.1'", "torch 2.5.1"),
            ("YOLOv5 v4.0-14-gb75c432 torch 1.7.1 CPU", "torch 1.7.1"),
            ("Ultralytics YOLOv8.0.20 Python-3.10.6 torch-1.13.1+cu116 CUDA:0", "torch 1.13.1+cu116"),
            ("| NVIDIA-SMI 535.54  Driver Version: 535.54  CUDA Version: 12.2 |", "cuda 12.2"),
            ('  File "/opt/lib/python3.11/site-packages/x.py", line 3, in f', "python 3.11"),
            ("Successfully installed torch-2.1.0 numpy-1.26.4", "numpy 1.26.4"),
        ],
    )
    def test_versions_are_read_from_banners_lists_and_paths(self, text, banner):
        assert banner in read_evidence(text).versions.joined.split("\n")

    @pytest.mark.parametrize(
        "line",
        [
            "In PyTorch 2.6, we changed the default value",
            "requires torch>=2.1",
            "requires torch==2.0.1, which is not installed",
            "modules must be compiled with NumPy 2.0.",
            "accuracy      0.95",
            "will be removed in version 4.45 of Transformers",
        ],
    )
    def test_versions_that_are_only_spoken_of_are_left_out(self, line):
        assert not read_evidence(line).versions


class TestProgress:
    @pytest.mark.parametrize(
        ("line", "text", "done", "total"),
        [
            ("Epoch 1:  45%|████▌     | 45/100 [00:12<00:15,  3.61it/s]", "Epoch 1", 45, 100),
            ("  0%|          | 0/6931 [00:01<?, ?it/s]", "", 0, 6931),
            (
                "Downloading model.safetensors: 100%|███| 1.34G/1.34G [00:12<00:00, 112MB/s]",
                "Downloading model.safetensors",
                1.34e9,
                1.34e9,
            ),
            ("45/100 [=======>......] - ETA: 3s", "", 45, 100),
            ("Training ━━━━━━━╸━━━━ 45/100 0:00:12", "Training", 45, 100),
        ],
    )
    def test_bars_are_read(self, line, text, done, total):
        (bar,) = read_evidence("x\n" + line).progress
        assert (bar.text, bar.done, bar.total, bar.line) == (text, done, total, 2)

    def test_the_last_state_of_each_bar_is_kept_and_the_last_drawn_is_last(self):
        evidence = read_evidence(
            "a: 10%|# | 1/10 [00:01<00:02]\nb: 50%|# | 1/2 [00:01<00:02]\na: 100%|##| 10/10 [00:01<00:00]"
        )
        assert [(bar.text, bar.fraction) for bar in evidence.progress] == [("b", 0.5), ("a", 1.0)]


@pytest.mark.parametrize(
    "log",
    [
        'Exception ignored in: <function X.__del__ at 0x7f>\nTraceback (most recent call last):\n  File "a.py", line 3, in '
        "__del__\nAttributeError: 'X' object has no attribute 'y'",
        "Exception ignored in: <_io.TextIOWrapper name='<stdout>'>\nBrokenPipeError: [Errno 32] Broken pipe\nof two lines",
        'Exception ignored on threading shutdown:\nTraceback (most recent call last):\n  File "a.py", line 3, in f\nOSError',
        "Exception AttributeError: \"'NoneType' object\" in <bound method X.__del__> ignored",
    ],
)
def test_an_exception_that_python_ignored_is_no_error(log):
    assert not read_evidence(log).errors
    assert read_evidence(f"{log}\n\nsaved\nKeyError: 'x'").errors.joined == "KeyError: 'x'"
