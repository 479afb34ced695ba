"""Each kind of stack report, written as the tool writes it."""

# ruff: noqa: E501 - reports stand here as their tools write them

import json

import pytest

from holdfast.core.evidence import Stack
from holdfast.logs.log_text import read_evidence


def stacks_of(text: str) -> tuple[Stack, ...]:
    return read_evidence(text).stacks


def functions(stack: Stack) -> list[str]:
    return [frame.function for frame in stack.frames]


TRACEBACK = """\
Traceback (most recent call last):
  File "/home/ann/train.py", line 31, in <module>
    main()
    ~~~~^^
  File "/home/ann/train.py", line 24, in main
    trainer.train(
    ...<2 lines>...
    )
  File "/opt/lib/python3.13/site-packages/transformers/trainer.py", line 2123, in train
    return inner_training_loop(
        args=args,
    )
RuntimeError: boom
"""


class TestPython:
    def test_a_traceback_is_read_innermost_first(self):
        (stack,) = stacks_of(TRACEBACK)
        assert functions(stack) == ["train", "main", "<module>"]
        assert [frame.line for frame in stack.frames] == [9, 5, 2]
        assert stack.frames[0].module.endswith("trainer.py")
        assert not stack.crashed

    @pytest.mark.parametrize("kept", range(0, len(TRACEBACK), 17))
    def test_truncated_traceback_keeps_complete_frames(self, kept):
        assert all(frame.function for stack in stacks_of(TRACEBACK[kept:]) for frame in stack.frames)
        assert all(frame.function for stack in stacks_of(TRACEBACK[:kept]) for frame in stack.frames)
        assert "train" in functions(stacks_of(TRACEBACK[: TRACEBACK.index("return inner")])[0])

    def test_a_path_cut_at_its_start_is_still_a_frame(self):
        (stack,) = stacks_of(
            'ite-packages/flash_attn/interface.py", line 10, in <module>\n    import flash_attn_2_cuda'
        )
        assert stack.frames[0].module == "ite-packages/flash_attn/interface.py"

    def test_chained_tracebacks_are_two_stacks(self):
        first, second = stacks_of(
            'Traceback (most recent call last):\n  File "a.py", line 1, in read\n    open(x)\nOSError: no\n\n'
            "During handling of the above exception, another exception occurred:\n\n"
            'Traceback (most recent call last):\n  File "b.py", line 2, in load\n    read()\nValueError: bad\n'
        )
        assert functions(first) == ["read"]
        assert functions(second) == ["load"]

    def test_a_log_that_lost_its_indentation_is_one_stack(self):
        (stack,) = stacks_of(
            'File "main.py", line 118, in main\nif epoch % trainer.interval == 0:\nFile "sub.py", line 3, in step\nx()\n'
            "AttributeError: no"
        )
        assert functions(stack) == ["step", "main"]

    def test_concurrently_writing_ranks_are_distinguished(self):
        first, second = stacks_of(
            "[rank0]: Traceback (most recent call last):\n[rank1]: Traceback (most recent call last):\n"
            '[rank0]:   File "a.py", line 1, in outer_0\n[rank1]:   File "a.py", line 1, in outer_1\n'
            '[rank0]:   File "a.py", line 9, in inner_0\n[rank1]:   File "a.py", line 9, in inner_1\n'
        )
        assert functions(first) == ["inner_0", "outer_0"]
        assert functions(second) == ["inner_1", "outer_1"]

    def test_an_older_notebook(self):
        (stack,) = stacks_of(
            "<ipython-input-5-1a2b3c> in <module>()\n----> 1 trainer.train()\n\n"
            "/usr/lib/python3.10/dist-packages/transformers/training_args.py in _setup_devices(self)\n"
            "   1670         if not is_sagemaker_mp_enabled():\n-> 1672                 raise ImportError(\n"
            "   1673                     'install accelerate'\n\nImportError: install accelerate"
        )
        assert functions(stack) == ["_setup_devices", "<module>"]
        assert stack.frames[0].module.endswith("training_args.py")

    def test_a_newer_notebook(self):
        (stack,) = stacks_of(
            "Input In [5], in <cell line: 1>()\n----> 1 model(x)\n\n"
            "File /opt/lib/python3.10/site-packages/torch/nn/modules/module.py:1130, in Module._call_impl(self, *input)\n"
            "   1128     hooks = []\n-> 1130     return forward_call(*input)\n"
        )
        assert functions(stack) == ["Module._call_impl", "<cell line: 1>"]

    def test_a_rich_box_with_paths_broken_over_two_lines(self):
        (stack,) = stacks_of(
            "╭───────────── Traceback (most recent call last) ─────────────╮\n"
            "│ /home/ann/train.py:12 in main                               │\n"
            "│                                                             │\n"
            "│ ❱ 12 │   loop()                                             │\n"
            "│ /home/ann/.local/share/uv/python/lib/python3.12/multiprocess │\n"
            "│ ing/popen_fork.py:19 in __init__                            │\n"
            "│   18 │   │   self.finalizer = None                          │\n"
            "│ ❱ 19 │   │   self._launch(process_obj)                      │\n"
            "╰─────────────────────────────────────────────────────────────╯\n"
            "RuntimeError: boom\n"
        )
        assert functions(stack) == ["__init__", "main"]
        assert stack.frames[0].module.endswith("multiprocessing/popen_fork.py")

    def test_faulthandler_marks_the_thread_that_crashed(self):
        other, current = stacks_of(
            "Fatal Python error: Segmentation fault\n\n"
            "Thread 0x00007f1a (most recent call first):\n"
            '  File "/usr/lib/python3.11/threading.py", line 324 in wait\n'
            '  File "/usr/lib/python3.11/threading.py", line 982 in run\n\n'
            "Current thread 0x00007f2b [python] (most recent call first):\n"
            '  File "/home/ann/x.py", line 3 in f\n  File "/home/ann/x.py", line 9 in <module>\n\n'
            "Extension modules: numpy.core._multiarray_umath, torch._C (total: 2)\n"
        )
        assert functions(other) == ["wait", "run"]
        assert not other.crashed
        assert functions(current) == ["f", "<module>"]
        assert current.crashed

    def test_faulthandler_after_a_timeout_has_no_crashed_thread(self):
        (stack,) = stacks_of('Timeout (0:00:10)!\nThread 0x1 (most recent call first):\n  File "x.py", line 3 in f\n')
        assert not stack.crashed

    def test_faulthandler_on_windows(self):
        evidence = read_evidence(
            "steps:  33%|██▌  | 6153/18768 [11:58:50<24:33:46, 7.01s/it]Windows fatal exception: access violation\n\n"
            "Current thread 0x00000bd4 (most recent call first):\n"
            '  File "C:\\py\\lib\\site-packages\\torch\\autograd\\graph.py", line 825 in _engine_run_backward\n'
        )
        assert evidence.stacks[0].crashed
        assert evidence.exits[0].signal == "SIGSEGV"
        assert evidence.errors.joined == "Windows fatal exception: access violation"

    def test_the_native_part_of_a_newer_faulthandler(self):
        (stack,) = stacks_of(
            "Current thread's C stack trace (most recent call first):\n"
            '  Binary file "/usr/lib/libc.so.6", at +0x3e2d0 [0x7f390ba3e2d0]\n'
            '  Binary file "/usr/lib/libc.so.6", at abort+0x26 [0x7f390ba255fe]\n'
        )
        assert functions(stack) == ["??", "abort"]
        assert stack.frames[1].address == 0x7F390BA255FE


