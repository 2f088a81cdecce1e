"""Role slurm keeps the GPUs for jobs: what else researchers run is in slices that have none."""

import pytest

from support.role_tasks import play
from support.slurm_owners import AS_ROOT

pytestmark = [pytest.mark.process, AS_ROOT]
# As Debian has it.
CRON = "@include common-auth\n@include common-session-noninteractive\n"


@pytest.fixture
def slices(tmp_path):
    """A function that applies it to the host's settings, which are a test's own."""
    (tmp_path / "cron").write_text(CRON)

    def apply(*uids, enabled=True, check=False):
        done = play(
            tmp_path,
            "slurm",
            "slices",
            check=check,
            ansible_managed="managed",
            slurm_enabled=enabled,
            slurm_users=[{"name": f"user-{uid}", "uid": uid} for uid in uids],
            __slurm_slices=str(tmp_path / "system"),
            __slurm_later_pam=[str(tmp_path / "cron"), str(tmp_path / "atd")],
        )
        assert done.code == 0, done.said
        return done

    (tmp_path / "system").mkdir()
    return apply


def has_slices(tmp_path):
    return {str(path.relative_to(tmp_path / "system")) for path in (tmp_path / "system").rglob("*")}


def test_a_researchers_slice_has_all_devices_but_nvidias(slices, tmp_path):
    slices(20001)
    text = (tmp_path / "system/user-20001.slice.d/gpubed-slurm.conf").read_text()
    rules = [line for line in text.splitlines() if not line.startswith("#")]
    assert rules == [
        "[Slice]",
        "DevicePolicy=closed",
        "DeviceAllow=char-[!n]*",
        "DeviceAllow=block-*",
    ]


def test_cron_runs_researchers_commands_there_and_others_where_it_did(slices, tmp_path):
    slices(20001)
    before, block = (tmp_path / "cron").read_text().split("# BEGIN gpubed role slurm\n")
    assert before == CRON
    assert block.splitlines() == [
        # Skips what follows for all others.
        "session [success=ignore default=1] pam_succeed_if.so quiet user ingroup researchers",
        "session required pam_systemd.so",
        "# END gpubed role slurm",
    ]
    assert not (tmp_path / "atd").exists(), "at is not installed"
