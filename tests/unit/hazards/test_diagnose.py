"""How signs are weighed, on logs of the kinds people have."""

from holdfast.hazards.diagnose import diagnose
from holdfast.logs.log_text import read_evidence


def named(log: str, exit_status: str = "") -> str:
    return diagnose(read_evidence(log, exit_status)).slug


def test_ordinary_bug_is_unknown():
    log = "Traceback (most recent call last):\n  File \"train.py\", line 3, in <module>\nKeyError: 'response'"
    diagnosis = diagnose(read_evidence(log, "1"))
    assert diagnosis.slug == "unknown"
    assert diagnosis.confidence == "unknown"
    assert "KeyError: 'response'" in diagnosis.note


def test_healthy_log_is_unknown():
    diagnosis = diagnose(read_evidence("epoch 1 loss 0.4\nepoch 2 loss 0.3\nsaved", "0"))
    assert diagnosis.slug == "unknown"
    assert "code 0" in diagnosis.note


def test_warning_does_not_explain_an_unrelated_error():
    warning = "huggingface/tokenizers: The current process just got forked, after parallelism has already been used."
    assert named(f"{warning}\nKeyError: 'label_ids'", "1") == "unknown"


def test_harmless_line_is_marked():
    line = (
        "Some weights of BertForX were not initialized from the model checkpoint at m and are newly initialized: ['a']"
    )
    diagnosis = diagnose(read_evidence(line, "0"))
    assert diagnosis.slug == "unknown"
    (note,) = diagnosis.harmless
    assert note.startswith("line 1 ")


def test_harmless_part_of_redrawn_line_keeps_the_cause():
    harmless = "Some weights of BertForX were not initialized from the model checkpoint at m"
    bar = "  0%|          | 0/10 [00:00<?, ?it/s]"
    assert (
        named(f"{harmless}\r{bar}\rtorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")
        == "cuda-oom"
    )


def test_the_first_error_is_named_and_not_its_echo():
    log = (
        "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity "
        "of 23.64 GiB of which 1.00 GiB is free. Including non-PyTorch memory, this process has 22.60 GiB memory in "
        "use. Of the allocated memory 22.00 GiB is allocated by PyTorch\n"
        "[rank0]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE)\n"
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: train.py FAILED"
    )
    assert named(log, "1") == "cuda-oom"


def test_card_held_by_others_differs_from_full_card():
    message = (
        "RuntimeError: CUDA out of memory. Tried to allocate {wanted} MiB (GPU 0; 23.70 GiB total capacity; "
        "{held} GiB already allocated; {free} MiB free; {held} GiB reserved in total by PyTorch)"
    )
    assert named(message.format(wanted=500, held="22.50", free=100)) == "cuda-oom"
    assert named(message.format(wanted=500, held="0.90", free=100)) == "zombie-gpu-memory"


def test_two_load_addresses_prove_two_runtimes_without_any_message():
    frames = (
        "Thread 7 Crashed:\n"
        "0   libomp.dylib   0x1015e5828 void __kmp_suspend_64<false, true>(int, kmp_flag_64<false, true>*) + 44\n"
        "1   libomp.dylib   0x{second} kmp_flag_64<false, true>::wait(kmp_info*, int, void*) + 1880\n"
    )
    far = diagnose(read_evidence(frames.format(second="101ad5520"), "SIGSEGV"))
    assert (far.slug, far.confidence) == ("openmp-duplicate", "proven")
    near = diagnose(read_evidence(frames.format(second="1015e5b20"), "SIGSEGV"))
    assert near.confidence != "proven"


def test_the_same_evidence_gives_the_same_answer():
    log = "OMP: Error #15: Initializing libomp.dylib, but found libomp.dylib already initialized."
    assert diagnose(read_evidence(log)) == diagnose(read_evidence(log))


def test_old_driver_is_named_and_not_the_build():
    log = (
        "UserWarning: CUDA initialization: The NVIDIA driver on your system is too old (found version 11040).\n"
        "RuntimeError: Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False."
    )
    assert named(log, "1") == "cuda-driver-mismatch"
    assert diagnose(read_evidence(log.splitlines()[1], "1")).confidence == "likely"


def test_ordinary_text_about_memory_proves_nothing():
    log = "note: the CUDA out of memory test passed\nall 12 tests passed"
    assert diagnose(read_evidence(log)).confidence != "proven"
    error = diagnose(read_evidence("RuntimeError: CUDA out of memory.", "1"))
    assert (error.slug, error.confidence) == ("cuda-oom", "proven")


def test_unknown_error_keeps_the_first_line_of_its_message():
    log = (
        'Traceback (most recent call last):\n  File "s.py", line 5, in <module>\n    raise MyError(TEXT)\n'
        "__main__.MyError: line one\nline two\n\n  line three"
    )
    assert diagnose(read_evidence(log, "1")).note.endswith("MyError: line one")
