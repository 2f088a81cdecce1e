"""What of this machine's environment reaches the nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpubed.backends.local import environment

NAMES = (
    *environment._BUNDLES,
    *environment._INDEXES,
    *environment._LISTS,
    *environment._PROXIES,
    *(name.lower() for name in environment._PROXIES),
)


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


def test_bundle_gets_its_path_on_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = tmp_path / "corp.pem"
    bundle.touch()
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    assert environment.environment() == {"SSL_CERT_FILE": environment.NODE_BUNDLE}
    assert environment.ca_mount() == {str(bundle): environment.NODE_BUNDLE}


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        ("nameserver 192.0.2.1\n", "", ["192.0.2.1"]),
        ("nameserver 127.0.0.53\n", "nameserver 192.0.2.2\n", ["192.0.2.2"]),
        ("nameserver 127.0.0.1\nnameserver 192.0.2.3\n", "", ["192.0.2.3"]),
        ("nameserver 127.0.0.1\n", "", []),
    ],
)
def test_name_servers_are_those_that_nodes_reach(
    tmp_path: Path, first: str, second: str, found: list[str]
) -> None:
    files = (tmp_path / "resolv.conf", tmp_path / "resolved.conf")
    for path, text in zip(files, (first, second), strict=True):
        path.write_text(text)
    assert environment.nameservers([*files, tmp_path / "missing"]) == found


@pytest.mark.parametrize(
    "value",
    [
        "https://user:word@index.example/simple",
        "https://token@index.example/simple",
        "user:word@proxy.example:3128",
        "https://a.example/simple https://user:word@b.example/simple",
        "http://127.0.0.1:3128",
        "http://localhost:3128",
    ],
)
def test_secrets_and_loopback_addresses_stay_here(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", value)
    assert environment.environment() == {}
    assert "PIP_EXTRA_INDEX_URL" in environment.left_out()
