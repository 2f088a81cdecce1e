"""The identity and the key that every cluster has, as the program declares them."""

from types import SimpleNamespace

import pulumi
import pytest

from gpubed.cluster import drivers
from gpubed.core import secret
from gpubed.core.paths import Project
from support.declared import mocked


class Preview(pulumi.runtime.Mocks):
    """Answers as a preview does: nothing is known of what is yet to be made."""

    def new_resource(self, args):
        return args.name, {**args.inputs, "result": pulumi.UNKNOWN}

    def call(self, args):
        raise NotImplementedError(args.token)


@pytest.fixture
def preview(tmp_path, monkeypatch):
    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))
    with mocked(Preview()) as mocks:
        pulumi.runtime.set_mocks(mocks, preview=True)
        yield Project.find().cluster("lab")


def known_key():
    """Return what a preview knows of the public key."""
    resolved = []

    @pulumi.runtime.test
    def program():
        declared = drivers.identity(SimpleNamespace(cluster="lab"))
        return declared["public_key"].apply(resolved.append)

    program()
    return resolved


def test_a_key_that_is_there_is_known_before_its_resource_is_made(preview):
    """After an upgrade the resource is new, and would seem to replace every server."""
    public = secret.ensure_key(preview.private_key)
    assert known_key() == [public]


def test_a_key_that_is_yet_to_be_made_is_not_known(preview):
    assert known_key() == []
    assert not preview.private_key.exists()
