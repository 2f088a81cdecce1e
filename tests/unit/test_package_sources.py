"""Role base leaves package sources that are there as they are: apt reads nothing at all where
two of them name one repository and different keys. Its packages and apt are STAND-INS."""

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


def test_an_owners_source_of_the_same_repository_is_used_and_ours_goes(sources):
    text = f"Types: deb\nURIs: {TOOLKIT}\nSuites: /\nSigned-By: /o.asc\n"
    done, added, ours = sources("toolkit.sources", text, TOOLKIT)
    assert done.code == 0, done.said
    assert (added, ours) == (False, False)


def test_a_source_that_is_switched_off_is_none(sources):
    done, added, _ = sources("cuda.list", f"# deb {DRIVER} /\n", DRIVER)
    assert added, done.said
