"""Takes in hosts: an Ansible inventory, an ssh_config, or a list of hosts.

Ansible and paramiko read their own formats, with nothing that runs commands or asks a network.
"""

from __future__ import annotations

import getopt
import getpass
import json
import math
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from paramiko.config import SSHConfig
from paramiko.ssh_exception import ConfigParseError

from gpubed.core import reading
from gpubed.testbeds.imports import Draft, Source, group_name

FORMATS = "an Ansible inventory (YAML or INI); an ssh_config; a list of hosts, one per line"
_INI = re.compile(r"^\s*\[[^\]\n]+\]\s*(#.*)?$|\bansible_\w+ *=", re.MULTILINE)
_SSH = re.compile(r"^\s*Host[ \t=]", re.IGNORECASE | re.MULTILINE)
_PLAIN = re.compile(r"([\w.-]+@)?[\w.:\[\]-]+(\s+\w+=\S*)*")
_RANGE = re.compile(r"\[(\w+):(\w+)")
_MOST_HOSTS, _MOST_GROUPS, _PATIENCE_S = 1000, 10, 60
_SSH_FLAGS = "46AaB:b:CcD:E:e:F:fGgI:i:J:KkL:l:MmNnO:o:P:p:Q:qR:S:sTtVvW:w:XxYy"
_ANSIBLE = {
    "address": ("ansible_host", "ansible_ssh_host"),
    "port": ("ansible_port", "ansible_ssh_port"),
    "user": ("ansible_user", "ansible_ssh_user"),
    "key": ("ansible_ssh_private_key_file", "ansible_private_key_file"),
    "connection": ("ansible_connection",),
    "arguments": ("ansible_ssh_common_args", "ansible_ssh_extra_args"),
}
_SSH_KEYS = {"hostname", "port", "user", "identityfile", "proxyjump"}


class _Login(NamedTuple):
    name: str  # what the file calls the host
    line: int
    address: str
    port: Any = None
    user: str | None = None
    key: str | None = None
    jump: str | None = None  # as OpenSSH's ProxyJump
    group: str = "node"


def imported(source: Source) -> Draft | None:
    """Return the cluster of the hosts that a file names; None if it has another format."""
    text, draft = source.text, Draft(source)
    if source.mapping:
        groups = source.mapping.data.values()
        valid = all(g is None or (isinstance(g, dict) and g.keys() <= _GROUP) for g in groups)
        found = _inventory(draft) if valid else []
    elif _INI.search(text):
        found = _inventory(draft)
    else:
        found = _ssh_config(draft) if _SSH.search(text) else _listed(draft)
    if not found:
        return None
    targets = {_target(source, hop, one.line)["address"] for one in found for hop in _hops(one)}
    nodes = [one for one in found if not {one.name, one.address} & targets] or found
    usual = {
        key: Counter(getattr(one, key) for one in nodes).most_common(1)[0][0]
        for key in ("user", "key", "jump")
    }
    for one in nodes:
        for key, value in usual.items():
            if getattr(one, key) != value:
                draft.leave(
                    one.line, f"{key} {getattr(one, key)} of {one.name}: all hosts have one"
                )
    line = nodes[0].line
    draft.put("backend", "user", value=usual["user"] or getpass.getuser(), line=line)
    if usual["key"]:
        draft.put("backend", "key", value=usual["key"], line=line)
    bastions = []
    for hop in _hops(nodes[0]._replace(jump=usual["jump"])):
        gate = _target(source, hop, line)
        known = next((one for one in found if one.name == gate["address"]), None)
        if known:
            own = {
                "address": known.address,
                "port": known.port,
                "user": known.user,
                "key": known.key,
            }
            gate = {key: value for key, value in own.items() if value} | {
                key: value for key, value in gate.items() if key != "address"
            }
        bastions.append(gate)
    if bastions:
        draft.put("backend", "bastions", value=bastions, line=line)
    _nodes(draft, nodes)
    return draft


_GROUP = {"hosts", "children", "vars"}


