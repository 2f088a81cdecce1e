"""Declares whatever the scene file lists; the tests write a new one for every step."""

import json
import os
import sys
from pathlib import Path

import pulumi
from recorder import Thing


class Group(pulumi.ComponentResource):
    def __init__(self, name, props, opts):
        super().__init__("scenes:index:Group", name, props.get("inputs"), opts)
        self.register_outputs(props.get("outputs", {}))


scene = json.loads(Path(os.environ["SCENE"]).read_text())
made = {}


def resolve(value):
    """`@a.ip` is an output of another resource, `!x` a secret."""
    if isinstance(value, dict):
        return {k: resolve(v) for k, v in value.items()}
    if isinstance(value, list):
        return [resolve(v) for v in value]
    if not isinstance(value, str) or value[:1] not in ("@", "!"):
        return value
    if value[0] == "!":
        return pulumi.Output.secret(value[1:])
    name, _, attribute = value[1:].partition(".")
    return getattr(made[name], attribute) if attribute else made[name]


def options(given):
    given = dict(given)
    if "parent" in given:
        given["parent"] = made[given["parent"]]
    if "depends_on" in given:
        given["depends_on"] = [made[name] for name in given["depends_on"]]
    if "id" in given:
        given["id"] = resolve(given["id"])
    return pulumi.ResourceOptions(**given)


for entry in scene["resources"]:
    kind = Group if entry.get("group") else Thing
    made[entry["name"]] = kind(
        entry["name"], resolve(entry.get("props", {})), options(entry.get("opts", {}))
    )
for key, value in scene.get("exports", {}).items():
    pulumi.export(key, resolve(value))
if "exit" in scene:
    sys.exit(scene["exit"])
if scene.get("raise"):
    raise ValueError(scene["raise"])
