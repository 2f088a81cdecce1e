"""The user's known_hosts is read as OpenSSH reads it; `ssh-keygen -F` says what that is."""

import base64
import hmac
import shutil
import subprocess

import pytest

from gpubed.backends.static import access
from gpubed.backends.static.config import Config, Host
from gpubed.core.errors import PrerequisiteMissing
from gpubed.nodes import known_hosts

pytestmark = pytest.mark.process


def key(number):
    blob = b"\0\0\0\x0bssh-ed25519\0\0\0\x20" + bytes([number]) * 32
    return f"ssh-ed25519 {base64.b64encode(blob).decode()}"


A, B = key(1), key(2)
NAME = "node.lab"


def hashed(name):
    salt = b"s" * 20
    digest = hmac.digest(salt, name.encode(), "sha1")
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"


@pytest.fixture
def known(tmp_path):
    path = tmp_path / "known_hosts"

    def keys(*lines, address=NAME, port=22):
        path.write_text("".join(f"{line}\n" for line in lines))
        return known_hosts.keys(path, address, port)

    keys.path = path
    return keys


# What may stand for the host, and whether it does.
HOSTS = {
    NAME: True,
    "other.lab": False,
    f"other.lab,{NAME}": True,
    "NODE.lab": True,
    "*": True,
    "*.lab": True,
    "nod?.lab": True,
    "node.la?b": False,
    "nodexlab": False,
    "[n]ode.lab": False,
    "n*e.l?b": True,
    "n**.*": True,
    "*node.lab*": True,
    "*?.lab": True,
    "node*node.lab": False,
    "*lab*lab": False,
    "*.?.*": False,
    f"*,!{NAME}": False,
    f"!{NAME},*": False,
    "*.lab,!node*": False,
    "*.lab,!other.lab": True,
    "!other.lab": False,
    hashed(NAME): True,
    hashed("other.lab"): False,
}


@pytest.mark.parametrize(("hosts", "is_it"), HOSTS.items(), ids=list(HOSTS))
def test_patterns_stand_for_hosts_and_exclude_them(known, hosts, is_it):
    assert known(f"{hosts} {A}") == ((A,) if is_it else ())
    if shutil.which("ssh-keygen"):
        told = subprocess.run(
            ["ssh-keygen", "-F", NAME, "-f", known.path], capture_output=True, check=False
        )
        assert (told.returncode == 0) == is_it


def test_a_pattern_of_many_stars_comes_to_an_end(known):
    """Every way of sharing a name among stars is more than anybody has time for."""
    assert known(f"{'*a' * 40}b {A}", address="a" * 250) == ()
    assert known(f"{'*a' * 40}* {A}", address="a" * 250) == (A,)


def test_a_line_may_be_indented_and_use_tabs(known):
    assert known(f"  {NAME}\t{A.replace(' ', '  ')}  a comment") == (A,)
    assert known(f"# {NAME} {A}", f"#{NAME} {A}") == ()


@pytest.mark.parametrize("hosts", [NAME, "*", hashed(NAME), f"!other,{NAME}"])
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


def test_a_marker_that_nobody_knows_makes_a_line_void(known):
    assert known(f"@trusted {NAME} {A}") == ()


def config_of(known):
    return Config.model_validate(
        {"type": "static", "user": "me", "known_hosts": str(known.path), "hosts": {}}
    )


def test_a_host_whose_keys_are_revoked_is_refused_in_words(known):
    known(f"{NAME} {A}", f"@revoked * {A}")
    with pytest.raises(PrerequisiteMissing, match=r"has no host key of node\.lab that is not rev"):
        access.known_keys(config_of(known), NAME, 22)


def test_what_a_host_says_of_itself_brings_no_revoked_key_back(known):
    known(f"{NAME} {B}", f"@revoked {NAME} {A}")
    assert access.trusted(config_of(known), Host(address=NAME), [A, B]) == [B]
