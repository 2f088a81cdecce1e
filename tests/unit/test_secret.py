"""Secrets are made once, and are private."""

import stat

from gpubed.core import secret


def test_a_token_is_made_once_and_private(tmp_path):
    path = tmp_path / "secrets" / "token"
    secret.ensure_token(path)
    first = path.read_text()
    secret.ensure_token(path)
    assert path.read_text() == first
    assert len(first) == 64
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_key_pair_is_made_once_and_its_public_half_is_stable(tmp_path):
    path = tmp_path / "secrets" / "id_ed25519"
    assert secret.public_key(path) == ""
    public = secret.ensure_key(path)
    assert public.startswith("ssh-ed25519 ")
    assert secret.ensure_key(path) == public
