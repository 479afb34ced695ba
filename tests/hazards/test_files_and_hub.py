"""What doctor is told before a run about disks, caches, the hub and the packages around them."""

from holdfast.core.facts import CachedModel, Disk, MachineFacts, Variable
from holdfast.core.plan import Plan
from holdfast.hazards import (
    accelerate_missing,
    corrupt_checkpoint,
    disk_full,
    hub_offline,
    permission_denied,
    weights_only_load,
)

GIGABYTE = 10**9


def disk(free_bytes, role="output", **more):
    return Disk(role=role, path="/data", free_bytes=free_bytes, total_bytes=500 * GIGABYTE, **more)


def test_nearly_full_disk_warns_full_disk_blocks():
    assert disk_full.invited_by(MachineFacts(disks=(disk(40 * GIGABYTE),)), Plan()) is None
    assert disk_full.invited_by(MachineFacts(disks=(disk(2 * GIGABYTE),)), Plan()).severity == "warning"
    full = disk_full.invited_by(MachineFacts(disks=(disk(GIGABYTE // 10, role="cache"),)), Plan())
    assert full.severity == "blocker"
    assert "cache" in full.seen


def test_unwritable_folder_gets_its_own_remedy():
    disks = (disk(GIGABYTE), disk(GIGABYTE, role="cache", is_writable=False))
    invited = permission_denied.invited_by(MachineFacts(disks=disks), Plan())
    assert "/data" in invited.seen
    assert [remedy.command for remedy in invited.remedies] == ["export HF_HOME=~/huggingface"]


def test_offline_mode_with_empty_cache_is_reported():
    offline = Variable(name="HF_HUB_OFFLINE", value="1", effect="")
    assert hub_offline.invited_by(MachineFacts(variables=(offline,)), Plan()).severity == "warning"
    cached = CachedModel(name="bert-base-uncased", bytes=GIGABYTE, complete=True)
    assert hub_offline.invited_by(MachineFacts(variables=(offline,), models=(cached,)), Plan()).severity == "note"
    assert hub_offline.invited_by(MachineFacts(), Plan()) is None


def test_unfinished_download_is_reported():
    half = CachedModel(name="gpt2", bytes=100, complete=False)
    assert "gpt2" in corrupt_checkpoint.invited_by(MachineFacts(models=(half,)), Plan()).seen


def test_transformers_without_accelerate_is_reported():
    installed = {"transformers": "4.57.0", "torch": "2.13.0"}
    assert accelerate_missing.invited_by(MachineFacts(distributions=installed), Plan())
    assert (
        accelerate_missing.invited_by(MachineFacts(distributions={**installed, "accelerate": "1.12.0"}), Plan()) is None
    )
    assert accelerate_missing.invited_by(MachineFacts(distributions={**installed, "accelerate": "0.21.0"}), Plan())
    assert accelerate_missing.invited_by(MachineFacts(distributions={"torch": "2.13.0"}), Plan()) is None


def test_old_torch_with_new_transformers_is_reported():
    assert weights_only_load.invited_by(
        MachineFacts(distributions={"transformers": "4.52.3", "torch": "2.5.1"}), Plan()
    )
    assert (
        weights_only_load.invited_by(MachineFacts(distributions={"transformers": "4.52.3", "torch": "2.6.0"}), Plan())
        is None
    )
