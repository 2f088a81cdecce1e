"""What `make exposure` makes of what ssh-audit says; there is no server here."""

import pytest

from exposure.__main__ import KINDS, judged

OLD = "does not provide protection against post-quantum attacks"


def audit(name, **notes):
    return {kind: [] for kind in KINDS} | {"kex": [{"algorithm": name, "notes": notes}]}


@pytest.mark.parametrize(
    ("name", "notes", "wrong"),
    [
        ("sntrup761x25519-sha512", {"info": ["available since OpenSSH 8.5"]}, []),
        ("curve25519-sha256", {"warn": [OLD]}, []),
        ("curve25519-sha256", {"warn": ["it is broken"]}, ["warn: it is broken"]),
        ("ecdh-sha2-nistp256", {"warn": [OLD]}, [f"warn: {OLD}"]),
        ("diffie-hellman-group1-sha1", {"fail": ["it is broken"]}, ["fail: it is broken"]),
    ],
)
def test_whatever_is_above_info_is_wrong_unless_it_is_known_why_it_stays(name, notes, wrong):
    rows, found = judged(audit(name, **notes))
    assert found == [f"SSH: {name}: {text}" for text in wrong]
    [(what, shown, said)] = rows
    assert (what, shown) == ("key exchange", name)
    assert ("paramiko" in said) is (OLD in str(notes) and not wrong)
