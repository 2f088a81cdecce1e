"""What every backend promises. The tests use one cluster, in this order."""

from __future__ import annotations

from typing import Any

import paramiko
import pytest

from gpubed.cluster import lease_policy
from gpubed.nodes import host_keys
from gpubed.nodes.allocation import Cluster
from gpubed.nodes.ssh import SSH, CommandFailed, HostKeyMismatch
from gpubed.spec import plan

pytestmark = pytest.mark.quick


def test_nodes_are_ready_and_let_us_in(cluster: Any) -> None:
    names = [node.name for node in cluster.plan.nodes]
    assert cluster.testbed.describe(cluster.allocation) == dict.fromkeys(names, "ready")
    for node in cluster.allocation.nodes:
        with SSH(node, cluster.paths) as ssh:
            ssh.wait_ready(30)
            assert ssh.run("hostname").stdout.strip() == node.name
            assert ssh.run("sudo -n id --user").stdout.strip() == "0"


def test_nodes_see_the_same_shared_storage(cluster: Any) -> None:
    head, worker = cluster.allocation.nodes
    with SSH(head, cluster.paths) as one, SSH(worker, cluster.paths) as other:
        one.run("echo seen | sudo tee /shared/contract")
        assert other.run("cat /shared/contract").stdout == "seen\n"


def test_results_are_taken_home_before_the_end(cluster: Any) -> None:
    def leave(command: str) -> list[str]:
        ending = lease.model_copy(
            update={"before_end": lease.before_end.model_copy(update={"command": command})}
        )
        spec = cluster.plan.spec.model_copy(update={"lease": ending})
        wanted = plan.plan(spec)
        return lease_policy.prepare(Cluster(cluster.paths, wanted, cluster.allocation))

    lease, home = cluster.plan.spec.lease, cluster.paths.runs / "train" / "metrics.json"
    run = "/shared/runs/train"
    save = f"sudo mkdir -p {run} && echo '{{}}' | sudo tee {run}/metrics.json"
    assert leave(save)[1] == f"collected 1 run(s) into {cluster.paths.runs}"
    assert home.read_text() == "{}\n"
    assert leave("true")[1].startswith("collected 0 run(s)")
    home.unlink()
    with pytest.raises(CommandFailed):
        leave("false")
    assert home.exists()


def test_host_keys_are_what_the_node_presents(cluster: Any) -> None:
    for node in cluster.allocation.nodes:
        host_keys.prove(node.control_address, node.host_keys, node.port, timeout=5)
    keys = {key for node in cluster.allocation.nodes for key in node.host_keys}
    assert len(keys) == len(cluster.allocation.nodes)


def test_another_host_key_is_refused(cluster: Any) -> None:
    key = paramiko.ECDSAKey.generate()
    head, worker = cluster.allocation.nodes
    for wrong in (worker.host_keys, (f"{key.get_name()} {key.get_base64()}",)):
        impostor = head.model_copy(update={"host_keys": wrong})
        with SSH(impostor, cluster.paths) as ssh, pytest.raises(HostKeyMismatch):
            ssh.wait_ready(30)


def test_files_travel_both_ways(cluster: Any, tmp_path: Any) -> None:
    sent = tmp_path / "sent"
    (sent / "inner").mkdir(parents=True)
    (sent / "inner" / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (sent / "inner" / "run.sh").chmod(0o755)
    with SSH(cluster.allocation, cluster.paths) as ssh:
        ssh.put(sent, "/tmp/sent")
        assert ssh.run("/tmp/sent/inner/run.sh").stdout == "ran\n"
        ssh.write("/tmp/sent/secret", "s", 0o600)
        ssh.get("/tmp/sent", tmp_path / "got")
    assert (tmp_path / "got/inner/run.sh").read_text().endswith("echo ran\n")
    assert (tmp_path / "got/secret").stat().st_mode & 0o777 == 0o600


def test_create_after_a_crash_adopts(cluster: Any) -> None:
    for made in cluster.made:
        before = (made.id, made.result)
        cluster.create(made)
        assert (made.id, made.result) == before


def test_read_answers_what_create_did(cluster: Any) -> None:
    for made in cluster.made:
        assert cluster.read(made) == made.result


def test_nothing_changed_is_no_change(cluster: Any) -> None:
    for made in cluster.made:
        change = cluster.testbed.driver(made.kind).diff(made.result, made.inputs, made.inputs)
        assert not [*change.replace, *change.update]


def test_what_was_deleted_is_missing_and_comes_back_as_another(cluster: Any) -> None:
    made = cluster.holder("node-1")
    before = made.id, made.result
    cluster.delete(made)
    cluster.delete(made)
    assert cluster.read(made) is None
    left = {"node-0": "ready"} if made.kind == "node" else {"node-0": "missing"}
    assert cluster.testbed.describe(cluster.allocation) == left | {"node-1": "missing"}
    cluster.create(made)
    assert (made.id, made.result) != before


def test_everything_made_carries_the_id(cluster: Any) -> None:
    assert len(cluster.existing()) == len(cluster.owned)


def test_what_exists_is_known_by_the_ids_of_the_state(cluster: Any) -> None:
    assert {thing.id for thing in cluster.existing()} == {made.id for made in cluster.owned}


def test_what_exists_can_be_removed_without_a_state(cluster: Any) -> None:
    holder = cluster.holder("node-1")
    [thing] = [thing for thing in cluster.existing() if thing.id == holder.id]
    cluster.testbed.remove(thing)
    cluster.testbed.remove(thing)
    assert thing not in cluster.existing()
    cluster.create(holder)


def test_deleting_leaves_nothing(cluster: Any) -> None:
    cluster.down()
    cluster.down()
    assert cluster.existing() == []
    assert {cluster.read(made) for made in cluster.made if "uuid" in made.inputs} == {None}
