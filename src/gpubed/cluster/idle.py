"""What becomes of a cluster that nobody uses: a warning, and where that is wanted its release.

How long nobody used it, its nodes say, each by how long it has been up: no clock is compared
with another, and one that jumps makes nothing idle. A warning lasts as long as nodes say, too.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from gpubed.cluster import before_end, down
from gpubed.cluster.events import event_file
from gpubed.configuration import use as uses
from gpubed.configuration.use import Use
from gpubed.core import reading, record, runlock
from gpubed.core.errors import GpubedError
from gpubed.core.paths import ClusterPaths
from gpubed.core.reading import Unreadable
from gpubed.engines.stack import EngineName
from gpubed.jobs.runs import checkpoints
from gpubed.nodes.allocation import Allocation
from gpubed.nodes.cluster import Cluster
from gpubed.spec.sections import Idle

Act = Literal["", "warn", "back", "release"]
_HOOK_S = 60.0
_LONGEST = 1000  # characters of the reason that a hook is told
_WHO = "watch"  # releases it, says the sign that something is being removed


@dataclass(frozen=True)
class Warned:
    """A warning that was given.

    Attributes:
        idle_s: After how many idle seconds.
        spell: Which use was the last then.
        saved: Whether results were saved since.
        granted: What the release that was begun gives back; its own file goes before the nodes.
    """

    idle_s: float
    spell: str
    saved: bool = False
    granted: Allocation | None = None


GiveBack = Callable[[Cluster, EngineName, Warned, dict[str, str]], tuple[str, bool]]
"""`release`, or `finish`."""


def decide(use: Use, warned: Warned | None, policy: Idle | None) -> Act:
    """Say what is due; empty where nothing is.

    Args:
        use: What the nodes say.
        warned: The warning that lasts; None where there is none.
        policy: What `cluster.yml` says; None where it says nothing (any more).
    """
    if warned and (policy is None or use.spell != warned.spell or use.idle_s < warned.idle_s):
        return "back"
    if policy is None or use.idle_s < policy.after:
        return ""
    if warned is None:
        return "warn"
    ends = policy.then == "release" and use.idle_s >= warned.idle_s + policy.warning
    return "release" if ends else ""


def look(cluster: Cluster, held: dict[str, str], *, begun: bool = False) -> Use | None:
    """Ask the nodes, and add what only the controller knows; None where nodes do not tell.

    Args:
        held: Nodes that a person took out of use, with why: somebody may be at work on them.
        begun: Whether the release was begun, so that who does not answer may be gone.
    """
    found = uses.look(cluster, who_answers=begun)
    if found is None:
        return None
    if who := runlock.measurer(cluster.paths.state):
        return uses.used(found, f"{who} is at work")
    if training := next(iter(checkpoints.trainings(cluster.paths)), None):
        return uses.used(found, f"training {training} goes on")
    if held:
        name, why = next(iter(held.items()))
        return uses.used(found, f"{name} is in quarantine ({why}): somebody may be at work on it")
    return found


def warn(cluster: Cluster, use: Use, policy: Idle) -> str:
    """Warn whoever is on the nodes; return what was done, in words. The hook is for later.

    Raises:
        GpubedError: Not all nodes could be told: that is no warning yet.
    """
    goes = f"it is released in {_minutes(policy.warning)} unless somebody uses it"
    then = goes if policy.then == "release" else "whoever needs it no more can give it back"
    text = f"gpubed: nobody has used {cluster.name} for {_minutes(use.idle_s)}: {then}"
    uses.warn(cluster.paths, cluster.allocation.nodes, text)
    return f"warned: {then}"


def take_back(cluster: Cluster) -> str:
    """Take a warning back; return what was done, in words. Who cannot be told is used anyway.

    The hook is for later.
    """
    told = ""
    try:
        text = f"gpubed: {cluster.name} stays: the warning is taken back"
        uses.warn(cluster.paths, cluster.allocation.nodes, text, back=True)
    except GpubedError as error:
        told = f" (not told: {error.message})"
    return f"the warning is taken back{told}"


def save(cluster: Cluster) -> str:
    """Save results before a release; return what was done, in words.

    What the network carries meanwhile counts as no use: somebody whom nothing else tells of is
    seen by a look after it, and so it is not the one that releases.

    Raises:
        GpubedError: Not all could be saved (the rest is all the same), or it could not be released.
    """
    _require_state(cluster)
    done = before_end.prepare(cluster)
    return "; ".join([*done, "released at the next look unless somebody uses it"])


def release(
    cluster: Cluster,
    engine: EngineName,
    warned: Warned,
    held: dict[str, str],
) -> tuple[str, bool]:
    """Save what is new of results, ask once more, and give the nodes back; volumes stay.

    Args:
        warned: The warning: a use after it, also while results are saved, keeps the cluster.

    Returns:
        What was done, in words, and whether the nodes are given back.

    Raises:
        Locked: A job has begun.
        GpubedError: Results could not be saved, or not all could be removed: `finish` goes on.
    """
    paths, policy = cluster.paths, cluster.plan.spec.lease.idle
    _require_state(cluster)
    saved = before_end.prepare(cluster, again=True)
    last = look(cluster, held)
    if policy is None or last is None or decide(last, warned, policy) != "release":
        return f"not released: {last.why if last else 'its nodes do not tell any more'}", False
    done = [*saved, *_give_back(cluster, engine)]
    return f"{'; '.join(done)}{hook(paths, policy, 'released', last)}", True


def _require_state(cluster: Cluster) -> None:
    if not cluster.paths.has_stack:
        raise GpubedError(f"the state of {cluster.name} is lost", f"gpubed audit {cluster.name}")


def is_unfinished(paths: ClusterPaths) -> bool:
    """Say whether a release did not come to its end; what a person's `down` left is theirs."""
    try:
        return record.read(paths).removing == _WHO
    except Unreadable:
        return False


