"""Which variables a role's tasks name, and which are there when its tasks run alone.

Read from its files: what another role registered in an earlier run of its own is not
there under `--tags ROLE`, nor where somebody borrows one task file (`tasks_from`).
"""

import re
from dataclasses import dataclass, field
from functools import cache

import yaml
from jinja2 import TemplateSyntaxError, meta
from jinja2.nativetypes import NativeEnvironment

from gpubed.core.paths import assets


class _Any(dict):
    """Filters and tests by any name: Ansible's own are of no concern here."""

    def get(self, _name, _default=None):
        return str


_JINJA = NativeEnvironment(extensions=["jinja2.ext.do", "jinja2.ext.loopcontrols"])
_JINJA.filters = _JINJA.tests = _Any()
# What Ansible reads as an expression without braces.
_BARE = {"when", "until", "changed_when", "failed_when", "that", "var"}
_SETS = {"register", "loop_var", "index_var", "extended_allitems"}
_STATIC = ("import_tasks", "include_tasks")
_OPTIONAL = re.compile(r"(\w+)(?: is (?:not )?defined| \| default\()")
_OF_HOSTS = re.compile(r"hostvars\[[^\]]+\](?:\.(\w+)|\['(\w+)'\])")


@dataclass
class Names:
    """What some tasks name, and what they bring.

    Attributes:
        used: Variables that they cannot do without.
        brought: Variables that they set.
        loaded: Variables of files that they load, with every value that one may have.
    """

    used: set[str] = field(default_factory=set)
    brought: set[str] = field(default_factory=set)
    loaded: dict[str, list] = field(default_factory=dict)

    def add(self, other):
        """Count what other tasks name and bring, too."""
        self.used |= other.used
        self.brought |= other.brought
        self.load(other.loaded)

    def load(self, variables):
        """Count variables as loaded, whatever they need: only what is used will."""
        for name, values in variables.items():
            self.loaded.setdefault(name, []).extend(values)


def entries(role):
    """Return the task files of a role with which others, or a playbook, begin."""
    lent = {
        entry
        for path in (assets() / "roles").glob("*/tasks/*.yml")
        for task in _tasks(_yaml(path))
        for entry in _borrowed(task, role)
    }
    return sorted({"main"} | lent)


def missing(role, entry):
    """Return the variables that the tasks need and nobody but another run brings."""
    names = _of_file(role, entry, frozenset())
    if entry == "main":  # handlers are notified by any of the role's tasks
        for path in (assets() / "roles" / role).glob("handlers/*.yml"):
            names.add(_of_tasks(role, _yaml(path), frozenset()))
    for name in ("defaults/main.yml", "vars/main.yml"):
        names.load(_variables(assets() / "roles" / role / name))
    return _whole(names) - names.brought - set(names.loaded) - _always(role)


def _whole(names):
    """Return the names that are used, with those that their definitions need in turn."""
    whole, new = set(), set(names.used)
    while new:
        whole |= new
        new = {name for one in new for name in _named(names.loaded.get(one, []))} - whole
    return whole


def _variables(path):
    """Return the variables of a file, as `Names.loaded` has them."""
    found = _yaml(path) if path.is_file() else None
    return {name: [value] for name, value in (found or {}).items()}


@cache
def _always(role):
    specified = _yaml(assets() / "roles" / role / "meta/argument_specs.yml")["argument_specs"]
    options = {name for entry in specified.values() for name in entry.get("options") or {}}
    return options | set(_variables(assets() / "roles" / role / "defaults/main.yml"))


def _of_file(role, entry, seen):
    """Return what a task file names and brings, with the files that it includes."""
    if (role, entry) in seen:
        return Names()
    path = assets() / "roles" / role / "tasks" / f"{entry}.yml"
    return _of_tasks(role, _yaml(path), seen | {(role, entry)})


def _of_tasks(role, tasks, seen):
    names = Names()
    for task in _tasks(tasks):
        names.used |= _named({k: v for k, v in task.items() if k not in ("block", "rescue")})
        names.brought |= _brought(task)
        for kind, words in task.items():
            names.add(_included(role, kind.rpartition(".")[2], words, seen))
    return names


def _included(role, kind, words, seen):
    """Return what comes with an include: other files' tasks, templates, variables."""
    names = Names()
    if kind in _STATIC:
        for entry in _files(role, words if isinstance(words, str) else words["file"]):
            names.add(_of_file(role, entry, seen))
    elif kind == "include_role":
        for entry in _choices(words.get("tasks_from", "main")):
            # What it needs itself is looked at in its own name.
            names.brought |= _of_file(words["name"], entry, seen).brought
    elif kind == "include_vars":
        file = words if isinstance(words, str) else words["file"]
        folder = assets() / "roles" / (re.findall(r"\.\./(\w+)/vars", file) or [role])[0] / "vars"
        for path in folder.glob("*.yml"):
            names.load(_variables(path))
    elif kind == "template":
        for path in _templates(role, words["src"]):
            names.used |= _in_text(path.read_text())
    return names


def _files(role, name):
    """Return the entries that a name means; one with a variable in it means all that fit."""
    pattern = re.sub(r"\{\{.*?\}\}", "*", name)
    root = assets() / "roles" / role / "tasks"
    return [str(path.relative_to(root).with_suffix("")) for path in root.glob(pattern)]


def _templates(role, name):
    pattern = re.sub(r"\{\{.*?\}\}", "*", name)
    return (assets() / "roles" / role / "templates").glob(pattern)


def _borrowed(task, role):
    words = task.get("ansible.builtin.include_role") or {}
    return _choices(words.get("tasks_from", "main")) if words.get("name") == role else ()


def _choices(entry):
    """Return the entries that a name means; an expression means each text that it holds."""
    return re.findall(r"'(\w+)'", entry) if "{{" in entry else [entry]


def _brought(task):
    """Return the names that a task sets, for itself or for later ones."""
    found = {value for key, value in _items(task) if key in _SETS}
    for key in ("vars", "ansible.builtin.set_fact"):
        found |= set(task.get(key) or ())
    return found | ({"item"} if "loop" in task else set())


def _items(value):
    """Return all keys with their values, however deep."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key, inner
            yield from _items(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _items(inner)


def _named(value, bare=False):
    """Return the variables that a value names; a task's, or one of a variable."""
    if isinstance(value, dict):
        named = (_named(inner, key in _BARE) for key, inner in value.items())
        return set().union(*named)
    if isinstance(value, list):
        return set().union(*(_named(inner, bare) for inner in value))
    if not isinstance(value, str):
        return set()
    return _in_text("{{ " + value + " }}" if bare else value)


def _in_text(text):
    if "{{" not in text and "{%" not in text:
        return set()
    try:
        named = meta.find_undeclared_variables(_JINJA.parse(text))
    except TemplateSyntaxError as error:
        raise AssertionError(f"{text}: {error}") from error
    return (named | {a or b for a, b in _OF_HOSTS.findall(text)}) - set(_OPTIONAL.findall(text))


def _tasks(found):
    for task in found or []:
        yield task
        for part in ("block", "rescue", "always"):
            yield from _tasks(task.get(part))


@cache
def _yaml(path):
    return yaml.safe_load(path.read_text(encoding="utf-8"))
