"""What a specification can say about Slurm."""

import pytest
from pydantic import ValidationError

from gpubed.spec.slurm import Slurm, SlurmUser


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
