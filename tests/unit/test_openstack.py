"""The OpenStack backend's smaller parts: specification, user data, keys, engine, state."""

from __future__ import annotations

import email
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpubed.backends.openstack import capacity, cloud, cloud_init
from gpubed.core import secret
from gpubed.core.errors import GpubedError, PrerequisiteMissing
from gpubed.core.paths import Project
from gpubed.nodes import allocation
from gpubed.spec import backend_config, clusterspec, plan
from gpubed.testbeds import registry, specification
from support.samples import granted_cluster, sample_plan

BACKEND: dict[str, Any] = {
    "type": "openstack",
    "external_network": "public",
    "flavor": "m1.tiny",
    "access_from": ["198.51.100.0/24"],
}


class TestSpecification:
    def errors(self, folder: Path, text: str = "", **backend: Any) -> list[str]:
        path = folder / "cloudy" / "cluster.yml"
        path.parent.mkdir()
        document = {
            "version": 1,
            "backend": {**BACKEND, **backend},
            "nodes": [{"count": 2}],
        }
        path.write_text(yaml.safe_dump(document, sort_keys=False) + text)
        return [str(error).split("cluster.yml:", 1)[1] for error in specification.check(path)[1]]

    def test_nothing_but_what_is_needed_is_required(self, tmp_path: Path) -> None:
        assert self.errors(tmp_path) == []

    @pytest.mark.parametrize(
        ("backend", "says"),
        [
            ({"access_from": []}, "6: backend.access_from"),
            (
                {"groups": {"gpu": {"flavor": "g1"}}},
                "9: backend.groups.gpu: there is no node group 'gpu' (groups: node)",
            ),
        ],
    )
    def test_an_option_that_is_wrong_is_named_with_its_line(
        self, tmp_path: Path, backend: dict[str, Any], says: str
    ) -> None:
        (error,) = self.errors(tmp_path, **backend)
        assert error.startswith(says)

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("networks: {experiment: {rate: 1 Gbit/s, latency: 5 ms}}", "cannot set latency"),
            ("networks: {experiment: {rate: 1 Gbit/s, loss: 0.1}}", "cannot set loss"),
            ("storage: {shared: {provider: volume}}", "mounts no volume on several nodes"),
        ],
    )
    def test_what_no_cloud_can_do_is_refused(self, tmp_path: Path, text: str, words: str) -> None:
        (error,) = self.errors(tmp_path, text)
        assert words in error

    @pytest.mark.parametrize(
        ("backend", "text", "words"),
        [
            ({"external_network": None}, "", "needed for a floating address and for a new router"),
            (
                {"external_network": None, "floating_ip": False},
                "",
                "with control.network or router",
            ),
            (
                {"experiment": {"network": "fabric"}},
                "",
                "backend.experiment: there is no experiment network",
            ),
            (
                {"control": {"network": "lab"}},
                "networks: {control: {subnet: 10.9.0.0/24}}",
                "networks.control.subnet: network lab has its own",
            ),
            ({"control": {"subnet": "lab-v4"}}, "", "none is named (backend.control.network)"),
            (
                {"control": {"network": "lab"}, "dns": ["192.0.2.53"]},
                "",
                "backend.dns: network lab",
            ),
            (
                {"experiment": {"vnic_type": "baremetal"}},
                "networks: {experiment: {rate: 1 Gbit/s}}",
                "limits ports of bare metal",
            ),
            ({"metadata": {"gpubed.name": "x"}}, "", "keys that begin with gpubed. are reserved"),
            ({"user_data": "/no/such.yml"}, "", "/no/such.yml"),
            ({"user_data": "/etc/hostname"}, "", "no format of cloud-init"),
        ],
    )
    def test_what_contradicts_itself_is_named_with_the_way_out(
        self, tmp_path: Path, backend: dict[str, Any], text: str, words: str
    ) -> None:
        (error,) = self.errors(tmp_path, text, **backend)
        assert words in error

    @pytest.mark.parametrize(
        "backend",
        [
            {"external_network": None, "floating_ip": False, "control": {"network": "lab"}},
            {"external_network": None, "floating_ip": "203.0.113.7", "router": "out"},
        ],
    )
    def test_no_external_network_is_needed_where_nothing_leads_there(
        self, tmp_path: Path, backend: dict[str, Any]
    ) -> None:
        assert self.errors(tmp_path, **backend) == []

    def test_the_template_is_right_once_it_says_who_may_come_in(self, tmp_path: Path) -> None:
        template = backend_config.template("openstack")
        path = tmp_path / "cloudy" / "cluster.yml"
        path.parent.mkdir()
        path.write_text(template.read_text().replace("192.0.2.0/24", "198.51.100.0/24"))
        assert specification.check(path)[1] == []


def test_user_data_let_in_the_clusters_key_alone_and_close_the_metadata_service() -> None:
    text = cloud_init.user_data("node-0", "ssh-ed25519 K", "PRIVATE\nKEY\n", "ssh-ed25519 H")
    assert text.startswith("#cloud-config\n")
    config = yaml.safe_load(text)
    (user,) = config["users"]
    assert (user["name"], user["ssh_authorized_keys"]) == ("gpubed", ["ssh-ed25519 K"])
    assert (user["lock_passwd"], config["ssh_pwauth"]) == (True, False)
    assert config["ssh_deletekeys"] is True
    assert config["ssh_keys"] == {
        "ed25519_private": "PRIVATE\nKEY\n",
        "ed25519_public": "ssh-ed25519 H",
    }
    (unit,), (command,) = config["write_files"], config["runcmd"]
    assert "prohibit 169.254.169.254" in unit["content"]
    assert unit["path"].endswith(command[-1])
    assert "--no-block" in command, "cloud-init would wait for itself"


