"""Which lines of a log are errors: exceptions behind any prefix, last words of native code, and what only mentions one."""

# ruff: noqa: E501 - logs stand here as their programs write them

import pytest

from holdfast.logs.log_text import read_evidence


def errors_of(text: str) -> list[str]:
    errors = read_evidence(text).errors
    return errors.joined.split("\n") if errors else []


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

    def test_traceback_source_is_not_an_error(self):
        text = (
            'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    raise ValueError("RuntimeError: not me")\n'
            '  File "b.py", line 2, in g\n    except KeyError: raise OSError("nor me")\n    ^^^^^^^^^^^^^\n'
            "ValueError: me\n"
        )
        assert errors_of(text) == ["ValueError: me"]

    def test_source_lines_in_notebooks_are_not_errors(self):
        text = (
            "/lib/x.py in f(self)\n   1670         if not ready:\n-> 1672             raise ImportError(\n"
            '   1673                 "ImportError: quoted"\n\nImportError: real\n'
            "╭──── Traceback (most recent call last) ────╮\n│ /lib/y.py:19 in g                         │\n"
            '│ ❱ 19 │   raise RuntimeError("RuntimeError: x") │\n╰───────────────────────────────╯\nMyOwn: real too\n'
        )
        assert errors_of(text) == ["ImportError: real", "MyOwn: real too"]

    def test_multi_line_message_is_read_completely(self):
        text = (
            "RuntimeError: Error(s) in loading state_dict for Net:\n\tMissing key(s): a\n\tsize mismatch for b\n"
            "  3%|▎ | 3/100 [00:01<00:02, 1.0it/s]\nwandb: Waiting for the process to finish\nordinary text\n"
        )
        assert len(errors_of(text)) == 3

    def test_message_with_empty_lines_continues_while_indented(self):
        text = "RuntimeError: \n        An attempt has been made\n\n        This probably means\n\nunrelated\n"
        assert [line.strip() for line in errors_of(text)] == [
            "RuntimeError:",
            "An attempt has been made",
            "This probably means",
        ]

    def test_chained_exceptions_are_in_order(self):
        text = (
            'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    x\nOSError: root\n\n'
            'The above exception was the direct cause of the following exception:\n\nTraceback (most recent call last):\n  File "b.py", line 1, in g\n    y\nValueError: second\n'
        )
        assert errors_of(text) == ["OSError: root", "ValueError: second"]

    def test_loader_worker_error_is_seen_with_the_callers(self):
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
    def test_mention_of_an_error_is_not_an_error(self, line):
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
        assert not evidence.exits
        assert not evidence.frames


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
def test_ignored_exception_is_not_an_error(log):
    assert not read_evidence(log).errors
    assert read_evidence(f"{log}\n\nsaved\nKeyError: 'x'").errors.joined == "KeyError: 'x'"
