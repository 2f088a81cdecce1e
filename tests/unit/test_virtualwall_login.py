"""The login PEM and the bastion: what is accepted, what is refused, and that nothing leaks."""

from __future__ import annotations

import pytest

from gpubed.backends.virtualwall import login
from gpubed.backends.virtualwall.config import Bastion, Config
from gpubed.core.errors import PrerequisiteMissing
from gpubed.core.paths import Project
from support.am import pki
from unit.test_virtualwall_documents import BACKEND

USER = "urn:publicid:IDN+ilabt.imec.be+user+alice"


def pem(path, *, user=USER, days=30, passphrase=None):
    identity = pki.issue(pki.root("sa.example"), "alice", urn=user, days=days)
    path.write_text(identity.key_pem(passphrase) + identity.pem)
    return path


def config(path, **changes):
    return Config.model_validate({**BACKEND, "login": str(path), **changes})


def test_a_login_tells_who_we_are(tmp_path):
    found = login.load(config(pem(tmp_path / "l.pem")))
    assert (found.user.name, found.user.authority, found.encrypted) == (
        "alice",
        "ilabt.imec.be",
        False,
    )
    assert found.public_key.startswith("ssh-rsa ")


def test_an_encrypted_key_needs_its_passphrase_from_a_file(tmp_path, monkeypatch):
    path, secret = pem(tmp_path / "l.pem", passphrase="open sesame"), tmp_path / "pass"
    with pytest.raises(PrerequisiteMissing, match="is encrypted"):
        login.load(config(path))
    secret.write_text("wrong\n")
    secret.chmod(0o640)
    with pytest.raises(PrerequisiteMissing, match="can be read by others") as refused:
        login.load(config(path, passphrase_file=str(secret)))
    assert refused.value.hint == f"chmod 600 {secret}"
    secret.chmod(0o600)
    with pytest.raises(PrerequisiteMissing, match="passphrase is wrong") as refused:
        login.load(config(path, passphrase_file=str(secret)))
    assert str(secret) in refused.value.hint
    with pytest.raises(PrerequisiteMissing, match="No such file") as refused:
        login.load(config(path, passphrase_file=str(tmp_path / "nowhere")))
    assert "backend.passphrase_file" in refused.value.hint
    secret.write_text("open sesame\n")
    assert login.load(config(path, passphrase_file=str(secret))).encrypted
    monkeypatch.setenv(login.PASSPHRASE_VARIABLE, str(secret))
    assert login.load(config(path)).encrypted
    login.context(config(path))


@pytest.mark.parametrize(
    "content", [b"", b"hello", b"\x00\xff" * 99, b"-----BEGIN CERTIFICATE-----\n"]
)
def test_what_is_no_login_is_refused(tmp_path, content):
    path = tmp_path / "l.pem"
    path.write_bytes(content)
    with pytest.raises(PrerequisiteMissing, match="holds no"):
        login.load(config(path))
    with pytest.raises(PrerequisiteMissing, match="cannot be read"):
        login.load(config(tmp_path / "absent.pem"))


def test_the_bastions_user_is_prefixed_for_accounts_of_imec_only(tmp_path):
    ours = login.load(config(pem(tmp_path / "l.pem")))
    legacy = login.load(
        config(pem(tmp_path / "m.pem", user=USER.replace("ilabt.imec.be", "wall2.ilabt.iminds.be")))
    )
    assert login.bastion_user(Bastion(), ours) == "fffalice"
    assert login.bastion_user(Bastion(), legacy) == "alice"
    assert login.bastion_user(Bastion(user="bob"), ours) == "bob"


def test_the_bastions_host_key_is_never_learnt_on_first_use(tmp_path, monkeypatch):
    monkeypatch.setattr(login, "KNOWN_HOSTS", tmp_path / "known_hosts")
    with pytest.raises(PrerequisiteMissing, match="is not known"):
        login.host_keys(Bastion())
    key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
    (tmp_path / "known_hosts").write_text(f"bastion.ilabt.imec.be {key}\n[other]:2222 {key}\n")
    assert login.host_keys(Bastion()) == (key,)
    assert login.host_keys(Bastion(host="other", port=2222)) == (key,)
    assert login.host_keys(Bastion(host_keys=("ssh-rsa X",))) == ("ssh-rsa X",)


def test_a_plain_key_is_kept_for_openssh_and_an_encrypted_one_is_left_to_an_agent(
    tmp_path, monkeypatch
):
    cluster = Project(tmp_path).cluster("vw")
    plain = config(pem(tmp_path / "l.pem"), bastion={"host_keys": ["ssh-rsa X"]})
    [hop] = login.hops(plain, login.load(plain), cluster)
    kept = cluster.secrets / "virtualwall-login"
    assert hop.identity == str(kept)
    assert kept.stat().st_mode & 0o777 == 0o600
    kept.unlink()
    (tmp_path / "pass").write_text("s")
    (tmp_path / "pass").chmod(0o600)
    locked = config(
        pem(tmp_path / "m.pem", passphrase="s"),
        bastion={"host_keys": ["ssh-rsa X"]},
        passphrase_file=str(tmp_path / "pass"),
    )
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    with pytest.raises(PrerequisiteMissing, match="not held by an SSH agent"):
        login.require(locked.bastion, login.load(locked))
    [hop] = login.hops(locked, login.load(locked), cluster)
    assert hop.identity == str(tmp_path / "m.pem")
    assert not kept.exists()
