"""Warns of an idle cluster, and releases it if `lease.idle` says so.

Nodes measure idle time by their uptime, so that a change of the clock does not end a warning. A
node that does not answer counts as in use.
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
from gpubed.cluster.watch_memory import RELEASES, Event, Journal, Warned, in_words, log
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
    """Return the action that is due: "back" takes a warning back; empty if none is due."""
    if warned and (policy is None or use.spell != warned.spell or use.idle_s < warned.idle_s):
        return "back"
    if policy is None or use.idle_s < policy.after:
        return ""
    if warned is None:
        return "warn"
    ends = policy.then == "release" and use.idle_s >= warned.idle_s + policy.warning
    return "release" if ends else ""


def look(cluster: Cluster, held: dict[str, str], *, begun: bool = False) -> Use | None:
    """Return the use that nodes and the controller report; None if nodes report no use.

    `held` are the nodes in quarantine, with the reasons. Once a release has `begun`, silent nodes
    do not count as in use.
    """
    use = uses.look(cluster, ignore_silent=begun)
    if use is None:
        return None
    if measurer := runlock.measurer(cluster.paths.state):
        return uses.used(use, f"{measurer} is at work")
    if training := next(iter(checkpoints.trainings(cluster.paths)), None):
        return uses.used(use, f"training {training} goes on")
    for name, why in held.items():
        return uses.used(use, f"{name} is in quarantine ({why}): somebody may be at work on it")
    return use


def care(journal: Journal, engine: EngineName, cluster: Cluster) -> bool:
    """Warn, take a warning back or release, if due; return whether a release has begun."""
    policy, warned = cluster.plan.spec.lease.idle, journal.memory.warned
    if not (policy or warned):
        return False
    why = "whether anybody uses it"
    try:
        use = look(cluster, journal.memory.quarantined)
        if use is None:
            return False
        why = f"last use {_minutes(use.idle_s)} ago: {use.why}"
        act = decide(use, warned, policy)
        if act == "back":
            journal.remember(warned=None)
            text = f"gpubed: {cluster.name} stays: the warning is taken back"
            with suppress(GpubedError):
                uses.warn(cluster.paths, cluster.allocation.nodes, text, back=True)
            done = "the warning is taken back" + hook(cluster.paths, policy, act, use)
            journal.tell("idle", why, done)
        elif act == "warn" and policy:
            then = f"if nobody needs it, release it: gpubed down {cluster.name}"
            if policy.then == "release":
                then = f"it is released in {_minutes(policy.warning)} unless somebody uses it"
            text = f"gpubed: nobody has used {cluster.name} for {_minutes(use.idle_s)}: {then}"
            uses.warn(cluster.paths, cluster.allocation.nodes, text)
            journal.remember(warned=Warned(use.idle_s, use.spell))
            # The hook runs last, because its failure must not repeat the warning.
            journal.tell("idle", why, f"warned: {then}" + hook(cluster.paths, policy, act, use))
        elif act == "release" and warned:
            return _release(journal, engine, cluster, warned, why)
    except Locked as error:
        journal.tell_once("idle", "waits", why, error.message)
    except GpubedError as error:
        journal.tell_once("idle", "idle", in_words(error), "tried again at the next look")
    else:
        journal.settle("idle")
    return journal.releases and journal.memory.warned is not None


def _release(
    journal: Journal, engine: EngineName, cluster: Cluster, warned: Warned, why: str
) -> bool:
    """Save results at one look, release at the next; return whether the release has begun."""
    cluster.paths.refuse_users_program()
    if not cluster.paths.has_stack:
        raise GpubedError(f"the state of {cluster.name} is lost", f"gpubed audit {cluster.name}")
    done = lease_policy.prepare(cluster, again=warned.saved)
    if not warned.saved:
        journal.remember(warned=replace(warned, saved=True))
        ahead = "released at the next look unless somebody uses it"
        journal.tell("idle", why, "; ".join([*done, ahead]))
        return False
    last = look(cluster, journal.memory.quarantined)
    if last is None or decide(last, warned, cluster.plan.spec.lease.idle) != "release":
        use = last.why if last else "its nodes no longer report use"
        journal.tell("idle", why, f"not released: {use}")
        return False
    journal.remember(warned=replace(warned, granted=cluster.allocation))
    _take_down(journal, engine, cluster, last, why, done)
    return True


def go_on(journal: Journal, engine: EngineName, cluster: Cluster) -> bool:
    """Continue an unfinished release; return whether there is one.

    The waits between attempts grow. If the cluster was used meanwhile, a person has to decide.
    """
    warned, policy, name = journal.memory.warned, cluster.plan.spec.lease.idle, cluster.name
    if warned is None or not journal.releases:
        return False
    why = f"the release of {name} did not come to its end"
    journal.remember(amiss={})
    if journal.waits or journal.memory.left == why:
        return True
    try:
        use = look(cluster, journal.memory.quarantined, begun=True)
        use = use or Use(warned.idle_s, "no node answers any more", warned.spell)
        if policy and use.idle_s >= warned.idle_s:
            _take_down(journal, engine, cluster, use, why)
        else:
            since = f"there is use since: {use.why}" if policy else "cluster.yml asks for none now"
            journal.remember(left=why)
            back = f"gpubed down {name}; to have it back: gpubed up {name}"
            journal.leave(f"{why}: {since}", back)
    except Locked as error:
        journal.tell_once("idle", "waits", why, error.message)
    except GpubedError as error:
        journal.tell_once("idle", "idle", why, journal.failed(error))
    return True


def _take_down(
    journal: Journal,
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
            removal = down.down(paths, engine, keep_data=True, originator=RELEASES)
        steps.unlink(missing_ok=True)
        left = [*removal.survivors, *removal.unseen, *map(str, removal.unasked)]
        if left:
            why_not = f"not all of {cluster.name} was removed: {', '.join(left)}"
            raise GpubedError(why_not, f"gpubed down {cluster.name}")
    kept = [f"kept {', '.join(removal.kept)}"] if removal.kept else []
    outcome = "; ".join([*done, f"released {len(nodes)} node(s)", *kept])
    outcome += hook(paths, cluster.plan.spec.lease.idle, "released", use)
    event = Event(leases.now(), "idle", why, outcome, nodes)
    if paths.logs.exists():  # `down` removes a cluster's folder that is a link
        log(paths, event)
    journal.hear(event)


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min"


def hook(paths: ClusterPaths, policy: Idle | None, what: str, use: Use) -> str:
    """Run the hook, if there is one; return why it failed, or an empty text."""
    if policy is None or not policy.hook:
        return ""
    variables = {
        "GPUBED_CLUSTER": paths.name,
        "GPUBED_IDLE": what,
        "GPUBED_IDLE_S": f"{use.idle_s:.0f}",
        "GPUBED_IDLE_WHY": reading.short(use.why, _LONGEST),
    }
    try:
        done = subprocess.run(
            ("sh", "-c", policy.hook),
            cwd=paths.project.root,
            env={**os.environ, **variables},
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
    last = reading.tail(done.stderr, 1) or "no output"
    return f"; the hook failed ({done.returncode}): {last}" if done.returncode else ""
