"""Reads hosts from an Ansible inventory, an ssh_config, or a list of hosts.

Ansible and paramiko parse their formats; directives that would run commands or query a network are
left out.
"""

from __future__ import annotations

import getopt
import getpass
import io
import json
import math
import re
import shlex
import tempfile
from collections import Counter
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from ansible.inventory.data import InventoryData
from ansible.inventory.helpers import get_group_vars
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.loader import inventory_loader
from paramiko.config import SSHConfig
from paramiko.ssh_exception import ConfigParseError

from gpubed.core import reading, yaml_lines
from gpubed.testbeds.imports import Draft, Source, group_name

FORMATS = "an Ansible inventory (YAML or INI); an ssh_config; a list of hosts, one per line"
_SSH = re.compile(r"^\s*Host[ \t=]", re.IGNORECASE | re.MULTILINE)
_USER = re.compile(r"^[ \t]*([\w.-]+)@(\S+)", re.MULTILINE)
_RANGE = re.compile(r"\[(\d+|[a-zA-Z]):(\d+|[a-zA-Z])")
_FIRST_OF_RANGE = re.compile(r"\s*[\"']?([^\s\[]+)\[\w+:\w+")
# Options of `ssh`; those with a colon have a value.
_OPTIONS = "46AaCfGgKkMNnqsTtVvXxYyB:b:c:D:E:e:F:I:i:J:L:l:m:O:o:P:p:Q:R:S:W:w:"
_OTHERS = "options of ssh other than the jump hosts"
_MOST_HOSTS, _MOST_GROUPS, _MOST_PATTERNS = 1000, 10, 300
# Ansible's variables and OpenSSH's keywords for the fields of a login.
_VARIABLES = {
    "ansible_host": "address", "ansible_ssh_host": "address", "ansible_port": "port",
    "ansible_ssh_port": "port", "ansible_user": "user", "ansible_ssh_user": "user",
    "ansible_ssh_private_key_file": "key", "ansible_private_key_file": "key",
    "ansible_ssh_common_args": "jump",
}  # fmt: skip
_KEYWORDS = {"hostname", "port", "user", "identityfile", "proxyjump"}


class _Login(NamedTuple):
    line: int
    name: str  # the host's name in the file
    address: str
    port: Any = None
    user: str | None = None
    key: str | None = None
    jump: str | None = None  # as OpenSSH's ProxyJump
    group: str = "node"


def imported(source: Source) -> Draft | None:
    """Return the draft for the hosts in a file; None if it has another format."""
    draft = Draft(source)
    if not source.text.strip() or source.text.lstrip().startswith("<"):
        return None
    if len(source.data) > yaml_lines.MAX_BYTES:
        raise source.refusal(1, f"has more than {yaml_lines.MAX_BYTES} bytes", "name fewer hosts")
    is_ssh = not source.mapping and _SSH.search(source.text)
    found = _ssh_config(draft) if is_ssh else _inventory(draft)
    if not found:
        return None
    if len(found) > _MOST_HOSTS:
        raise source.refusal(1, f"names more than {_MOST_HOSTS} hosts", "name fewer hosts")
    gates = {
        _target(draft, hop, login.line)["address"] for login in found for hop in _hops(login.jump)
    }
    nodes = [login for login in found if not {login.name.lower(), login.address} & gates] or found
    for key in ("user", "key", "jump"):
        usual, _ = Counter(getattr(login, key) for login in nodes).most_common(1)[0]
        for login in nodes:
            if (own := getattr(login, key)) != usual:
                what = f"{key} {own} of {login.name}" if own else f"that {login.name} has no {key}"
                draft.omit(
                    login.line, f"{what}: {f'all have {usual}' if usual else 'others have none'}"
                )
        value = _bastions(draft, usual, found) if key == "jump" else usual
        value = getpass.getuser() if key == "user" and usual is None else value
        option = "bastions" if key == "jump" else key
        if value:
            draft.put("backend", option, value=value, line=nodes[0].line)
    _groups(draft, nodes)
    return draft