def _nodes(draft: Draft, nodes: list[_Login]) -> None:
    """Make node groups of the file's groups, and a control network of the hosts'."""
    few = len({one.group for one in nodes}) <= _MOST_GROUPS
    names: dict[str, str] = {}
    hosts: dict[str, list[dict[str, Any]]] = {}
    seen: set[Any] = set()
    for one in nodes:
        if (one.address, one.port) in seen:
            draft.leave(one.line, f"host {one.name}: {one.address} is there already")
            continue
        seen.add((one.address, one.port))
        group = one.group if few else "node"
        name = names.setdefault(group, group_name(group, names.values()))
        at = ("backend", "hosts", name, len(hosts.setdefault(name, [])))
        hosts[name].append({"address": one.address} | ({"port": one.port} if one.port else {}))
        draft.lines[at] = one.line
        if one.name != one.address:
            draft.remarks[at] = one.name
    draft.put("backend", "hosts", value=hosts, line=nodes[0].line)
    groups = [{"name": g, "count": len(h), "image": "debian-12"} for g, h in hosts.items()]
    draft.put("nodes", value=groups)
    draft.remarks["nodes", 0, "image"] = "what the hosts run"
    control = {"control": {"subnet": "192.0.2.0/24"}} if len(seen) > 1 else None
    draft.put("networks", value=control)
    if control:
        draft.remarks["networks", "control", "subnet"] = (
            "fill in: the subnet of the hosts' addresses"
        )


def _hops(one: _Login) -> list[str]:
    return one.jump.split(",") if one.jump and one.jump.lower() != "none" else []


def _target(source: Source, text: str, line: int) -> dict[str, Any]:
    """Return address, port and user of `[user@]host[:port]`."""
    user, at, host = text.strip().rpartition("@")
    host = f"[{host}]" if host.count(":") > 1 and "[" not in host else host
    try:
        parts = urlsplit(f"ssh://{user}{at}{host}")
        found = {"address": parts.hostname, "port": parts.port, "user": parts.username}
    except ValueError as error:
        raise source.refusal(line, f"{text!r} is no host: {error}") from None
    return {key: value for key, value in found.items() if value}


def _listed(draft: Draft) -> list[_Login]:
    found = []
    for number, text in enumerate(draft.source.text.splitlines(), 1):
        line = text.partition("#")[0].strip()
        if line and not _PLAIN.fullmatch(line):
            if not found:
                return []
            raise draft.source.refusal(number, f"{line!r} is no host, such as alice@node1:22")
        if line:
            word, *others = line.split()
            found.append(_Login(word, number, **_target(draft.source, word, number)))
            for other in others:
                draft.leave(number, f"{other.partition('=')[0]} of {word}")
    return found


def _ssh_config(draft: Draft) -> list[_Login]:
    """Read Host blocks; `Match` may run commands, and canonical names would ask DNS."""
    kept, names, in_match = list[str](), dict[str, int](), False
    for number, text in enumerate(draft.source.text.splitlines(), 1):
        key, *words = re.split(r"[\s=]+", text.strip())
        in_match = key.lower() == "match" if key.lower() in ("host", "match") else in_match
        if in_match or key.lower().startswith(("include", "canonical")):
            draft.leave(number, key)
            continue
        if key.lower() == "host":
            names |= {w: number for w in words if not set(w) & set('*?!"') and w not in names}
        elif key and not key.startswith("#") and key.lower() not in _SSH_KEYS:
            draft.leave(number, key)
        kept.append(text)
    try:
        config = SSHConfig.from_text("\n".join(kept))
        found = [(name, config.lookup(name)) for name in names]
    except ConfigParseError as error:
        raise draft.source.refusal(draft.source.line(str(error).split()[-1]), str(error)) from None
    home = str(Path.home())
    logins = []
    for name, said in found:
        if said.get("user") == "git":
            draft.leave(names[name], f"host {name}: a git server")
            continue
        key, port = said.get("identityfile", [None])[0], said.get("port")
        key = key and key.replace(home, "~", 1)
        port = int(port) if port and port.isdecimal() else port
        login = (said["hostname"], port, said.get("user"), key, said.get("proxyjump"))
        logins.append(_Login(name, names[name], *login))
    return logins


