"""What a specification can say about Slurm."""

import pytest
from pydantic import ValidationError

from gpubed.spec.slurm import Slurm, SlurmUser
from gpubed.testbeds import specification

HEAD = """version: 1
backend: {type: local}
nodes: [{count: 1, machine: {cpus: 1, memory: 1 GiB}}]
services:
"""


def test_a_number_comes_from_the_name_and_stays() -> None:
    """The same name has the same number in every specification."""
    assert SlurmUser(name="alice").uid == SlurmUser(name="alice", share=5).uid == 30207
    assert SlurmUser(name="alice", uid=20001).uid == 20001


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({"users": [{"name": "alice"}, {"name": "alice"}]}, "two users are named 'alice'"),
        (
            {"users": [{"name": "alice", "uid": 20001}, {"name": "bob", "uid": 20001}]},
            "two users have the uid 20001",
        ),
        ({"partitions": []}, "at least one partition"),
        ({"partitions": [{"name": "a"}, {"name": "a"}]}, "two partitions are named 'a'"),
        ({"users": [{"name": "alice", "ssh_keys": ["a\nb"]}]}, "String should match"),
        ({"users": [{"name": "root", "uid": 0}]}, "greater than or equal to 10000"),
    ],
)
def test_what_cannot_work_is_refused(document: dict[str, object], says: str) -> None:
    """The message says what is wrong."""
    with pytest.raises(ValidationError, match=says):
        Slurm.model_validate(document)


NAMES = ("root", "jupyter", "slurm", "gpubed", "munge", "mysql", "docker", "www-data")


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_nodes_have_themselves_is_refused_with_line_and_remedy(tmp_path, name):
    """Else `up` would find it taken, or worse, give a researcher the account of a service."""
    path = tmp_path / "lab" / "cluster.yml"
    path.parent.mkdir()
    path.write_text(HEAD + f"  slurm:\n    users:\n      - name: alice\n      - name: {name}\n")
    _, errors = specification.check(path)
    assert [(error.line, error.path) for error in errors] == [(8, "services.slurm.users.1.name")]
    assert f"a user or group {name!r} of their own: choose another name" in errors[0].message


def test_a_wrong_key_is_told_with_its_user_and_an_example(tmp_path):
    """The pattern that it does not match tells nobody anything."""
    path = tmp_path / "lab" / "cluster.yml"
    path.parent.mkdir()
    path.write_text(HEAD + "  slurm:\n    users:\n      - {name: alice, ssh_keys: [id_ed25519]}\n")
    _, (error,) = specification.check(path)
    assert (error.line, error.path) == (7, "services.slurm.users.0.ssh_keys.0")
    assert error.message.startswith("user 'alice': must be a public key")
    assert "ssh-ed25519 AAAA" in error.message


@pytest.mark.parametrize(
    ("services", "words"),
    [
        ("  hub: {}\n", "hub needs slurm"),
        ("  slurm: {}\n  hub: {admins: [eve]}\n", "hub.admins: 'eve' is not one of slurm.users"),
    ],
)
def test_a_hub_needs_researchers(tmp_path, services, words):
    """Who logs in, and where servers run, is Slurm's."""
    path = tmp_path / "lab" / "cluster.yml"
    path.parent.mkdir()
    path.write_text(HEAD + services)
    _, (error,) = specification.check(path)
    assert words in error.message
