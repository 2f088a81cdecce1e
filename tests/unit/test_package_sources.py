"""Role base leaves package sources that are there as they are: apt reads nothing at all where
two of them name one repository and different keys. Its packages and apt are STAND-INS, but
where apt itself says what it would take."""

import subprocess
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from support import role_variables
from support.role_tasks import play

pytestmark = pytest.mark.process

DRIVER = role_variables.value("nvidia_driver", "__nvidia_driver_url", "debian-12")
TOOLKIT = role_variables.variables("nvidia_container_toolkit", "debian-12")[
    "nvidia_container_toolkit_repository"
]
# grep as it is, on a test's folder in place of /etc/apt.
GREP = """for word; do
  shift
  case $word in /etc/apt*) word={folder}$word ;; esac
  set -- "$@" "$word"
done
exec /usr/bin/grep "$@"
"""


@pytest.fixture
def sources(tmp_path):
    """A function that has a repository in reach where one source is there already."""

    def run(name, text, url, offered="1.0"):
        ours = tmp_path / "ours.sources"
        ours.write_text("of an earlier run\n")
        there = tmp_path / "etc/apt/sources.list.d"
        there.mkdir(parents=True)
        (there / name).write_text(text)
        done = play(
            tmp_path,
            "base",
            "repository",
            programs={
                "grep": GREP.format(folder=tmp_path),
                "apt-get": "",
                "apt-cache": f"echo 'wanted | {offered} | there'" if offered else "",
                "dpkg-query": "echo 'gpg installed'",
            },
            base_packages_wanted=["wanted"],
            base_repository_name="ours",
            base_repository_url=url,
            base_repository_key=f"file://{tmp_path}/none.asc",
            base_repository_fingerprint="0" * 40,
            __base_repository_source=str(ours),
            __base_repository_key=str(tmp_path / "ours.asc"),
            __base_repository_preferences=str(tmp_path / "ours.pref"),
        )
        return done, "Fetch the repository's key" in done.tasks, ours.exists()

    return run


@pytest.mark.parametrize(
    ("name", "text", "url"),
    [
        ("toolkit.sources", "Types: deb\nURIs: {}\nSuites: /\nSigned-By: /o.asc\n", TOOLKIT),
    ],
)
def test_an_owners_source_of_the_same_repository_is_used_and_ours_goes(sources, name, text, url):
    done, added, ours = sources(name, text.format(url), url)
    assert done.code == 0, done.said
    assert (added, ours) == (False, False)


def test_a_source_that_is_switched_off_is_none(sources):
    done, added, _ = sources("cuda.list", f"# deb {DRIVER} /\n", DRIVER)
    assert added, done.said


PACKAGE = """Package: {}
Version: {}
Architecture: all
Maintainer: nobody <nobody@example.org>
Description: for a test
Filename: ./none.deb
Size: 1
SHA256: {:064}
"""
DRIVER_OF_THE_OWNER, NEWER = PACKAGE.format("nvidia-smi", "535-1", 0), ("nvidia-smi", "580-1", 0)


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture
def added(tmp_path):
    """The URL of a repository that has a newer driver, and a compiler."""
    folder = tmp_path / "added"
    folder.mkdir()
    compiler = PACKAGE.format("cuda-nvcc", "12-1", 0)
    (folder / "Packages").write_text(f"{PACKAGE.format(*NEWER)}\n{compiler}")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.mark.parametrize("adds", [True, False])
def test_what_is_there_is_not_upgraded_from_a_source_that_only_adds(tmp_path, added, adds):
    """apt is real here, on a system of the test's own."""
    for folder in ("owner", "etc/sources.list.d", "etc/preferences.d", "lists/partial", "cache"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "owner/Packages").write_text(DRIVER_OF_THE_OWNER)
    (tmp_path / "status").write_text(f"{DRIVER_OF_THE_OWNER}Status: install ok installed\n")
    sources = [f"file:{tmp_path}/owner/", added]
    (tmp_path / "etc/sources.list").write_text(
        "".join(f"deb [trusted=yes] {url} ./\n" for url in sources)
    )
    key = tmp_path / "key.asc"
    key.write_text("of a stand-in\n")
    done = play(
        tmp_path,
        "base",
        "repository_add",
        programs={"gpg": f"printf 'pub:\\nfpr:::::::::{'0' * 40}:\\n'"},
        base_repository_name="ours",
        base_repository_url=added,
        base_repository_key=f"file://{key}",
        base_repository_fingerprint="0" * 40,
        base_repository_adds=adds,
        __base_repository_source=str(tmp_path / "ours.sources"),
        __base_repository_key=str(tmp_path / "ours.asc"),
        __base_repository_preferences=str(tmp_path / "etc/preferences.d/ours"),
    )
    assert done.code == 0, done.said
    places = {
        "Dir::Etc": "etc",
        "Dir::State::lists": "lists",
        "Dir::State::status": "status",
        "Dir::Cache": "cache",
    }

    def apt(*words):
        options = [word for k, v in places.items() for word in ("-o", f"{k}={tmp_path / v}")]
        command = ["apt-get", *options, "-o", "APT::Sandbox::User=root", *words]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return [line.split()[1] for line in told.splitlines() if line.startswith("Inst ")]

    apt("update")
    assert apt("--simulate", "upgrade") == ([] if adds else ["nvidia-smi"])
    assert apt("--simulate", "install", "cuda-nvcc") == ["cuda-nvcc"]