def test_a_plan_has_the_subnets_that_existing_networks_were_found_with(tmp_path: Path) -> None:
    """The cloud chose the addresses, and more nodes than the subnet would have planned ones for."""
    cluster = granted_cluster(tmp_path, "cloudy")
    there = allocation.load(cluster.allocation)
    known = there.experiment.model_copy(update={"subnet": "198.51.100.0/28"})
    granted = there.model_copy(update={"backend": "openstack", "experiment": known})
    cluster.allocation.write_text(granted.model_dump_json())
    backend = registry.backend("openstack")
    wanted = {**BACKEND, "experiment": {"network": "fabric"}}
    document = {"version": 1, "name": "cloudy", "backend": wanted, "nodes": [{"count": 40}]}
    document["networks"] = {"experiment": {"rate": "1 Gbit/s"}}
    spec = clusterspec.model().model_validate(document)
    planned = plan.plan(spec, backend.surroundings(spec, cluster))
    assert str(planned.experiment.subnet) == "198.51.100.0/28"
    assert backend.foretold(planned, planned.nodes[0]) == {}, "the allocation's address stays"


def test_own_user_data_are_a_part_beside_gpubeds_own() -> None:
    """What cloud-init makes of both: `tests/node/test_cloud_init.py`."""
    keys = ("ssh-ed25519 K", "PRIVATE\n", "ssh-ed25519 H")
    text = cloud_init.user_data("node-0", *keys, own="#!/bin/sh\necho é\n")
    assert text == cloud_init.user_data("node-0", *keys, own="#!/bin/sh\necho é\n")
    ours, theirs = email.message_from_string(text).get_payload()
    assert ours.get_payload(decode=True).decode() == cloud_init.user_data("node-0", *keys)
    assert theirs.get_payload(decode=True).decode() == "#!/bin/sh\necho é\n"
    assert "no_replace" in theirs["Merge-Type"], "gpubed's values stand"


INPUTS = {"cluster": "cloudy", "uuid": "u", "name": "node-0"}


def test_a_host_key_stays_in_its_file_and_its_loss_replaces_the_node(tmp_path: Path) -> None:
    cluster = Project(tmp_path).cluster("cloudy")
    driver = cloud_init.HostKeyDriver(cluster)
    id_, result = driver.create(INPUTS)
    path = cloud_init.key_path(cluster, "node-0")
    assert path.stat().st_mode & 0o777 == 0o600
    assert result == {"public": secret.public_key(path)}
    assert "PRIVATE" not in f"{id_}{result}"
    assert driver.create(INPUTS)[1] == driver.read("", INPUTS) == result
    assert driver.diff(result, INPUTS, INPUTS).replace == []
    driver.delete("", INPUTS)
    assert driver.read("", INPUTS) is None
    assert driver.diff(result, INPUTS, INPUTS).replace == ["public"]


def test_a_certificate_is_always_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    auth = {"auth_url": "https://192.0.2.1:5000/v3", "username": "u", "password": "p"}
    auth |= dict.fromkeys(("project_name", "user_domain_name", "project_domain_name"), "d")
    path = tmp_path / "clouds.yaml"
    path.write_text(yaml.safe_dump({"clouds": {"mycloud": {"auth": auth, "verify": False}}}))
    monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(path))
    cloud.connect.cache_clear()
    with pytest.raises(PrerequisiteMissing, match="verify: false"):
        cloud.connect("mycloud", None)


class TestAddresses:
    """Pulumi removes last what is wanted no more, and a cloud gives no address twice."""

    @pytest.fixture
    def obstacles(self, tmp_path: Path) -> Any:
        cluster = granted_cluster(tmp_path, "cloudy")
        control = {"control": {"subnet": str(sample_plan().control.subnet)}}

        def of(*groups: dict[str, Any], **networks: Any) -> list[str]:
            document = {"version": 1, "name": "cloudy", "backend": BACKEND, "nodes": list(groups)}
            wanted = clusterspec.model().model_validate(
                {**document, "networks": {**control, **networks}}
            )
            return [found.message for found in capacity.moved(plan.plan(wanted), cluster)]

        return of

    def test_only_a_group_of_another_name_would_take_one(self, obstacles: Any) -> None:
        assert obstacles({"count": 3}) == obstacles({"count": 1}) == []
        assert obstacles({"count": 5}, {"name": "more", "count": 2}) == []
        (message,) = obstacles({"name": "other", "count": 2})
        assert "other-0 would get the address of node-0" in message
        elsewhere = {"control": {"subnet": "10.99.0.0/24"}}
        assert obstacles({"name": "other", "count": 2}, **elsewhere) == []


def test_the_embedded_engine_is_refused_by_name() -> None:
    backend = registry.backend("openstack")
    backend.require_engine("cli")
    with pytest.raises(PrerequisiteMissing, match="needs Pulumi's CLI") as error:
        backend.require_engine("embedded")
    assert "doctor" in str(error.value.hint)
    registry.backend("local").require_engine("embedded")


@pytest.mark.parametrize(
    ("answer", "option", "way"),
    [
        ("Requested MTU is too big, maximum is 1442.", "networks.experiment.mtu", "mtu: 1442"),
        ("(rule:create_policy and rule:x) is disallowed by policy", "QoS", "shaping: none"),
        ("rule:create_policy_bandwidth_limit_rule is disallowed by policy", "QoS", "shaping: none"),
        ("Can not find requested image", "the image", "backend.images"),
    ],
)
def test_a_refusal_of_the_cloud_is_told_by_its_option(answer: str, option: str, way: str) -> None:
    found = registry.backend("openstack").explained(GpubedError(f"400 instead: {answer}"))
    assert option in str(found)
    assert way in str(found and found.hint)
