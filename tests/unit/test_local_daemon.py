"""Docker's errors become one sentence and a way out."""

from __future__ import annotations

import pytest
from docker.errors import APIError, DockerException

from gpubed.backends.local import daemon
from gpubed.core.errors import GpubedError, PrerequisiteMissing


def raised(error: Exception) -> GpubedError:
    with pytest.raises(GpubedError) as caught, daemon.errors("make node node-0"):
        raise error
    return caught.value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("('Connection aborted.', PermissionError(13, 'Permission denied'))", "may not use"),
        ("('Connection aborted.', FileNotFoundError(2, 'No such file'))", "not running"),
        ("('Connection aborted.', ConnectionRefusedError(111, 'refused'))", "not running"),
        ("Read timed out.", "does not answer"),
    ],
)
def test_unreachable_daemon(text: str, expected: str) -> None:
    error = raised(DockerException(f"Error while fetching server API version: {text}"))
    assert isinstance(error, PrerequisiteMissing)
    assert expected in error.message
    assert error.hint


def test_full_disk_is_a_prerequisite() -> None:
    error = raised(APIError("boom", explanation="write /var/x: no space left on device"))
    assert isinstance(error, PrerequisiteMissing)
    assert "full" in error.message


def test_refusal_names_what_was_tried_and_why() -> None:
    error = raised(APIError("boom", explanation="the reason\n of the daemon"))
    assert error.message == "cannot make node node-0: the reason of the daemon"


def test_a_daemon_behind_ssh_that_does_not_answer_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "ssh://nobody@127.0.0.1:1")
    monkeypatch.delattr(daemon._own, "client", raising=False)
    with pytest.raises(PrerequisiteMissing, match=r"127\.0\.0\.1"):
        daemon.client()