def finish(
    cluster: Cluster,
    engine: EngineName,
    warned: Warned,
    held: dict[str, str],
) -> tuple[str, bool]:
    """Go on with a release that did not come to its end, unless what is left was used since.

    Results are saved by then, and who does not answer is not waited for: it may be half removed.

    Args:
        warned: The warning: a use after it leaves to a person what becomes of the rest.

    Returns:
        What was done, in words, and whether the nodes are given back.

    Raises:
        Locked: A job has begun.
        GpubedError: Not all could be removed.
    """
    policy, last = cluster.plan.spec.lease.idle, look(cluster, held, begun=True)
    if policy is None:
        return "cluster.yml wants none any more", False
    if last and decide(last, _of_the_rest(warned, last), policy) != "release":
        return f"there is use since: {last.why}", False
    last = last or Use(warned.idle_s, "no node answers any more", warned.spell)
    done = _give_back(cluster, engine)
    return f"{'; '.join(done)}{hook(cluster.paths, policy, 'released', last)}", True


def _of_the_rest(warned: Warned, use: Use) -> Warned:
    """Return a warning as of the nodes that still tell: of others it is not known any more."""
    same = {*use.spell.splitlines()} <= {*warned.spell.splitlines()}
    return replace(warned, spell=use.spell) if same else warned


def _give_back(cluster: Cluster, engine: EngineName) -> list[str]:
    """Remove a cluster but for its volumes; return what was done, in words."""
    paths = cluster.paths
    with runlock.measuring(paths.state, _WHO):
        path = paths.project.pulumi / f"down-{cluster.name}.jsonl"
        with event_file(paths, "down", path):
            gone = down.down(paths, engine, keep_data=True, whose=_WHO)
        path.unlink(missing_ok=True)
    if left := [*gone.survivors, *gone.unseen, *map(str, gone.unasked)]:
        raise GpubedError(
            f"not all of {cluster.name} is gone: {', '.join(left)}", f"gpubed down {cluster.name}"
        )
    done = f"released {len(cluster.allocation.nodes)} node(s)"
    return [done, f"kept {', '.join(gone.kept)}"] if gone.kept else [done]


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min"


def hook(paths: ClusterPaths, policy: Idle | None, what: str, use: Use) -> str:
    """Run the hook, if there is one; return in words how it failed, else nothing.

    It is the last of what is done, so that what a warning or a release needs to be remembered is:
    whatever becomes of the hook, nobody is warned twice.

    Args:
        what: What was done: warn, back or released.
    """
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
    except (OSError, ValueError) as error:  # it cannot be started, or not with these words
        return f"; the hook cannot be started: {error}"
    last = reading.tail(done.stderr, 1) or "no word"
    return f"; the hook failed ({done.returncode}): {last}" if done.returncode else ""
