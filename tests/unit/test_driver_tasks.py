"""What the tasks of role nvidia_driver decide on a node; around them are STAND-INS.

Whole nodes go through it in its molecule scenario and in tests/e2e/test_gpu.py.
"""

import json

import pytest

from support import machines
from support.role_tasks import play

pytestmark = pytest.mark.process

VERSION = "580.65.06"
KERNELS = """printf '%s\n' 'linux-image-amd64 installed' 'linux-image-6.1.0-50-amd64 installed' \\
  'linux-image-cloud-amd64 config-files'"""


def choice(**changed):
    """What `gpubed_driver` answers for one node, node-0."""
    return {
        "branch": 580,
        "source": "nvidia",
        "open_module": ["node-0"],
        "fabric_manager": [],
        "subnet_manager": [],
        "cuda": 13,
        "kept": {},
        "replaced": {},
        **changed,
    }


def node(folder):
    """What the role is told of a node."""
    return {
        "gpubed_node_id": "node-0-1",
        "gpubed_state_dir": str(folder),
        "gpubed_fingerprints": {},
        "gpubed_nodes": [{"name": "node-0", "gpus": 1}],
        "nvidia_driver_nodes": ["node-0"],
        "hardware_root": str(folder),
        # It would find those of a cluster that this machine holds, too.
        "nvidia_driver_ignore_jobs": True,
    }


def tasks(folder, entry, *, kept=None, **options):
    """Run some tasks of the role where gpubed's own driver stays, if `kept` names one."""
    given = {
        "__nvidia_driver_choice": choice(kept={"node-0": kept} if kept else {}),
        "__nvidia_driver_note": {"rc": 0, "stdout_lines": ["nvidia-driver-cuda"]},
        "__nvidia_driver_note_there": {"stdout_lines": [f"installed {kept}-1"]},
        "__nvidia_driver_pin": str(folder / "pin"),
        "__nvidia_driver_noted": str(folder / "noted"),
        **node(folder),
        **options,
    }
    return play(folder, "nvidia_driver", entry, **given)


@pytest.fixture
def chosen(tmp_path):
    """A function that runs the whole role in check mode on a node with two T4."""

    def run(installed=None, *, ours=False, there=VERSION, nouveau=False, **options):
        told = machines.facts("t4", tmp_path / "machine", driver=False)
        told["driver"] |= {"installed": installed, "loaded": installed, "nouveau": nouveau}
        (tmp_path / "facts").mkdir()
        (tmp_path / "facts/node-0-1.json").write_text(json.dumps(told))
        programs = {
            "cat": 'case $1 in */refcnt) exec /bin/cat "$1" ;; esac; '
            + ("echo nvidia-driver-cuda" if ours else "exit 1"),
            "modinfo": f"echo {VERSION}",
            "dpkg": 'echo "$2 install"',
            "dpkg-query": f"echo installed {there}-1",
        }
        return play(
            tmp_path,
            "nvidia_driver",
            "managed",
            programs=programs,
            check=True,
            **{**node(tmp_path), "hardware_facts": told, **kept_files(tmp_path), **options},
        )

    return run


def kept_files(folder):
    """Places in a test's folder for what keep.yml writes."""
    names = ("unattended", "leaving", "noted", "pin")
    return {f"__nvidia_driver_{name}": str(folder / name) for name in names}


def test_a_driver_that_an_owner_installed_is_not_held_nor_called_gpubeds(chosen):
    done = chosen(VERSION, nvidia_driver_may_reboot=False)
    assert done.code == 0, done.said
    assert "Note the version that stays" in done.tasks
    assert "Hold the packages" not in done.tasks
    assert "changed" not in done.tasks.values()


def test_leave_to_reboot_is_asked_for_before_anything_is_changed(chosen, tmp_path):
    console = tmp_path / "sys/module/nouveau/refcnt"
    console.parent.mkdir(parents=True)
    console.write_text("1\n")
    done = chosen(nouveau=True, nvidia_driver_may_reboot=False)
    assert done.code != 0
    assert "node-0 would have to reboot for its driver (nouveau has the GPUs" in done.said
    assert list(done.tasks)[-1] == "Check that a node which will have to reboot may"
    assert "changed" not in done.tasks.values()
    assert not [call for call in done.calls if call.startswith("base.")]


def test_nouveau_and_what_watches_the_gpus_let_go_of_them(tmp_path):
    told = {"driver": {"loaded": None, "nouveau": True}}
    log, watching = tmp_path / "asked", ["nvidia-dcgm.service", "gpubed-health.timer"]
    done = tasks(
        tmp_path,
        "reload",
        programs={
            "systemctl": f"""echo systemctl "$@" >>{log}
            [ $1 != list-units ] || printf '%s loaded active running x\\n' {" ".join(watching)}""",
            "modprobe": f'echo modprobe "$@" >>{log}',
            "nvidia-smi": "exit 1",
        },
        hardware_facts=told,
        nvidia_driver_ignore_jobs=True,  # those of this machine
        __nvidia_driver_wanted=VERSION,
        gpubed_cluster="lab",
    )
    assert done.code == 0, done.said
    asked = [line.split() for line in log.read_text().splitlines()[1:]]
    # A look that is at work ends, too; else it would load the old module again.
    daemons = ["nvidia-persistenced.service", "nvidia-fabricmanager.service"]
    looks = ["gpubed-health.service", "gpubed-metrics.service"]
    assert asked == [
        ["systemctl", "stop", *looks, *watching],
        ["systemctl", "stop", *looks, *daemons],
        ["modprobe", "--remove", "nouveau"],
        ["modprobe", "nvidia"],
        ["systemctl", "start", *watching],
    ]


