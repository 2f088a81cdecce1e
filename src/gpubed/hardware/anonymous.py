"""Makes texts anonymous: replaces names of machines and cards, equal ones by equal ones.

| what | becomes |
| --- | --- |
| UUIDs, of GPUs and others | `GPU-00000000-0000-0000-0000-000000000001`, … |
| serial numbers and GUIDs | digits of the same length |
| hardware (MAC) addresses | `02:00:00:00:00:01`, … |
| IP addresses | `192.0.2.1`, … and `2001:db8::1`, … (for documentation: RFC 5737, RFC 3849) |
| host names | `host-1`, … |
| programs that used a GPU | left out; in the kernel's log `name=program` |

PCI addresses, part numbers, versions of VBIOS, InfoROM and packages stay.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from ipaddress import ip_address
from typing import Any

_PROCESSES = re.compile(r"<processes>.*?</processes>", re.DOTALL)
_PROGRAM = re.compile(r"\bname=[^,\s]+")
# An element of nvidia-smi's XML; N/A, where a card has no number, does not match.
_SERIAL = re.compile(r"(<\w*(?:serial|guid)\w*>\s*)((?:0x)?[0-9][\w-]*)")
_UUID = re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")
_MAC = re.compile(r"(?<![\w:])(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}(?![\w:])")
# Candidates for addresses: `ip_address` tells them from versions and PCI addresses.
_IP = re.compile(
    r"(?<![\w.:])(?:(?:\d{1,3}\.){3}\d{1,3}|(?:[0-9a-fA-F]{0,4}:){2,7}[0-9a-fA-F]{0,4})(?![\w.:])"
)


class Anonymous:
    """Replaces names, and remembers the replacements.

    `hosts` are host names, which cannot be told from other words of a text.
    """

    def __init__(self, hosts: list[str]) -> None:
        self._known: dict[str, str] = {}
        self._counts: Counter[str] = Counter()
        for host in hosts:
            self._become("host", host, lambda number: f"host-{number}")
        words = "|".join(map(re.escape, sorted(hosts, key=len, reverse=True))) or "(?!)"
        self._hosts = re.compile(rf"(?<![\w.-])(?:{words})(?![\w-])")

    def value(self, value: Any) -> Any:
        """Return a JSON value with all its texts anonymous; keys stay."""
        if isinstance(value, dict):
            return {key: self.value(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self.value(inner) for inner in value]
        return self.text(value) if isinstance(value, str) else value

    def text(self, text: str) -> str:
        """Return an anonymous copy of a text."""
        text = _PROCESSES.sub("<processes></processes>", text)
        text = _PROGRAM.sub("name=program", text)
        text = _SERIAL.sub(self._serial, text)
        text = _UUID.sub(lambda m: self._become("uuid", m[0].lower(), _uuid), text)
        text = _MAC.sub(lambda m: self._become("mac", m[0].lower(), _mac), text)
        text = _IP.sub(lambda m: self._address(m[0]), text)
        return self._hosts.sub(lambda m: self._known[m[0]], text)

    def _become(self, kind: str, value: str, shape: Callable[[int], str]) -> str:
        if value not in self._known:
            self._counts[kind] += 1
            self._known[value] = shape(self._counts[kind])
        return self._known[value]

    def _serial(self, match: re.Match[str]) -> str:
        width = len(match[2])
        return match[1] + self._become("serial", match[2], lambda number: f"{number:0{width}d}")

    def _address(self, text: str) -> str:
        try:
            version = ip_address(text).version
        except ValueError:
            return text
        shape = _ip4 if version == 4 else _ip6
        return self._become(f"ip{version}", text, shape)


def _uuid(number: int) -> str:
    return f"00000000-0000-0000-0000-{number:012d}"


def _mac(number: int) -> str:
    return "02:00:00:" + ":".join(f"{number >> shift & 0xFF:02x}" for shift in (16, 8, 0))


def _ip4(number: int) -> str:
    return f"192.0.2.{number}"


def _ip6(number: int) -> str:
    return f"2001:db8::{number:x}"
