"""What is read from a log besides stacks, errors and its end: its lines, versions, progress."""

import pytest

from holdfast.logs.log_text import read_evidence


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

    def test_error_after_a_progress_bar_is_found(self):
        evidence = read_evidence(
            " 12%|█ | 12/100 [00:01<00:02, 9.1it/s]Traceback (most recent call last):\nKeyError: 'x'"
        )
        assert evidence.errors.joined == "KeyError: 'x'"
        assert [passage.line for passage in evidence.log] == [1, 1, 2]

    def test_very_long_line_is_split_with_the_same_number(self):
        evidence = read_evidence("first\n" + "x" * 4000 + "\nlast")
        assert [passage.line for passage in evidence.log] == [1, 2, 2, 2, 3]

    def test_phrase_at_a_long_line_split_is_found(self):
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
        assert evidence.exits[0].signal == "SIGKILL"

    def test_docker_json_lines_are_opened(self):
        text = '{"log":"RuntimeError: boom\\n","stream":"stderr","time":"2026-01-01T00:00:00Z"}'
        assert errors_of(text) == ["RuntimeError: boom"]


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
    def test_merely_mentioned_versions_are_ignored(self, line):
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

    def test_last_state_of_each_progress_bar_is_kept(self):
        evidence = read_evidence(
            "a: 10%|# | 1/10 [00:01<00:02]\nb: 50%|# | 1/2 [00:01<00:02]\na: 100%|##| 10/10 [00:01<00:00]"
        )
        assert [(bar.text, bar.fraction) for bar in evidence.progress] == [("b", 0.5), ("a", 1.0)]
