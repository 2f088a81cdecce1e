"""Packages from the cache that nodes share: only what apt's lists have the checksum of.

`apt-get` is a STAND-IN, and apt's archive is a folder of the test.
"""

import hashlib
import os
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

PROGRAM = Path(__file__).parents[2] / "roles/base/files/apt-fetch"
RIGHT, FILE = b"the package", "tool_1_amd64.deb"
# Names the package, or downloads it where the archive lacks it, and says so.
APT = f"""#!/bin/sh
case "$*" in
*--print-uris*) echo "'http://deb/{FILE}' {FILE} 11 SHA256:{hashlib.sha256(RIGHT).hexdigest()}" ;;
*) [ -e archive/{FILE} ] || {{ printf 'the package' > archive/{FILE}; echo fetched; }} ;;
esac
"""


@pytest.fixture
def fetch(tmp_path):
    """A function that fetches the package; returns whether it was downloaded."""
    (tmp_path / "archive/partial").mkdir(parents=True)
    (tmp_path / "cache").mkdir()
    (tmp_path / "apt-get").write_text(APT)
    text = PROGRAM.read_text().replace("archive=/var/cache/apt/archives", "archive=archive")
    (tmp_path / "apt-fetch").write_text(text)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    for program in ("apt-get", "apt-fetch"):
        (tmp_path / program).chmod(0o755)

    def run():
        words = ["apt-fetch", "cache", "10", "tool"]
        done = subprocess.run(
            words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=30
        )
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "archive" / FILE).read_bytes() == RIGHT
        return "fetched" in done.stdout

    return run


def test_what_was_fetched_once_is_there_for_the_next_node(fetch, tmp_path):
    assert fetch()
    assert (tmp_path / "cache" / FILE).read_bytes() == RIGHT
    (tmp_path / "archive" / FILE).unlink()
    assert not fetch()


def test_what_somebody_altered_is_fetched_anew(fetch, tmp_path):
    (tmp_path / "cache" / FILE).write_bytes(b"another one")
    assert fetch()
    assert (tmp_path / "cache" / FILE).read_bytes() == RIGHT
    assert list((tmp_path / "archive/partial").iterdir()) == []


def test_links_of_others_lead_nowhere(fetch, tmp_path):
    """Who may write to the cache has no way to files of a node that looks into it."""
    victim = tmp_path / "shadow"
    victim.write_text("root")
    (tmp_path / "cache/.lock").symlink_to(victim)
    (tmp_path / "cache" / FILE).symlink_to(victim)
    assert fetch()
    assert victim.read_text() == "root"
    assert (tmp_path / "cache" / FILE).read_bytes() == RIGHT


def test_a_link_in_the_caches_own_place_is_refused(fetch, tmp_path):
    victim = tmp_path / "private"
    (tmp_path / "cache").rename(victim)
    (tmp_path / "cache").symlink_to(victim)
    with pytest.raises(AssertionError, match="cache is a link"):
        fetch()
    assert list(victim.iterdir()) == []
