"""Gives a cluster back that nobody uses, as its specification allows."""

from __future__ import annotations

from dataclasses import replace

from gpubed.cluster import idle, watch_faults, watch_log
from gpubed.cluster import lease as leases
from gpubed.cluster.idle import Warned
from gpubed.cluster.watch_log import Event
from gpubed.cluster.watch_telling import Telling
from gpubed.configuration import health
from gpubed.core.errors import GpubedError, Locked
from gpubed.engines.stack import EngineName
from gpubed.nodes.allocation import Allocation
from gpubed.nodes.cluster import Cluster


class Release:
    """What a watch does about a cluster that nobody uses.

    Args:
        telling: What it remembers and tells.
        engine: What removes nodes.
    """

    def __init__(self, telling: Telling, engine: EngineName) -> None:
        self._telling, self._engine = telling, engine

    @property
    def granted(self) -> Allocation | None:
        """What a release gives back that did not come to its end; None where there is none."""
        return self._releasing.granted if self._releasing else None

    def goes_on(self, cluster: Cluster) -> bool:
        """Go on with a release that did not come to its end; say whether there is one."""
        warned = self._releasing
        if warned:
            self._telling.remember(amiss={})
            self._go_on(cluster, warned)
        return warned is not None

    def lets_go(self, cluster: Cluster) -> bool:
        """Release a cluster where that is due; say whether it is to go."""
        return self._care(cluster) or self._releasing is not None

    def _care(self, cluster: Cluster) -> bool:
        """Do what is due about a cluster that nobody uses; say whether it was released."""
        policy, warned = cluster.plan.spec.lease.idle, self._telling.memory.warned
        if not (policy or warned):
            return False
        why = "whether anybody uses it"
        try:
            used = idle.look(cluster, self._telling.memory.quarantined)
            if used is None:
                return False
            act = idle.decide(used, warned, policy)
            why = f"last use {used.idle_s / 60:.0f} min ago: {used.why}"
            if act == "back":
                self._telling.remember(warned=None)
                told = idle.take_back(cluster)
                self._telling.tell(
                    "idle", why, told + idle.hook(self._telling.paths, policy, "back", used)
                )
            elif act == "warn" and policy:
                told = idle.warn(cluster, used, policy)
                self._telling.remember(warned=Warned(used.idle_s, used.spell))
                self._telling.tell(
                    "idle", why, told + idle.hook(self._telling.paths, policy, "warn", used)
                )
            elif act == "release" and warned:
                return self._release(cluster, warned, why)
        except Locked as error:
            self._telling.tell_once("idle", "waits", why, error.message)
            return False
        except GpubedError as error:
            hint = f" ({error.hint})" if error.hint else ""
            self._telling.tell_once(
                "idle", "idle", error.message + hint, "tried again at the next look"
            )
            return False
        self._telling.settle("idle")
        return False

    def _release(self, cluster: Cluster, warned: Warned, why: str) -> bool:
        if not warned.saved:
            saved = idle.save(cluster)
            self._telling.remember(warned=replace(warned, saved=True))
            self._telling.tell("idle", why, saved)
            return False
        warned = replace(warned, granted=cluster.allocation)
        self._telling.remember(warned=warned)
        if stays := self._given_back(cluster, idle.release, warned, why):
            self._telling.tell("idle", why, stays)
        return not stays

    @property
    def _releasing(self) -> Warned | None:
        """The warning whose release did not come to its end; None also of a person's `down`."""
        return self._telling.memory.warned if idle.is_unfinished(self._telling.paths) else None

    def _go_on(self, cluster: Cluster, warned: Warned) -> None:
        """Go on with a release, further and further apart: half a cluster is of no use."""
        name, wait = self._telling.paths.name, self._telling.memory.wait_until
        if wait and leases.now() < wait:
            return
        why = f"the release of {name} did not come to its end"
        try:
            self._see_who_is_held(cluster)
            if stays := self._given_back(cluster, idle.finish, warned, why):
                back = f"gpubed down {name}; to have it back: gpubed up {name}"
                self._telling.leave(f"{why}: {stays}", back)
        except Locked as error:
            self._telling.tell_once("idle", "waits", why, error.message)
        except GpubedError as error:
            self._telling.tell_once("idle", "idle", why, self._telling.failed(error))

    def _see_who_is_held(self, cluster: Cluster) -> None:
        """Look who was taken out of use: somebody may be at work on what is left since."""
        unwell = health.unwell(cluster)
        silent = [one.node for one in unwell if not one.reachable]
        held = watch_faults.quarantined(silent, unwell, self._telling.memory)
        self._telling.remember(quarantined=held)

    def _given_back(self, cluster: Cluster, act: idle.GiveBack, warned: Warned, why: str) -> str:
        """Give the nodes back, and tell it; return in words why they stay, if they do."""
        held, linked = self._telling.memory.quarantined, self._telling.paths.state.is_symlink()
        with watch_log.kept(self._telling.paths):
            done, gone = act(cluster, self._engine, warned, held)
        if not gone:
            return done
        nodes = tuple(node.name for node in cluster.allocation.nodes)
        told = Event(leases.now(), "idle", why, done, nodes)
        if not linked:
            watch_log.append(self._telling.paths, told)
        self._telling.hear(told)
        return ""
