"""`make audit` finds what it is for."""

import subprocess

import pytest

from audit import __main__ as audit

pytestmark = pytest.mark.process

pytest.importorskip("detect_secrets", reason="make setup installs what looks for secrets")

# In two parts, so that this file has none.
KEY = "-----BEGIN OPENSSH " + "PRIVATE KEY-----"
TOKEN = "token = " + repr("5d41402abc4b2a76b9719d911017c5925d41402abc4b2a76")


def commit(root, name, text):
    (root / name).write_text(f"{text}\n")
    subprocess.run(["git", "-C", str(root), "add", name], check=True)


@pytest.fixture
def checkout(tmp_path):
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    commit(tmp_path, "fine.py", "answer = 42")
    audit.write_baseline(tmp_path)
    return tmp_path


@pytest.mark.parametrize("text", [KEY, TOKEN])
def test_a_secret_is_found_once_it_is_there(checkout, text):
    assert audit.secrets(checkout) == []
    commit(checkout, "notes.py", text)
    (found,) = audit.secrets(checkout)
    assert found.startswith("notes.py:1: ")


def test_what_the_baseline_has_is_known_wherever_it_moves(checkout):
    commit(checkout, "notes.py", KEY)
    audit.write_baseline(checkout)
    commit(checkout, "notes.py", f"# moved\n{KEY}")
    assert audit.secrets(checkout) == []