class TestTools:
    def test_py_spy(self):
        main, worker = stacks_of(
            'Process 4711: python train.py\nPython v3.11.7 (/usr/bin/python3.11)\n\nThread 4711 (idle): "MainThread"\n'
            "    wait (threading.py:324)\n    get (queue.py:180)\n    <module> (train.py:9)\n"
            'Thread 0x7F76848B4700 (active+gil): "Thread-6"\n    _poll (system_metrics.py:76)\n'
        )
        assert functions(main) == ["wait", "get", "<module>"]
        assert main.thread == 'Thread 4711 (idle): "MainThread"'
        assert functions(worker) == ["_poll"]

    def test_py_spy_with_native_frames(self):
        (stack,) = stacks_of(
            'Thread 12 (idle): "MainThread"\n    __futex_abstimed_wait_common (libc.so.6)\n    0x7f33a1 (libgomp-a34b3233.so.1)\n'
            "    at::native::add(at::Tensor const&, c10::Scalar const&) (torch/lib/libtorch_cpu.so)\n"
            "    forward (torch/nn/modules/linear.py:114)\n"
        )
        assert functions(stack)[2] == "at::native::add(at::Tensor const&, c10::Scalar const&)"
        assert stack.frames[1].module == "libgomp-a34b3233.so.1"

    def test_py_spy_pasted_without_indentation_and_cut(self):
        (stack,) = stacks_of("poll (libc.so.6)\nselect (selectors.py:415)\nwait (multiprocessing/connection.py")
        assert functions(stack) == ["poll", "select", "wait"]

    def test_gdb(self):
        waiting, crashed = stacks_of(
            'Thread 2 (Thread 0x7f09e47ff6c0 (LWP 18455) "python3"):\n'
            "#0  futex_wait (val=462856, addr=0x559b40b6b344)\n    at /build/gcc/libgomp/config/linux/x86/futex.h:44\n"
            "#1  0x00007f0cb754a6cc in gomp_team_barrier_wait_end (bar=0x559b40b6b340, \n    state=462856)\n"
            "    at /build/gcc/libgomp/config/linux/bar.c:112\n"
            "#2  0x00007f0d25feae65 in std::function<void (int)>::operator()(int) const () from /lib/libtorch_cpu.so\n\n"
            'Thread 1 "python" received signal SIGSEGV, Segmentation fault.\n[Switching to Thread 0x7ffff7fbf740 (LWP 123)]\n'
            "#0  0x00007fc733b1b7b1 in __kmp_lock_suspend_mx () from /lib/libiomp5.so\n"
            "#1  <signal handler called>\n"
            "#2  0x00007fc70f72ee95 in at::(anonymous namespace)::set(int) () from /lib/libtorch_cpu.so   [390/7275]\n"
            "#3  _PyObject_Vectorcall (kwnames=0x0, callable=0x7fc7 <f (x)>) at call.c:486\n"
        )
        assert functions(waiting) == [
            "futex_wait",
            "gomp_team_barrier_wait_end",
            "std::function<void (int)>::operator()(int) const",
        ]
        assert waiting.frames[0].module == "/build/gcc/libgomp/config/linux/x86/futex.h:44"
        assert functions(crashed) == [
            "__kmp_lock_suspend_mx",
            "at::(anonymous namespace)::set(int)",
            "_PyObject_Vectorcall",
        ]
        assert crashed.frames[0].address == 0x7FC733B1B7B1
        assert (waiting.crashed, crashed.crashed) == (False, True)

    def test_lldb(self):
        evidence = read_evidence(
            "* thread #1, queue = 'com.apple.main-thread', stop reason = EXC_BAD_ACCESS (code=1, address=0x8)\n"
            "  * frame #0: 0x000000010786af94 libomp.dylib`__kmp_suspend_initialize_thread + 32\n"
            "    frame #1: 0x0000000324f31520 libomp.dylib`kmp_flag_64<false, true>::wait(kmp_info*, int, void*) + 1880\n"
            "  thread #2, name = 'worker'\n    frame #0: 0x0000000187b126ec libsystem_kernel.dylib`__psynch_cvwait + 8\n"
        )
        first, second = evidence.stacks
        assert functions(first) == [
            "__kmp_suspend_initialize_thread",
            "kmp_flag_64<false, true>::wait(kmp_info*, int, void*)",
        ]
        assert (first.crashed, second.crashed) == (True, False)
        assert evidence.exits[0].signal == "SIGSEGV"

    def test_lldb_stop_is_not_a_crash(self):
        evidence = read_evidence(
            "* thread #1, stop reason = signal SIGSTOP\n    frame #0: 0x0000000187b1 libsystem_kernel.dylib`__psynch_cvwait + 8"
        )
        assert not evidence.stacks[0].crashed
        assert not evidence.exits

    def test_torch(self):
        (stack,) = stacks_of(
            "Exception raised from wait at ../torch/csrc/distributed/x.cpp:12 (most recent call first):\n"
            "frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x57 (0x7f31a1 in /lib/libc10.so)\n"
            "frame #1: <unknown function> + 0x1f2 (0x7f31b2 in /lib/libtorch_cpu.so)\n"
        )
        assert functions(stack) == ["c10::Error::Error(c10::SourceLocation, std::string)", "<unknown function>"]
        assert stack.frames[0].module == "/lib/libc10.so"

    def test_torch_with_names(self):
        (stack,) = stacks_of(
            "C++ CapturedTraceback:\n#4 c10::TensorImpl::data() from Logging.cpp:0\n#5 at::add from ??:0\n"
        )
        assert functions(stack) == ["c10::TensorImpl::data()", "at::add"]

    def test_abseil_and_glog(self):
        evidence = read_evidence(
            "*** SIGSEGV received at time=1700000000 on cpu 3 ***\nPC: @     0x7f4c3b0a3730  (unknown)  absl::Mutex::Lock()\n"
            "    @     0x7f4c3b0a3730       1280  (unknown)\n    @     0x7f4c3c11       64  absl::Mutex::Block()\n"
        )
        assert functions(evidence.stacks[0])[-1] == "absl::Mutex::Block()"
        assert evidence.stacks[0].crashed
        assert evidence.exits[0].signal == "SIGSEGV"

    def test_glibc(self):
        (stack,) = stacks_of(
            "======= Backtrace: =========\n/lib/libc.so.6(abort+0x12b)[0x7f3a00000010]\npython(+0x1f2)[0x55d1]\n"
        )
        assert functions(stack) == ["abort", "??"]

    def test_kernel_view_of_a_process(self):
        (stack,) = stacks_of("[<0>] futex_wait_queue+0x5c/0x90\n[<0>] do_syscall_64+0x5b/0x80")
        assert functions(stack) == ["futex_wait_queue", "do_syscall_64"]

    def test_torch_on_windows(self):
        (stack,) = stacks_of(
            "  #0 0x00007fffa4650000 (C:\\venv\\torch\\lib\\torch_hip.dll+0x0)\n"
            "  #1 0x00007fffa6c8f287 at::cuda::mm(class at::Tensor const &) (C:\\venv\\torch\\lib\\torch_hip.dll+0x3f)\n"
        )
        assert stack.frames[1].function == "at::cuda::mm(class at::Tensor const &)"
        assert stack.frames[1].module.endswith("torch_hip.dll")


