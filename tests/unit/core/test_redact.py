"""Nothing secret stays, and what explains a failure does."""

import pytest

from holdfast.core.redact import Redactor, is_secret_name

HF = "hf_" + "aB3dE6gH9jK2mN5pQ8sT"
AWS = "AKIA" + "IOSFODNN7ABCDEFG"


def redactor() -> Redactor:
    return Redactor(
        {"MY_SERVICE_TOKEN": "plain-looking words", "HF_HOME": "/data/hf", "TOKENIZERS_PARALLELISM": "false"},
        users=["marlene", "root"],
        hosts=["gpu-box-17.example.org", "gpu-box-17", "vm"],
        homes=["/home/marlene", "/srv/otto"],
    )


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        (f"login with {HF}", HF),
        ('["python", "x.py", "--password", "hunter22"]', "hunter22"),
        ('[\n "--wandb_key",\n "wkey998877"]', "wkey998877"),
        ("'--api-key', 'TOPSECRET'", "TOPSECRET"),
        (f"export HF_TOKEN={HF}", HF),
        (f"aws_access_key_id = {AWS}", AWS),
        ("aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "wJalrXUtnFEMI"),
        ("https://marlene:hunter22@git.example.com/x.git", "hunter22"),
        ("https://oauth-0123456789@git.example.com/x.git", "oauth-0123456789"),
        ("Authorization: Bearer abc.DEF-123456", "abc.DEF-123456"),
        ('{"wandb_api_key": "0123456789abcdef0123456789abcdef01234567"}', "0123456789abcdef0123"),
        ("python train.py --api-key s3cretvalue --epochs 3", "s3cretvalue"),
        ("password: correct-horse", "correct-horse"),
        ("sent plain-looking words to the server", "plain-looking words"),
        ("https://bucket.s3.example.com/x?X-Amz-Signature=0a1b2c3d4e&X-Amz-Date=1", "0a1b2c3d4e"),
        ("-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXk\n-----END OPENSSH PRIVATE KEY-----", "b3BlbnNzaC1rZXk"),
        ("ghp_" + "0123456789abcdefghijABCDEFGHIJ", "ghp_0123"),
        ("sk-proj-" + "0123456789abcdefghij", "0123456789abcdefghij"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abcdefghijk", "eyJzdWIi"),
        ("mail marlene.k@example.org for access", "marlene"),
        ('File "/home/marlene/work/train.py", line 3', "marlene"),
        ('File "/Users/otto/train.py", line 3', "otto"),
        (r'File "C:\Users\Otto\train.py", line 3', "Otto"),
        ("/srv/otto/.cache/huggingface", "otto"),
        ("connected to gpu-box-17:29500", "gpu-box-17"),
        ("waits for 10.20.30.40:443", "10.20.30.40"),
        ("run by marlene", "marlene"),
    ],
)
def test_deleted_dataset_is_gone(text, secret):
    take = redactor()
    assert secret not in take(text)
    assert sum(take.removed.values()) >= 1


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.",
        "pad_token='<pad>' eos_token: '</s>' num_tokens=4096 max_new_tokens: 128 token_type_ids=[0, 0]",
        "tokenizer.json loaded, TOKENIZERS_PARALLELISM=false",
        "nvidia-cublas-cu12==12.4.5.8 waits for 127.0.0.1:8443",
        "KeyError: 'label' at step 12; the key was not found",
        "oom_kill +1 in cgroup /sys/fs/cgroup/job, limit 4.0 GB",
        "0x00007fc733b1b7b1 in __kmp_lock_suspend_mx () from /opt/libiomp5.so",
        "Unexpected key(s) in state_dict: 'model.lm_head.weight'",
        "special tokens have been added in the vocabulary",
        "running as root on vm",
    ],
)
def test_failure_evidence_is_kept(text):
    assert redactor()(text) == text


def test_json_stays_json():
    import json

    value = {"HF_TOKEN": HF, "path": "/home/marlene/a", "note": "password=abcdef", "n": 3}
    clean = json.loads(redactor()(json.dumps(value)))
    assert clean["n"] == 3
    assert clean["path"] == "~/a"
    assert HF not in json.dumps(clean)


def test_names_of_secret_variables():
    assert is_secret_name("HF_TOKEN")
    assert is_secret_name("WANDB_API_KEY")
    assert is_secret_name("PGPASSWORD")
    assert not is_secret_name("TOKENIZERS_PARALLELISM")
    assert not is_secret_name("HF_HOME")
