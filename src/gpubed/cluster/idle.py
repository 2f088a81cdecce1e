"""Warns of an idle cluster, and releases it if `lease.idle` says so.

Nodes report how long they have been idle in terms of their uptime, so that changes of the clock
do not end a warning. A node that cannot be asked counts as in use.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Literal

from gpubed.cluster import down, lease_policy
from gpubed.cluster import lease as leases
from gpubed.cluster.events import event_file
from gpubed.cluster.watch_memory import RELEASES, Event, Telling, Warned, in_words, log
from gpubed.configuration import usage as uses
from gpubed.configuration.usage import Use
from gpubed.core import reading, runlock
from gpubed.core.errors import GpubedError, Locked
from gpubed.core.paths import ClusterPaths
from gpubed.engines.stack import EngineName
from gpubed.jobs.runs import checkpoints
from gpubed.nodes.allocation import Cluster
from gpubed.spec.sections import Idle

Act = Literal["", "warn", "back", "release"]
_HOOK_S = 60.0
_LONGEST = 1000  # characters of the reason that is passed to the hook


def decide(use: Use, warned: Warned | None, policy: Idle | None) -> Act:
    """Return the action that is due; empty if none is."""
    if warned and (policy is None or use.spell != warned.spell or use.idle_s < warned.idle_s):
        return "back"
    if policy is None or use.idle_s < policy.after:
        return ""
    if warned is None:
        return "warn"
    ends = policy.then == "release" and use.idle_s >= warned.idle_s + policy.warning
    return "release" if ends else ""


def look(cluster: Cluster, held: dict[str, str], *, begun: bool = False) -> Use | None:
    """Return the use that nodes and the controller report; None if nodes do not report any.

    `held` are nodes in quarantine, with the reasons. If a release has `begun`, silent nodes may be
    gone.
    """
    found = uses.look(cluster, ignore_silent=begun)
    if found is None:
        return None
    if who := runlock.measurer(cluster.paths.state):
        return uses.used(found, f"{who} is at work")
    if training := next(iter(checkpoints.trainings(cluster.paths)), None):
        return uses.used(found, f"training {training} goes on")
    for name, why in held.items():
        return uses.used(found, f"{name} is in quarantine ({why}): somebody may be at work on it")
    return found


def care(telling: Telling, engine: EngineName, cluster: Cluster) -> bool:
    """Warn, take a warning back or release if due; return whether a release has begun."""
    policy, warned = cluster.plan.spec.lease.idle, telling.memory.warned
    if not (policy or warned):
        return False
    why = "whether anybody uses it"
    try:
        use = look(cluster, telling.memory.quarantined)
        if use is None:
            return False
        why = f"last use {_minutes(use.idle_s)} ago: {use.why}"
        act = decide(use, warned, policy)
        if act == "back":
            telling.remember(warned=None)
            text = f"gpubed: {cluster.name} stays: the warning is taken back"
            with suppress(GpubedError):
                uses.warn(cluster.paths, cluster.allocation.nodes, text, back=True)
            done = "the warning is taken back" + hook(cluster.paths, policy, act, use)
            telling.tell("idle", why, done)
        elif act == "warn" and policy:
            then = "whoever needs it no more can give it back"
            if policy.then == "release":
                then = f"it is released in {_minutes(policy.warning)} unless somebody uses it"
            text = f"gpubed: nobody has used {cluster.name} for {_minutes(use.idle_s)}: {then}"
            uses.warn(cluster.paths, cluster.allocation.nodes, text)
            telling.remember(warned=Warned(use.idle_s, use.spell))
            # The hook runs last, so that its failure causes no second warning.
            telling.tell("idle", why, f"warned: {then}" + hook(cluster.paths, policy, act, use))
        elif act == "release" and warned:
            return _release(telling, engine, cluster, warned, why)
    except Locked as error:
        telling.tell_once("idle", "waits", why, error.message)
    except GpubedError as error:
        telling.tell_once("idle", "idle", in_words(error), "tried again at the next look")
    else:
        telling.settle("idle")
    return telling.releases and telling.memory.warned is not None


def _release(
    telling: Telling, engine: EngineName, cluster: Cluster, warned: Warned, why: str
) -> bool:
    """Save results at one look and release at the next; return whether the release has begun."""
    cluster.paths.refuse_users_program()
    if not cluster.paths.has_stack:
        raise GpubedError(f"the state of {cluster.name} is lost", f"gpubed audit {cluster.name}")
    done = lease_policy.prepare(cluster, again=warned.saved)
    if not warned.saved:
        telling.remember(warned=replace(warned, saved=True))
        ahead = "released at the next look unless somebody uses it"
        telling.tell("idle", why, "; ".join([*done, ahead]))
        return False
    last = look(cluster, telling.memory.quarantined)
    if last is None or decide(last, warned, cluster.plan.spec.lease.idle) != "release":
        use = last.why if last else "its nodes do not tell any more"
        telling.tell("idle", why, f"not released: {use}")
        return False
    telling.remember(warned=replace(warned, granted=cluster.allocation))
    _give_back(telling, engine, cluster, last, why, done)
    return True


def go_on(telling: Telling, engine: EngineName, cluster: Cluster) -> bool:
    """Continue an unfinished release, if there is one; return whether there is.

    Attempts become rarer. If the cluster was used meanwhile, a person has to decide.
    """
    warned, policy, name = telling.memory.warned, cluster.plan.spec.lease.idle, cluster.name
    if warned is None or not telling.releases:
        return False
    why = f"the release of {name} did not come to its end"
    telling.remember(amiss={})
    if telling.waits or telling.memory.left == why:
        return True
    try:
        use = look(cluster, telling.memory.quarantined, begun=True)
        use = use or Use(warned.idle_s, "no node answers any more", warned.spell)
        if policy and use.idle_s >= warned.idle_s:
            _give_back(telling, engine, cluster, use, why)
        else:
            since = f"there is use since: {use.why}" if policy else "cluster.yml wants none"
            telling.remember(left=why)
            back = f"gpubed down {name}; to have it back: gpubed up {name}"
            telling.leave(f"{why}: {since}", back)
    except Locked as error:
        telling.tell_once("idle", "waits", why, error.message)
    except GpubedError as error:
        telling.tell_once("idle", "idle", why, telling.failed(error))
    return True


def _give_back(
    telling: Telling,
    engine: EngineName,
    cluster: Cluster,
    use: Use,
    why: str,
    done: Sequence[str] = (),
) -> None:
    paths, nodes = cluster.paths, tuple(node.name for node in cluster.allocation.nodes)
    with runlock.measuring(paths.state, RELEASES):
        steps = paths.project.pulumi / f"down-{cluster.name}.jsonl"
        with event_file(paths, "down", steps):
            gone = down.down(paths, engine, keep_data=True, whose=RELEASES)
        steps.unlink(missing_ok=True)
        if left := ", ".join([*gone.survivors, *gone.unseen, *map(str, gone.unasked)]):
            again = f"gpubed down {cluster.name}"
            raise GpubedError(f"not all of {cluster.name} is gone: {left}", again)
    kept = [f"kept {', '.join(gone.kept)}"] if gone.kept else []
    outcome = "; ".join([*done, f"released {len(nodes)} node(s)", *kept])
    outcome += hook(paths, cluster.plan.spec.lease.idle, "released", use)
    told = Event(leases.now(), "idle", why, outcome, nodes)
    if paths.logs.exists():  # it is gone with a link to the cluster's folder
        log(paths, told)
    telling.hear(told)


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min"


def hook(paths: ClusterPaths, policy: Idle | None, what: str, use: Use) -> str:
    """Run the hook, if there is one; return why it failed, or an empty string."""
    if policy is None or not policy.hook:
        return ""
    told = {
        "GPUBED_CLUSTER": paths.name,
        "GPUBED_IDLE": what,
        "GPUBED_IDLE_S": f"{use.idle_s:.0f}",
        "GPUBED_IDLE_WHY": reading.short(use.why, _LONGEST),
    }
    try:
        done = subprocess.run(
            ("sh", "-c", policy.hook),
            cwd=paths.project.root,
            env={**os.environ, **told},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_HOOK_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"; the hook did not end within {_HOOK_S:g} s"
    except (OSError, ValueError) as error:
        return f"; the hook cannot be started: {error}"
    last = reading.tail(done.stderr, 1) or "no word"
    return f"; the hook failed ({done.returncode}): {last}" if done.returncode else ""