CRASH_REPORT = """\
Process:               python3.11 [4711]
OS Version:            macOS 14.4 (23E214)
Exception Type:        EXC_BAD_ACCESS (SIGSEGV)
Termination Reason:    Namespace SIGNAL, Code 11 Segmentation fault: 11

Application Specific Information:
crashed on child side of fork pre-exec

Thread 0::  Dispatch queue: com.apple.main-thread
0   libsystem_kernel.dylib        \t       0x18e5485ec __psynch_cvwait + 8
1   libsystem_pthread.dylib       \t       0x18e58655c _pthread_cond_wait + 1228

Thread 4 Crashed:
0   libomp.dylib                  \t       0x143098b3c void __kmp_suspend_64<false, true>(int, kmp_flag_64<false, true>*) + 504
1   libomp.dylib                  \t       0x333556638 kmp_flag_64<false, true>::wait(kmp_info*, int, void*) + 1832

Binary Images:
       0x143050000 -        0x1430d3fff libomp.dylib (*) <0fd1> /opt/venv/torch/lib/libomp.dylib
       0x333520000 -        0x3335a7fff libomp.dylib (*) <22aa> /opt/venv/sklearn/.dylibs/libomp.dylib
"""


class TestMacReports:
    def test_a_crash_report_in_text(self):
        evidence = read_evidence(CRASH_REPORT)
        idle, crashed = evidence.stacks
        assert (idle.crashed, crashed.crashed) == (False, True)
        assert [frame.image_base for frame in crashed.frames] == [0x143050000, 0x333520000]
        assert functions(crashed)[0].startswith("void __kmp_suspend_64")
        assert evidence.exits[0].signal == "SIGSEGV"
        assert "crashed on child side of fork pre-exec" in evidence.errors.joined
        assert "macos 14.4" in evidence.versions.joined

    def test_a_whole_ips_file(self):
        evidence = read_evidence(ips_file(indent=2))
        other, crashed = evidence.stacks
        assert (other.crashed, crashed.crashed) == (False, True)
        assert [frame.image_base for frame in crashed.frames] == [0x1000, 0x9000]
        assert crashed.frames[0].address == 0x1000 + 26
        assert [frame.module for frame in crashed.frames] == ["libomp.dylib", "libiomp5.dylib"]
        assert evidence.exits[0].signal == "SIGSEGV"
        assert "may have been in progress in another thread when fork() was called" in evidence.errors.joined
        assert crashed.frames[0].line > 10

    def test_an_ips_file_on_one_line(self):
        assert [len(stack.frames) for stack in stacks_of(ips_file(indent=None))] == [1, 2]

    def test_partial_ips_file_identifies_images_by_number(self):
        piece = json.dumps({"id": 7, "frames": REPORT["threads"][1]["frames"]})
        (stack,) = stacks_of("here is the thread:\n" + piece)
        assert [frame.image_base for frame in stack.frames] == [0, 1]
        (cut,) = stacks_of(piece[: piece.index('"symbol": "__kmp_fork')])
        assert functions(cut) == ["__kmp_suspend_initialize_thread"]

    def test_sample(self):
        waiting, computing, second = stacks_of(
            "Analysis of sampling python3.11 (pid 4711) every 1 millisecond\n\nCall graph:\n"
            "    2569 Thread_1447670   DispatchQueue_1: com.apple.main-thread  (serial)\n"
            "    + 2569 start  (in dyld) + 2476  [0x18f3b90e0]\n"
            "    +   2569 run  (in libtorch_cpu.dylib) + 314  [0x114a3ec1b]\n"
            "    +     2000 __psynch_cvwait  (in libsystem_kernel.dylib) + 8  [0x18e5485ec]\n"
            "    +     569 gemm  (in libtorch_cpu.dylib) + 120,144,...  [0x114a3ffff,0x114a40000,...]\n"
            "    2569 Thread_1447671\n"
            "      2569 thread_start  (in libsystem_pthread.dylib) + 8  [0x18e580d34]\n"
            "\nTotal number in stack (recursive counted multiple, when >=5):\n        5       start  (in dyld) + 0  [0x18f3b90e0]\n"
            "\nBinary Images:\n       0x114000000 -        0x11fffffff +libtorch_cpu.dylib (0) <AB> /opt/libtorch_cpu.dylib\n"
        )
        assert functions(waiting) == ["__psynch_cvwait", "run", "start"]
        assert functions(computing) == ["gemm", "run", "start"]
        assert computing.frames[0].image_base == 0x114000000
        assert waiting.thread.startswith("Thread_1447670")
        assert functions(second) == ["thread_start"]

    def test_a_sampled_frame_is_listed_once(self):
        text = "Call graph:\n  9 Thread_1\n  + 9 start  (in dyld)\n  +   5 a  (in x)\n  +   4 b  (in x)\n"
        assert read_evidence(text).frames.joined.split("\n") == ["a (x)", "start (dyld)", "b (x)"]

    def test_a_pasted_list_of_sampled_frames_is_one_stack(self):
        (stack,) = stacks_of(
            "1 call  (in Python) + 685  [0x103]\n2 log_sigmoid  (in libtorch_python.dylib) + 299  [0x114]\n"
        )
        assert functions(stack) == ["log_sigmoid", "call"]