def _groups(draft: Draft, nodes: list[_Login]) -> None:
    """Make node groups of the file's groups, and a control network."""
    hosts, names, seen = dict[str, list[Any]](), dict[str, str](), set[Any]()
    for name in {login.group: None for login in nodes}:
        names[name] = group_name(name, names.values())
    for login in nodes:
        if (login.address, login.port) in seen:
            draft.omit(login.line, f"host {login.name}: {login.address} is there already")
            continue
        seen.add((login.address, login.port))
        name = names[login.group] if len(names) <= _MOST_GROUPS else "node"
        group = hosts.setdefault(name, [])
        at = ("backend", "hosts", name, len(group))
        draft.lines[at], draft.remarks[at] = login.line, login.name
        group.append({"address": login.address} | ({"port": login.port} if login.port else {}))
    draft.put("backend", "hosts", value=hosts)
    groups = [{"name": key, "count": len(some)} for key, some in hosts.items()]
    draft.put("nodes", value=[group | {"image": "debian-12"} for group in groups])
    draft.remarks["nodes", 0, "image"] = "what the hosts run"
    draft.put("networks", value={"control": {"subnet": "192.0.2.0/24"}} if len(seen) > 1 else None)
    if len(seen) > 1:
        draft.remarks["networks", "control", "subnet"] = (
            "fill in: the subnet of the hosts' addresses"
        )


def _hops(jump: str | None) -> list[str]:
    return jump.split(",") if jump and jump.lower() != "none" else []


def _bastions(draft: Draft, jump: str | None, known: list[_Login]) -> list[dict[str, Any]]:
    bastions, hops, others = [], _hops(jump), {login.name.lower(): login for login in known}
    # OpenSSH reaches the first hop through the hops that the hop's own block names.
    while hops and (first := others.pop(_target(draft, hops[0], 1)["address"], None)):
        hops = [*(hop for hop in _hops(first.jump) if hop not in hops), *hops]
    for hop in hops:
        gate = _target(draft, hop, draft.source.line(hop))
        for login in known:
            if login.name.lower() == gate["address"]:
                own = {
                    "address": login.address,
                    "port": login.port,
                    "user": login.user,
                    "key": login.key,
                }
                own = {key: value for key, value in own.items() if value}
                gate = own | gate | {"address": login.address}
        bastions.append(gate)
    return bastions


def _target(draft: Draft, text: str, line: int) -> dict[str, Any]:
    """Return address, port and user of `[user@]host[:port]`."""
    user, at, host = text.strip().rpartition("@")
    host = f"[{host}]" if host.count(":") > 1 and "[" not in host else host
    try:
        parts = urlsplit(f"ssh://{user}{at}{host}")
        found = {"address": parts.hostname or "", "port": parts.port, "user": parts.username}
    except ValueError as error:
        raise draft.source.refusal(line, f"{text!r} is no host: {error}") from None
    return {key: value for key, value in found.items() if value is not None}


def _jump(text: str) -> tuple[str | None, bool]:
    """Return the ProxyJump that options of `ssh` amount to, and whether they say more."""
    try:
        options, hosts = getopt.gnu_getopt(shlex.split(text), _OPTIONS)
    except (getopt.GetoptError, ValueError):
        return None, True
    given, more, jump = dict(options), False, None
    for option, value in options:
        key, _, words = (
            value.replace("=", " ", 1).partition(" ") if option == "-o" else ("", "", "")
        )
        if option == "-J" or key.lower() == "proxyjump":
            jump = words.strip() or value
        elif key.lower() == "proxycommand" and words.startswith("ssh "):
            jump, more = _jump(words.removeprefix("ssh"))
        elif option not in ("-W", "-q", "-p", "-l"):
            more = True
    if "-W" in given and len(hosts) == 1:  # the options of a ProxyCommand
        user = f"{given['-l']}@" if "-l" in given else ""
        port = f":{given['-p']}" if "-p" in given else ""
        jump = ",".join(filter(None, (jump, f"{user}{hosts[0]}{port}")))
    return jump, more


