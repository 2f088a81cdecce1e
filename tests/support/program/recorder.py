"""A dynamic provider that writes down every call and fails when told to."""

import json
import os
import subprocess
import time
from pathlib import Path

from pulumi.dynamic import (
    CheckFailure,
    CheckResult,
    CreateResult,
    DiffResult,
    ReadResult,
    Resource,
    ResourceProvider,
    UpdateResult,
)

# A change of one of these keys replaces the resource.
REPLACING = ("name", "zone")


def _unknown(_value):
    return "unknown"


class Recorder(ResourceProvider):
    def check(self, olds, news):
        self._note("check", news, olds=olds, news=news)
        failures = [CheckFailure("size", "too big")] if news.get("size") == 99 else []
        return CheckResult(news, failures)

    def diff(self, id_, olds, news):
        self._note("diff", news, id=id_, olds=olds, news=news)
        if news.get("plain"):
            return DiffResult()
        keys = [k for k in {**olds, **news} if k not in ("__provider", "ip", "serial")]
        changed = [k for k in keys if olds.get(k) != news.get(k)]
        replaces = [k for k in changed if k in REPLACING]
        return DiffResult(bool(changed), replaces, [], bool(news.get("first")))

    def create(self, props):
        self._note("create", props, news=props)
        if props.get("spawn"):
            # In a session of its own, as tools that need a terminal are started.
            subprocess.Popen(["sleep", "300"], start_new_session=True)
        time.sleep(props.get("sleep", 0))
        self._maybe_fail("create", props)
        return CreateResult(f"id-{props['name']}", self._outputs(props))

    def update(self, id_, olds, news):
        self._note("update", news, id=id_, olds=olds, news=news)
        self._maybe_fail("update", news)
        return UpdateResult(self._outputs(news))

    def delete(self, id_, props):
        self._note("delete", props, id=id_, olds=props)
        self._maybe_fail("delete", props)

    def read(self, id_, props):
        self._note("read", props, id=id_, olds=props)
        self._maybe_fail("read", props)
        if f"gone:{props['name']}" in self._orders():
            return ReadResult("", {})
        drift = {"serial": "drifted"} if f"drift:{props['name']}" in self._orders() else {}
        return ReadResult(id_, {**props, **drift})

    def _outputs(self, props):
        return {**props, "ip": f"10.0.0.{len(props['name'])}", "serial": f"s-{props.get('size')}"}

    def _maybe_fail(self, verb, props):
        if f"{verb}:{props['name']}" in self._orders():
            raise RuntimeError(f"cannot {verb} {props['name']}")

    def _orders(self):
        return json.loads(Path(os.environ["SCENE"]).read_text()).get("orders", [])

    def _note(self, verb, about, **what):
        # The pickled provider is long and its own business.
        masked = {
            k: {**v, "__provider": "…"} if isinstance(v, dict) and v else v for k, v in what.items()
        }
        with Path(os.environ["CALLS"]).open("a") as file:
            line = json.dumps([verb, about.get("name"), masked], sort_keys=True, default=_unknown)
            file.write(line + "\n")


class Thing(Resource):
    ip: object
    serial: object
    key: object

    def __init__(self, name, props, opts):
        super().__init__(
            Recorder(), name, {"name": name, "ip": None, "serial": None, "key": None, **props}, opts
        )
