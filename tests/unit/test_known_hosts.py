"""Which keys of the user's known_hosts are trusted: `ssh-keygen -F` reads it."""

import base64

import pytest

from gpubed.backends.static import access
from gpubed.backends.static.config import Config
from gpubed.core.errors import PrerequisiteMissing
from gpubed.nodes import host_keys

pytestmark = pytest.mark.process


def key(number):
    blob = b"\0\0\0\x0bssh-ed25519\0\0\0\x20" + bytes([number]) * 32
    return f"ssh-ed25519 {base64.b64encode(blob).decode()}"


A, B = key(1), key(2)
NAME = "node.lab"
HASHED = "|1|c3Nzc3Nzc3Nzc3Nzc3Nzc3Nzc3M=|iXpnD9hVgdJceCFtKvDzUyAzMWg="


@pytest.fixture
def known(tmp_path):
    path = tmp_path / "known_hosts"

    def keys(*lines, address=NAME, port=22):
        path.write_text("".join(f"{line}\n" for line in lines))
        return host_keys.keys(path, address, port)

    keys.path = path
    return keys


@pytest.mark.parametrize(
    ("hosts", "is_it"),
    [
        ("NODE.lab", True),
        ("other.lab", False),
        ("*.lab,!other.lab", True),
        (f"*,!{NAME}", False),
        (HASHED, True),
    ],
)
def test_names_patterns_and_hashes_stand_for_hosts(known, hosts, is_it):
    assert known(f"{hosts} {A}", f"# {NAME} {B}") == ((A,) if is_it else ())


@pytest.mark.parametrize("hosts", [NAME, "*", HASHED, f"!other,{NAME}"])
def test_a_revoked_key_is_refused_wherever_else_it_stands(known, hosts):
    revoked = f"@revoked {hosts} {A}"
    assert known(f"{NAME} {A}", revoked) == ()
    assert known(revoked, f"{NAME} {A}") == ()
    assert known(revoked, f"{NAME} {A}", f"{NAME} {B}") == (B,), "another one may be its new key"


def test_it_is_refused_of_the_hosts_it_is_revoked_for(known):
    assert known(f"@revoked other.lab {A}", f"{NAME} {A}") == (A,)
    assert known(f"@revoked *,!{NAME} {A}", f"{NAME} {A}") == (A,)
    at_port = f"[{NAME}]:2222 {A}"
    assert known(at_port, port=2222) == (A,)
    assert known(f"@revoked [{NAME}]:2222 {A}", at_port, port=2222) == ()
    assert known(f"@revoked {NAME} {A}", at_port, port=2222) == ()


def test_an_authority_is_no_host_key(known):
    assert known(f"@cert-authority {NAME} {A}", f"@cert-authority * {B}") == ()
    assert known(f"@cert-authority {NAME} {A}", f"{NAME} {B}") == (B,)


def config_of(known):
    return Config.model_validate(
        {"type": "static", "user": "me", "known_hosts": str(known.path), "hosts": {}}
    )


def test_a_host_whose_keys_are_revoked_is_refused_in_words(known):
    known(f"{NAME} {A}", f"@revoked * {A}")
    with pytest.raises(PrerequisiteMissing, match=r"has no host key of node\.lab that is not rev"):
        access.known_keys(config_of(known), NAME, 22)