REPORT = {
    "osVersion": {"train": "macOS 14.4"},
    "exception": {"type": "EXC_BAD_ACCESS", "signal": "SIGSEGV"},
    "termination": {"namespace": "SIGNAL", "code": 11, "indicator": "Segmentation fault: 11"},
    "asi": {
        "libobjc.A.dylib": [
            "+[NSNumber initialize] may have been in progress in another thread when fork() was called."
        ]
    },
    "faultingThread": 1,
    "threads": [
        {"id": 1, "queue": "com.apple.main-thread", "frames": [{"imageOffset": 5, "symbol": "main", "imageIndex": 0}]},
        {
            "triggered": True,
            "id": 2,
            "threadState": {"x": [{"value": 0}]},
            "frames": [
                {"imageOffset": 26, "symbol": "__kmp_suspend_initialize_thread", "imageIndex": 0},
                {"imageOffset": 99, "symbol": "__kmp_fork_barrier(int)::{lambda()#1}", "imageIndex": 1},
            ],
        },
    ],
    "usedImages": [
        {"base": 0x1000, "size": 4096, "name": "libomp.dylib"},
        {"base": 0x9000, "size": 4096, "path": "/opt/lib/libiomp5.dylib"},
    ],
}


def ips_file(indent: int | None) -> str:
    header = json.dumps({"app_name": "python3.11", "bug_type": "309", "os_version": "macOS 14.4 (23E214)"})
    return header + "\n" + json.dumps(REPORT, indent=indent)
