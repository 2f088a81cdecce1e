"""No node says which file Ansible reads, or writes, on the controller.

What Ansible loads there it takes for the operator's own words and works out, commands included,
and files that nodes made do lie there: what runs brought. Facts and answers are a node's words.
"""

import functools

import jinja2
import pytest
import yaml
from jinja2 import nodes

from gpubed.core.paths import assets

JINJA = jinja2.Environment(extensions=["jinja2.ext.do"])
FACTS = {"ansible_facts", "ansible_local"}
# Options whose values are expressions without braces.
BARE = {"when", "that", "until", "failed_when", "changed_when"}
NESTED = ("block", "rescue", "always", "tasks", "pre_tasks", "post_tasks", "handlers")
# What names a file on the controller, by module; None stands for a module's one free word.
NAMES = {
    "include_vars": (None, "file", "dir"),
    "include_tasks": (None, "file"),
    "import_tasks": (None, "file"),
    "import_playbook": (None,),
    "include_role": ("name", "tasks_from", "vars_from", "defaults_from", "handlers_from"),
    "import_role": ("name", "tasks_from", "vars_from", "defaults_from", "handlers_from"),
    "fetch": ("dest",),
    "template": ("src",),
    "copy": ("src",),
    "unarchive": ("src",),
    "script": (None, "cmd"),
}
# Regular expressions in templates have escapes that Python's texts do not know.
ESCAPES = pytest.mark.filterwarnings("ignore:invalid escape:DeprecationWarning")
LOOKUPS = {"lookup", "query", "q"}
READERS = {"gpubed_bindings", "gpubed_driver", "fileglob", "realpath"}
# They give a part of what is before them, and nothing of what is in their brackets.
CHOICES = {"select", "reject", "selectattr", "rejectattr", "difference"}
# What they give is no path.
HARMLESS = {"hash", "int", "float", "bool", "length", "count"}


def _sources():
    """Return all YAML that Ansible reads, by path below the assets."""
    found = [
        path
        for pattern in ("roles/*/{}/**/*.yml", "playbooks/**/*.yml")
        for part in (("tasks", "handlers", "vars", "defaults") if "{}" in pattern else ("",))
        for path in assets().glob(pattern.format(part))
    ]
    return {str(path.relative_to(assets())): yaml.safe_load(path.read_text()) for path in found}


def _tasks(content):
    """Yield plays, blocks and tasks."""
    for one in content if isinstance(content, list) else []:
        if isinstance(one, dict):
            yield one
            for part in NESTED:
                yield from _tasks(one.get(part))


def _texts(value, key=""):
    """Yield all texts of a value; expressions without braces get theirs."""
    if isinstance(value, str):
        yield f"{{{{ {value} }}}}" if key in BARE else value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _texts(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner, key)


@functools.cache
def _parsed(text):
    return JINJA.parse(text)


def _told(node, names):
    """Return whether what an expression gives may be a node's words.

    A choice among constants is none: `{'a': 'b'}[...]` and `'a' if ... else 'b'`.
    """
    if isinstance(node, str):
        return _told(_parsed(node), names)
    if isinstance(node, nodes.Name):
        return node.name in names
    if isinstance(node, nodes.Compare | nodes.Test | nodes.Not):
        return False
    if isinstance(node, nodes.CondExpr):
        return any(_told(part, names) for part in (node.expr1, node.expr2) if part)
    if isinstance(node, nodes.Dict):
        return any(_told(pair.value, names) for pair in node.items)
    if isinstance(node, nodes.Getattr | nodes.Getitem):
        return _told(node.node, names) or _of_host(node) in names
    if isinstance(node, nodes.Call) and _is_lookup(node):
        return node.args[0].value.rpartition(".")[2] == "file"  # a node may have written it
    if isinstance(node, nodes.Filter) and (known := _filtered(node, names)) is not None:
        return known
    return any(_told(child, names) for child in node.iter_child_nodes())


def _of_host(node):
    """Return which variable of another host an expression names, if it does."""
    if not any(found.name == "hostvars" for found in _all(node.node, nodes.Name)):
        return None
    return node.attr if isinstance(node, nodes.Getattr) else getattr(node.arg, "value", None)


def _is_lookup(call):
    return getattr(call.node, "name", "") in LOOKUPS


def _filtered(node, names):
    """Return what is known of filters by their names; None where it is as everywhere else."""
    if node.name in HARMLESS or _is_one_name(node):
        return False
    if node.name in CHOICES:
        return _told(node.node, names)
    return True if node.name.startswith("gpubed_") else None