def _ssh_config(draft: Draft) -> list[_Login]:
    """Read Host blocks; not `Match`, which may run commands, nor options that query DNS."""
    kept, names, patterns, in_match = list[str](), dict[str, int](), 0, False
    for number, text in enumerate(draft.source.text.splitlines(), 1):
        word, *words = re.split(r"[\s=]+", text.strip())
        key = word.lower()
        in_match = key == "match" if key in ("host", "match") else in_match
        if key == "proxycommand" and not in_match:
            jump, more = _jump(f"-o '{text.strip()}'")
            if jump and more:
                draft.omit(number, _OTHERS)
            key, text = ("proxyjump", f"ProxyJump {jump}") if jump else (key, text)
        if key == "host":
            names |= {word: number for word in words if not set('*?!"') & set(word)}
            patterns += len(words)
        elif in_match or (key and key not in _KEYWORDS and not key.startswith("#")):
            draft.omit(number, key)
            continue
        kept.append(text)
    if patterns > _MOST_PATTERNS:  # paramiko compares each host with each pattern
        raise draft.source.refusal(1, f"has more than {_MOST_PATTERNS} hosts", "name fewer hosts")
    logins = []
    try:
        config = SSHConfig.from_text("\n".join(kept))
    except ConfigParseError as error:
        raise draft.source.refusal(1, str(error)) from None
    for name, line in names.items():
        values = config.lookup(name)
        key = values.get("identityfile", [""])[0].replace(str(Path.home()), "~", 1) or None
        port: Any = values.get("port")
        port = int(port) if port and port.isdecimal() else port
        login = (values["hostname"], port, values.get("user"), key, values.get("proxyjump"))
        if values.get("user") == "git":
            draft.omit(line, f"host {name}: a git server")
        else:
            logins.append(_Login(line, name, *login))
    return logins


def _inventory(draft: Draft) -> list[_Login]:
    source, logins = draft.source, list[_Login]()
    inventory = _parsed(source)
    lines = enumerate(source.text.splitlines(), 1)
    ranges = [(begin[1], n) for n, text in lines if (begin := _FIRST_OF_RANGE.match(text))]
    for host in inventory.hosts.values() if inventory else ():
        # JSON turns Ansible's own string class into str.
        text = json.dumps(get_group_vars(host.get_groups()) | host.vars, default=str)
        values = reading.reply(text, host.name).json(dict[str, Any])
        line, own = source.line(host.name), dict[str, Any](address=f"{host.name}")
        if line == 1:
            line = next((n for begin, n in ranges if host.name.startswith(begin)), 1)
        for key, value in values.items():
            if key in _VARIABLES:
                own[_VARIABLES[key]] = value
            elif key not in ("inventory_file", "inventory_dir"):
                draft.omit(source.line(key), key)
        if (how := values.get("ansible_connection", "ssh")) not in ("ssh", "smart", "paramiko"):
            draft.omit(line, f"host {host.name}: its connection is {how}")
            continue
        own["jump"], more = _jump(str(own.get("jump", "")))
        if more:
            draft.omit(source.line("ansible_ssh_common_args"), _OTHERS)
        groups = [group.name for group in host.groups if group.name not in ("all", "ungrouped")]
        group = f"{(*groups, 'node')[0]}"
        logins.append(_Login(line, f"{host.name}", group=group, **own))
    if inventory and not logins:
        raise source.refusal(1, "names no host that SSH reaches", "add a host")
    return logins


def _parsed(source: Source) -> InventoryData | None:
    """Parse an inventory, or a list of hosts, with Ansible's plugin; None for another mapping.

    Other files, such as vaults and group_vars, are not read.
    """
    text, kind, found = _USER.sub(r"\2 ansible_user=\1", source.text), "ini", InventoryData()
    if source.mapping:
        groups = [group for group in source.mapping.data.values() if isinstance(group, dict)]
        if not any({"hosts", "children", "vars"} & group.keys() for group in groups):
            return None
        text, kind = json.dumps(source.mapping.data, default=str), "yaml"
    hosts = 0
    for number, line in enumerate(source.text.splitlines(), 1):
        ends = _RANGE.findall(line)
        hosts += math.prod(int(b) + 1 if b.isdecimal() else 52 for _, b in ends) if ends else 0
        if hosts > _MOST_HOSTS:
            raise source.refusal(number, f"may name more than {_MOST_HOSTS} hosts", "name fewer")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"hosts.{kind}")
        path.write_text(text, encoding="utf-8")
        try:
            with redirect_stderr(io.StringIO()):  # warnings
                inventory_loader.get(kind).parse(found, DataLoader(), str(path), cache=False)
        except Exception as error:  # Ansible raises many kinds for malformed names
            why = str(error).replace(str(path), source.what)
            word = re.search(r"got: (\S+)|'([^']+)'\.?$", why)
            at = source.line(word[1] or word[2]) if word else 1
            raise source.refusal(at, why, f"formats: {FORMATS}") from None
    found.reconcile_inventory()
    return found
