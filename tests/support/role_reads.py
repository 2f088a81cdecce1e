"""What a role's own words refer to: other nodes, networks, and what other roles have made.

The words are those that Ansible works out: tasks, handlers, variables and templates of the
role, and what it calls of other roles.
"""

import re
from functools import cache

import yaml

from gpubed.configuration import roles
from gpubed.core.paths import assets

WORDS = ("tasks", "handlers", "templates", "defaults", "vars")
# A node finds itself by its name, and whether it is the head by the head's; neither says anything
# of others.
OWN = re.compile(
    r"gpubed_nodes\s*\|\s*selectattr\('name',\s*'(eq|equalto)',\s*inventory_hostname\)"
    r"|inventory_hostname\s*[=!]=\s*gpubed_head"
)
HEAD = re.compile(
    r"hostvars\[gpubed_head\]|gpubed_nodes\s*\|\s*selectattr\('name',\s*'eq',\s*gpubed_head\)"
)
# What other nodes' images hold decides how the environment is made, once, and not what it is.
HELD = re.compile(
    r"gpubed_nodes[^}]*__python_env_image[^}]*|(?<=__python_env_looked \| length == )gpubed_nodes"
)
RATE = re.compile(r"gpubed_networks\.experiment\.rate_bps")
# Variables that say where on the shared storage something is.
SHARED = [
    name
    for role in roles.names()
    for name, template in roles.meta(role).variables.items()
    if re.search(r"spec\.storage\.(shared|datasets)", str(template))
]
# What tells of whom; `groups` also is the name of options, attributes and loop variables.
TELLS = {
    "nodes": re.compile(
        r"\bgpubed_nodes\b|\bhostvars\b|\b(ansible_)?play_(hosts|batch)|(?<![\w.'])groups(?![\w:'])"
    ),
    "head": re.compile(r"\bgpubed_head\b"),
    # What a node may use of its machine: who installs the program that finds out, and who asks.
    "machines": re.compile(r"\bmemory_kib\b|dest: /usr/local/bin/gpubed-facts"),
    "networks": re.compile(r"\bgpubed_networks\b"),
    "rates": re.compile(r"\brate_bps\b"),
    "storage": re.compile(rf"\b({'|'.join(SHARED)})\b"),
    "environment": re.compile(r"\b\w+_env_root\b"),
    "firewall": re.compile(r"\bfirewall_enabled\b"),
}
# Whose own input it is.
MADE_BY = {"firewall": "firewall", "python_env": "environment"}
COMMENT = re.compile(r"(?m)^\s*#.*$|\{#.*?#\}")
BESIDE = re.compile(r"role_path \}\}/\.\./(\w+/\w+)/")
CALL = re.compile(
    r"(?:include|import)_role:\s*\n\s+name:\s*(?P<role>\w+)\s*\n(?:\s+tasks_from:\s*(?P<entry>.+)\n)?"
)


def reads(role):
    """Return what a role must declare."""
    return told(_reached(role).values()) - {MADE_BY.get(role)}


def calls(role):
    """Return the folders of other roles that a role's own words lead to."""
    texts = [COMMENT.sub("", text) for text in _texts(role).values()]
    called = {f"roles/{other}" for text in texts for other, _ in _called(text)}
    beside = {found for text in texts for found in BESIDE.findall(text)}
    return called | {f"roles/{found}" for found in beside if not found.startswith(f"{role}/")}


def task_files(role):
    folder = assets() / "roles"
    return [
        text
        for (where, name), text in _reached(role).items()
        if (folder / where / "tasks" / name).is_file()
    ]


def told(texts):
    """Return what texts refer to; who reads all nodes has read the head."""
    found = set()
    for text in texts:
        words = HELD.sub("", OWN.sub("", COMMENT.sub("", text)))
        words = RATE.sub("rate_bps", HEAD.sub("gpubed_head", words))
        found |= {part for part, tells in TELLS.items() if tells.search(words)}
    return found - {"head"} if "nodes" in found else found


def _reached(role):
    """Return the role's texts, and those of other roles that they lead to."""
    found = {(role, name): text for name, text in _texts(role).items()}
    todo = list(found.items())
    while todo:
        (where, _), text = todo.pop()
        ahead = _called(text) | (_mentioned(where, text) if where != role else {})
        new = {key: words for key, words in ahead.items() if key not in found}
        found |= new
        todo += new.items()
    return found


def _called(text):
    """Return the task files of other roles that a text calls."""
    found, text = {}, COMMENT.sub("", text)
    for call in CALL.finditer(text):
        entries = re.findall(r"\w+", call["entry"] or "main")
        there = _texts(call["role"])
        found |= {
            (call["role"], f"{name}.yml"): there[f"{name}.yml"]
            for name in entries
            if f"{name}.yml" in there
        }
    assert len(re.findall(r"(?:include|import)_role:", text)) == len(CALL.findall(text)), text
    return found


def _mentioned(role, text):
    there = _texts(role)
    words = {word.strip(".") for word in re.findall(r"[\w.-]+", text)}
    return {(role, name): there[name] for name in words if name in there}


@cache
def _texts(role):
    """Return task files, templates and handlers of a role by name, and each variable."""
    found = {}
    for kind in WORDS:
        for path in (assets() / "roles" / role / kind).rglob("*"):
            if not path.is_file():
                continue
            if kind in ("defaults", "vars"):
                for name, value in (yaml.safe_load(path.read_text()) or {}).items():
                    found[name] = found.get(name, "") + "\n".join(_words(value))
            else:
                found[path.name if kind != "handlers" else "handlers"] = path.read_text()
    return found


def _words(value):
    if isinstance(value, dict):
        value = [*(f"{key}:" for key in value), *value.values()]
    if isinstance(value, list):
        return [word for item in value for word in _words(item)]
    return [str(value)]
