"""Variables that matter: what they really do, and what is never shown."""

import pytest

from holdfast.machine.variables import KNOWN, read_variables, shown_value


def told(environ, platform="darwin"):
    return {variable.name: variable for variable in read_variables(environ, platform, "/env")}


@pytest.mark.parametrize(
    ("name", "value", "verdict"),
    [
        ("KMP_DUPLICATE_LIB_OK", "TRUE", "harmful"),
        ("KMP_DUPLICATE_LIB_OK", "FALSE", "works"),
        ("PYTORCH_ENABLE_MPS_FALLBACK", "0", "useless"),
        ("PYTORCH_ENABLE_MPS_FALLBACK", "1", "works"),
        ("PYTORCH_MPS_FORCE_DISABLE", "1", "useless"),
        ("PYTORCH_MPS_HIGH_WATERMARK_RATIO", "0.0", "harmful"),
        ("PYTORCH_MPS_HIGH_WATERMARK_RATIO", "0.7", "harmful"),
        ("PYTORCH_MPS_HIGH_WATERMARK_RATIO", "1.6", "works"),
        ("TOKENIZERS_PARALLELISM", "true", "harmful"),
        ("TOKENIZERS_PARALLELISM", "false", "works"),
        ("ACCELERATE_USE_CPU", "1", "harmful"),
        ("TORCH_USE_CUDA_DSA", "1", "useless"),
        ("OMP_NUM_THREADS", "1", "works"),
        ("CUDA_VISIBLE_DEVICES", "", "works"),
    ],
)
def test_each_variable_gets_its_true_verdict_on_a_mac(name, value, verdict):
    assert told({name: value})[name].verdict == verdict


def test_lowering_both_watermarks_is_right():
    both = {"PYTORCH_MPS_HIGH_WATERMARK_RATIO": "0.7", "PYTORCH_MPS_LOW_WATERMARK_RATIO": "0.6"}
    assert told(both)["PYTORCH_MPS_HIGH_WATERMARK_RATIO"].verdict == "works"


def test_a_mac_variable_does_nothing_elsewhere():
    found = told({"PYTORCH_MPS_HIGH_WATERMARK_RATIO": "0.0"}, "linux")["PYTORCH_MPS_HIGH_WATERMARK_RATIO"]
    assert found.verdict == "works"


def test_an_empty_cuda_list_hides_every_gpu():
    assert "hides every" in told({"CUDA_VISIBLE_DEVICES": ""})["CUDA_VISIBLE_DEVICES"].effect
    assert "these NVIDIA GPUs only" in told({"CUDA_VISIBLE_DEVICES": "0,1"})["CUDA_VISIBLE_DEVICES"].effect


def test_secrets_and_passwords_are_never_shown():
    found = told({"HF_TOKEN": "hf_secret", "WANDB_API_KEY": "k", "HTTPS_PROXY": "http://me:pass@proxy:3128"})
    assert "hf_secret" not in str(found)
    assert "pass" not in found["HTTPS_PROXY"].value
    assert found["HTTPS_PROXY"].value == "http://(not shown)@proxy:3128"
    assert shown_value("HF_TOKEN", "") == ""
    assert shown_value("TOKENIZERS_PARALLELISM", "true") == "true"


def test_irrelevant_variables_are_omitted():
    assert told({"HOME": "/root", "PATH": "/bin", "HF_HUB_OFFLINE": "0"}) == {}


def test_other_active_environment_is_reported(tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "mine").mkdir()
    environ = {"VIRTUAL_ENV": str(tmp_path / "other")}
    (found,) = read_variables(environ, "linux", str(tmp_path / "mine"))
    assert (found.name, found.verdict) == ("VIRTUAL_ENV", "harmful")
    assert read_variables(environ, "linux", str(tmp_path / "other")) == ()
    assert read_variables({"VIRTUAL_ENV": "/gone"}, "linux", "/x") == ()


def test_every_row_names_its_source():
    assert all(row.source and row.effect and not row.effect.endswith(".") for row in KNOWN)
