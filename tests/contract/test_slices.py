"""SLICES through its command, for which a STAND-IN stands; its machines are real nodes.

The verbs are those of docs/how-to/slices.md.
"""

import json
import os
import signal
import subprocess
import time

import pytest

from support import cluster as clusters
from support.slices import CONTROL, FLAVOR, INFRA, PROJECT, Site


class Cluster(clusters.Cluster):
    """A cluster of two bare nodes whose user has the command on PATH."""

    def __init__(self, root, name, site, **backend):
        self.site = site
        super().__init__(root, name)
        options = {"type": "slices", "project": PROJECT, "infra": INFRA, "flavor": FLAVOR}
        own = {"key": str(site.key), "known_hosts": str(site.known_hosts)}
        self.write(
            {
                "version": 1,
                "backend": options | own | backend,
                "nodes": [{"count": 2, "image": "ubuntu-24.04"}],
                "networks": {"control": {"subnet": CONTROL}},
                "lease": {"duration": "6 h"},
                "configure": False,
            }
        )

    @property
    def environment(self):
        known = super().environment
        return {**known, "PATH": f"{self.site.bin}{os.pathsep}{known['PATH']}"}


@pytest.fixture
def site(tmp_path):
    return Site.made(tmp_path / "site")


def said(done):
    return " ".join((done.stdout + done.stderr).split())


@pytest.mark.quick
@pytest.mark.parametrize(
    ("option", "given", "says", "helps"),
    [
        ("project", "horovd-lab", "did you mean 'horovod-lab'?", "project list"),
        ("infra", "be-gent1-bi-vm2", f"did you mean {INFRA!r}?", "slices bi infra list"),
        ("flavor", "mediun", "no flavor 'mediun': did you mean 'medium'?", "slices bi flavor list"),
    ],
)
def test_a_name_that_slices_does_not_list_is_told_before_anything_is_made(
    site, tmp_path, option, given, says, helps
):
    made = Cluster(tmp_path / "project", "bad", site, **{option: given})
    for verb, rc in (("plan", None), ("doctor", None), ("up", 3)):
        told = said(made.call(verb, *(["-y"] if verb == "up" else []), rc=rc))
        assert says in told, verb
        assert helps in told, verb
    assert site.machines == {}


@pytest.mark.quick
def test_a_missing_command_and_a_missing_login_are_told_with_the_way_out(site, tmp_path):
    made = Cluster(tmp_path / "project", "bad", site)
    site.token.unlink()
    told = said(made.call("up", "-y", rc=3))
    assert "slices is not logged in" in told
    assert "slices auth login" in told
    (site.bin / "slices").unlink()
    told = said(made.call("up", "-y", rc=3))
    assert "there is no command `slices` here" in told
    assert "https://doc.slices-ri.eu" in told


@pytest.mark.quick
def test_what_slices_cannot_give_is_refused_by_check(site, tmp_path):
    made = Cluster(tmp_path / "project", "bad", site, flavors={"head": FLAVOR})
    made.edit(lambda spec: spec["nodes"][0].pop("image"))
    made.edit(lambda spec: spec.update(networks={"experiment": {"rate": "1 Gbit/s"}}))
    errors = made.json("check", rc=2)["errors"]
    assert {error["path"] for error in errors} == {
        "backend.flavors.head",
        "nodes.0.image",
        "networks.experiment",
    }


@pytest.mark.testbeds
@pytest.mark.docker
def test_a_cluster_lives_through_kill_loss_and_renewal_and_leaves_nothing(tmp_path):
    site = Site.made(tmp_path / "site", boots_s=8.0)
    name = clusters.unique("bi")
    made = Cluster(tmp_path / "project", name, site)
    try:
        site.open()
        _live(made, site)
    finally:
        subprocess.run(
            [str(clusters.BIN / "gpubed"), "down", name, "-y"], env=made.environment, check=False
        )
        site.close()


def _live(made, site):
    made.call("check")
    made.call("plan")

    killed = made.start("up", made.name, "-y", stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
    while not site.machines:
        assert killed.poll() is None
        time.sleep(0.1)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    first = set(site.machines)
    known = site.known_hosts.read_text()
    site.known_hosts.unlink()
    refused = made.call("up", "-y", rc=None)
    assert refused.returncode
    assert "the host key of the bastion" in said(refused)
    site.known_hosts.write_text(known)
    up = made.json("up", "-y")
    assert [node["state"] for node in up["nodes"]] == ["ready", "ready"]
    lent = site.machines
    assert len(lent) == 2
    assert first <= lent.keys(), "what the killed run asked for is not adopted"
    assert len(site.state["machines"]) == 2, "a machine was asked for twice"
    for node in ("node-0", "node-1"):  # through the bastion, with proven host keys
        assert made.node(node, "hostname; sudo -n id -u").split() == [node, "0"]
    assert made.json("up", "-y")["nodes"] == up["nodes"]

    [lost] = [one for one in lent if one.endswith("-node-1")]
    site.lose(lost)
    states = {node["name"]: node["state"] for node in made.json("status", rc=None)["nodes"]}
    assert states == {"node-0": "ready", "node-1": "missing"}
    again = made.json("up", "-y")["nodes"]
    stays = [node["id"] == former["id"] for node, former in zip(again, up["nodes"], strict=True)]
    assert stays == [True, False]
    assert made.node("node-1", "hostname") == "node-1\n"

    before = made.json("status")["lease"]["remaining_s"]
    assert 5 * 3600 < before <= 6 * 3600
    made.call("renew", "--for", "10h")
    after = made.json("status")["lease"]["remaining_s"]
    assert 9.9 * 3600 < after <= 11 * 3600
    ends = [one["expires_at"] for one in site.machines.values()]
    assert max(ends) <= min(site.state["experiments"].values())

    state = "".join(path.read_text() for path in (made.root / ".pulumi").rglob("*.json"))
    assert "PRIVATE KEY" not in state + json.dumps(site.state)
    made.edit(lambda spec: spec["backend"].update(flavor="mediun"))
    assert "did you mean 'medium'?" in said(made.call("up", "-y", rc=None))
    assert len(site.machines) == 2
    site.token.rename(site.folder / "kept")
    assert "slices auth login" in said(made.call("down", "-y", rc=None))
    (site.folder / "kept").rename(site.token)
    assert len(site.machines) == 2
    made.call("down", "-y")
    assert site.machines == {}