def _is_one_name(node):
    """Return whether a filter leaves the name of one file, in the folder that is said before."""
    return node.name == "replace" and [getattr(a, "value", None) for a in node.args] == ["/", "-"]


def _all(node, kind):
    return [node] * isinstance(node, kind) + list(node.find_all(kind))


def _given(content):
    """Yield names of variables and what they are given."""
    for task in _tasks(content):
        yield from (task.get("vars") or {}).items()
        yield from (_module(task, "set_fact") or {}).items()
        loop_var = (task.get("loop_control") or {}).get("loop_var")
        if loop_var:
            yield loop_var, task["loop"]
    if isinstance(content, dict):
        yield from content.items()


def _module(task, name):
    return task.get(f"ansible.builtin.{name}", task.get(name))


@functools.cache
def _names():
    """Return the names of variables that may hold a node's words."""
    sources = _sources().values()
    tasks = [task for content in sources for task in _tasks(content)]
    found = FACTS | {task["register"] for task in tasks if "register" in task}
    given = [pair for content in sources for pair in _given(content)]
    while new := {
        name
        for name, value in given
        if name not in found and any(_told(text, found) for text in _texts(value))
    }:
        found = found | new
    return frozenset(found)


def _paths(task):
    """Yield what a task gives as a name of the controller's, or as the node it goes to."""
    yield from _texts(task.get("delegate_to"))
    yield from _texts(task.get("vars_files"))
    yield from (text for name in task.get("roles") or () for text in _texts(name))
    for name, value in (task.get("vars") or {}).items():
        yield from _texts(value if name.startswith("ansible_") else None)
    for module, options in NAMES.items():
        given = _module(task, module)
        given = given if isinstance(given, dict) else {None: given}
        if str(given.get("remote_src")).lower() not in ("true", "yes"):
            for option in options:
                text = given.get(option) or ""
                yield _first_word(text) if module == "script" else text
    # There, whatever is said, except what is put into a file.
    here = task.get("delegate_to") in ("localhost", "127.0.0.1") or "local" in (
        task.get("connection"),
        (task.get("vars") or {}).get("ansible_connection"),
    )
    if here or "local_action" in task:
        for name, given in task.items():
            if name not in ("name", "register", "vars", *BARE):
                yield from _texts(
                    {key: text for key, text in given.items() if key != "content"}
                    if isinstance(given, dict)
                    else given
                )


def _first_word(text):
    """Return the program of a command line; what it is told is for the node."""
    return text.split(maxsplit=1)[0] if text and not text.startswith("{{") else text


def _reads(text, names):
    """Return whether an expression, or a template, reads a file that a node names."""
    tree = _parsed(text)
    asked = [
        *(arg for call in _all(tree, nodes.Call) for arg in _arguments(call)),
        *(used.node for used in _all(tree, nodes.Filter) if used.name in READERS),
        *(
            used.template
            for used in _all(tree, (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends))
        ),
    ]
    return any(_told(one, names) for one in asked if one is not None)


def _arguments(call):
    """Return what a call looks up; of other calls, nothing."""
    given = [*call.args, *(word.value for word in call.kwargs), call.dyn_args]
    return given if _is_lookup(call) else []


def _refused(where, content, names):
    """Yield what a file with tasks or variables has a node say."""
    for task in _tasks(content):
        item = {"item"} if any(_told(text, names) for text in _texts(task.get("loop"))) else set()
        assert not [key for key in task if key.startswith("with_")], "only loop: is looked at"
        own = {name: value for name, value in task.items() if name not in NESTED}
        for text in _paths(task):
            if _told(text, names | item):
                yield f"{where}: {task.get('name')}: {text}"
        for text in _texts(own):
            if _reads(text, names | item):
                yield f"{where}: {task.get('name')}: {text}"
    if isinstance(content, dict):
        for text in _texts(content):
            if _reads(text, names):
                yield f"{where}: {text}"


@ESCAPES
def test_no_node_names_a_file_of_the_controller():
    refused = [
        one for where, content in _sources().items() for one in _refused(where, content, _names())
    ]
    templates = {path: path.read_text() for path in assets().glob("roles/*/templates/**/*.j2")}
    refused += [str(path) for path, text in templates.items() if _reads(text, _names())]
    assert not refused, "\n".join(refused)
    assert templates