def _inventory(draft: Draft) -> list[_Login]:
    source, found = draft.source, list[_Login]()
    listed = _read_by_ansible(source)
    group_of: dict[str, str] = {}
    for group, content in listed.items():
        for host in content.get("hosts", ()):
            group_of.setdefault(host, "node" if group in ("all", "ungrouped") else group)
    known = {key for keys in _ANSIBLE.values() for key in keys}
    for name, group in group_of.items():
        said, line = listed["_meta"]["hostvars"].get(name, {}), source.line(name)
        for key in said.keys() - known:
            draft.leave(source.line(key), str(key))
        value = {
            field: next((said[key] for key in keys if said.get(key)), None)
            for field, keys in _ANSIBLE.items()
        }
        address, connection = str(value["address"] or name), value["connection"] or "ssh"
        if connection not in ("ssh", "smart", "paramiko") or "{{" in address:
            draft.leave(line, f"host {name}: connection {connection}, address {address}")
            continue
        arguments = " ".join(str(said.get(key) or "") for key in _ANSIBLE["arguments"])
        jump = _jump(draft, source.line(_ANSIBLE["arguments"][0]), arguments)
        login = (address, value["port"], value["user"], value["key"], jump, group)
        found.append(_Login(name, line, *login))
    if not found:
        raise source.refusal(1, "names no host that SSH reaches", "add a host to the inventory")
    return found


def _jump(draft: Draft, line: int, arguments: str) -> str | None:
    """Return the ProxyJump of OpenSSH's arguments, also from a ProxyCommand that does the same."""
    jump = None
    try:
        flags, _ = getopt.getopt(shlex.split(arguments), _SSH_FLAGS)
        for flag, value in flags:
            key, _, said = re.sub(r"[ =]+", "=", value, count=1).partition("=")
            if flag == "-J" or key.lower() == "proxyjump":
                jump = said if flag == "-o" else value
            elif key.lower() == "proxycommand" and re.match(r"ssh .*-W *%h:%p", said):
                jump = getopt.gnu_getopt(shlex.split(said)[1:], _SSH_FLAGS)[1][0]
            else:
                draft.leave(line, f"option {flag} {key} of ssh")
    except (ValueError, IndexError, getopt.GetoptError):
        draft.leave(line, _ANSIBLE["arguments"][0])
    return jump


def _read_by_ansible(source: Source) -> dict[str, dict[str, Any]]:
    """Return what `ansible-inventory --list` says of the file alone, without other plugins."""
    for number, text in enumerate(source.text.splitlines(), 1):
        ends = ((int(a), int(b)) for a, b in _RANGE.findall(text) if (a + b).isdecimal())
        if math.prod(abs(b - a) + 1 for a, b in ends) > _MOST_HOSTS or text.count(":") > 99:
            raise source.refusal(number, f"names more than {_MOST_HOSTS} hosts")
    as_yaml = source.mapping is not None
    text = json.dumps(source.mapping.data, default=str) if source.mapping else source.text
    with tempfile.TemporaryDirectory() as folder:
        file, config = (
            Path(folder, "hosts.yml" if as_yaml else "hosts"),
            Path(folder, "ansible.cfg"),
        )
        file.write_text(text, encoding="utf-8")
        config.touch()
        environment = {k: v for k, v in os.environ.items() if not k.startswith("ANSIBLE_")} | {
            "ANSIBLE_CONFIG": str(config),
            "ANSIBLE_INVENTORY_ENABLED": "yaml" if as_yaml else "ini",
            "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "true",
            "ANSIBLE_NOCOLOR": "true",
            "LC_ALL": "C.UTF-8",
        }
        command = [sys.executable, "-m", "ansible", "inventory", "-i", str(file), "--list"]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                check=False,
                cwd=folder,
                env=environment,
                timeout=_PATIENCE_S,
            )
        except subprocess.TimeoutExpired:
            raise source.refusal(1, f"Ansible takes longer than {_PATIENCE_S} s") from None
    if done.returncode:
        said = re.search(r"Failed to parse inventory: (.+)", done.stderr)
        why = said[1] if said else reading.tail(done.stderr, 1)
        word = re.search(r"got: (\S+)|'([^']+)'\.?$", why)
        raise source.refusal(source.line(word[1] or word[2]) if word else 1, f"Ansible: {why}")
    return reading.reply(done.stdout, "Ansible's answer").json(dict[str, dict[str, Any]])