def test_after_a_kernel_update_the_module_is_built_in_the_next_run(tmp_path):
    built = tmp_path / "built"
    done = tasks(
        tmp_path,
        "stay",
        kept=VERSION,
        programs={
            "dpkg-query": KERNELS,
            "modinfo": f"[ -e {built} ] && echo {VERSION}",
            "dkms": f"touch {built}",
        },
        __nvidia_driver_target=VERSION,
        __nvidia_driver_module_names=["nvidia"],
    )
    assert done.code == 0, done.said
    assert "dkms autoinstall --kernelver 6.1.0-50-amd64" in done.calls
    assert "base.packages linux-headers-6.1.0-50-amd64 linux-headers-amd64" in done.calls


def loaded(folder, error, *, may_reboot=True):
    """Load a new module where modprobe ends with an error."""
    return tasks(
        folder,
        "load",
        programs={"modprobe": f'echo "modprobe: ERROR: {error}" >&2; exit 1', "systemctl": ""},
        hardware_facts={"driver": {"loaded": None, "nouveau": False}},
        nvidia_driver_ignore_jobs=True,
        nvidia_driver_may_reboot=may_reboot,
        gpubed_cluster="lab",
        nvidia_driver_nodes=[],
        __nvidia_driver_wanted=VERSION,
    )


def test_a_module_that_secure_boot_refuses_is_not_rebooted_for(tmp_path):
    why = "Key was rejected by service"
    done = loaded(tmp_path, f"could not insert 'nvidia': {why}")
    assert done.code != 0
    assert why in done.said
    assert "mokutil --import /var/lib/dkms/mok.pub" in done.said
    assert "Say which nodes have to reboot" not in done.tasks


def test_a_reboot_that_is_not_allowed_is_told_with_modprobes_words(tmp_path):
    done = loaded(tmp_path, "could not insert 'nvidia': No such device")
    assert done.code == 0, done.said
    done = loaded(tmp_path, "could not insert 'nvidia': No such device", may_reboot=False)
    assert "has to reboot for driver" in done.said
    assert "No such device" in done.said


@pytest.mark.parametrize(
    ("release", "image"),
    [("debian-12", "amd64"), ("ubuntu-24.04", "generic")],
)
@pytest.mark.parametrize("offered", [True, False])
def test_a_kernel_whose_headers_are_gone_is_told_before_anything_is_changed(
    tmp_path, release, image, offered
):
    """Else apt says that there is no such package, and the role that another driver may do."""
    done = tasks(
        tmp_path,
        "buildable",
        programs={"apt-cache": 'echo "$2 | 1 | there"' if offered else ""},
        release=release,
        gpubed_cluster="lab",
    )
    assert (done.code == 0) == offered, done.said
    assert (f"sudo apt-get install linux-image-{image} && sudo reboot" in done.said) != offered


@pytest.mark.parametrize(
    ("health", "away"),
    [
        ('{"problems": [], "quarantine": null}', True),
        ('{"problems": ["x"], "quarantine": {"reason": "fan is loud"}}', False),
        ("", False),
    ],
)
def test_jobs_are_kept_away_while_a_driver_is_changed(tmp_path, health, away):
    """And a quarantine of another reason is left alone, as is a node that nobody looks at yet."""
    program = f"[ $1 != status ] || printf '%s' '{health}'; [ -n '{health}' ]"
    done = tasks(tmp_path, "apart", programs={"gpubed-health": program})
    assert done.code == 0, done.said
    said = [call for call in done.calls if call.startswith("gpubed-health quarantine")]
    assert bool(said) == away
    if away:
        assert said == ["gpubed-health quarantine its GPU driver is being changed"]


# As Debian 12 and NVIDIA's repository have them beside each other.
@pytest.mark.parametrize("installed", [VERSION, "580.82.07"])
def test_fabric_manager_of_another_version_is_refused(tmp_path, installed):
    done = tasks(
        tmp_path,
        "manager",
        programs={"dpkg-query": f"echo 'installed {installed}-1'"},
        hardware_facts={"driver": {"loaded": VERSION}, "gpus": [{"driver": VERSION, "index": 0}]},
        __nvidia_driver_wanted=VERSION,
        __nvidia_driver_choice=choice(fabric_manager=["node-0"]),
    )
    assert (done.code == 0) == (installed == VERSION)
    assert (f"Fabric Manager is {installed}-1 and the driver {VERSION}" in done.said) == (
        done.code != 0
    )


@pytest.mark.parametrize("mig", [True, None])
def test_gpus_that_are_cut_into_instances_are_refused_by_name(tmp_path, mig):
    """Else containers, Slurm and health would each say something else that is missing."""
    cut = {"driver": VERSION, "index": 1, "mig": mig}
    done = tasks(
        tmp_path,
        "node",
        hardware_facts={"gpus": [{"driver": VERSION, "index": 0, "mig": False}, cut]},
        nvidia_driver_manage="never",
        gpubed_cluster="lab",
    )
    assert (done.code != 0) == (mig is True), done.said
    assert ("MIG is on on GPU 1 of node-0" in done.said) == (mig is True)
    assert ("sudo nvidia-smi -mig 0" in done.said) == (mig is True)
