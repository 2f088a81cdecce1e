"""From looks to since when a node is idle, and who used it. Pure: asks nothing itself.

What is compared are two looks, and never a clock with another: one that is set or jumps makes
nothing busy or idle. What could not be asked counts as use.
"""

from collections.abc import Iterator, Mapping
from typing import Any

# Between two looks there are seconds that nobody saw: more of them count as use.
GAP_S = 600.0
# A JupyterLab that nobody uses takes a hundredth of a core, a login of gpubed's less than a second.
CORES = 0.1
# In a shorter time one program's start would be much: looks are put together until there is more.
LEAST_S = 30.0
# Bytes each second: a dataset that is copied takes more, exporters and heartbeats far less.
TRAFFIC = 1_000_000.0
# A slow line carries more of a copy than this, and signs of life are far less.
COPY = 10_000.0
# What exporters and heartbeats carry at most: the rest may be a login's that does not tell.
CHATTER = 50_000.0
HOURS = 24
SECONDS = ("cpu_s", "gpu_s", "held_s")
# Of an account, in all hours; it may invent any number, so the further ones are counted together.
_MOST_JOBS, _OTHER_JOBS = 200, "others"
VERSION = 2
_NONE = {"s": 0.0, "cpu_s": 0.0, "bytes": 0, "copied": 0.0}
Record = dict[str, Any]


def first() -> Record:
    """Return a record of nothing: the next look is the first."""
    return {
        "version": VERSION,
        "seen": None,
        "rates": _NONE,
        "idle_s": 0.0,
        "spell": "",
        "last": None,
        "hours": {},
    }


def fold(record: Record, seen: Mapping[str, Any], hour: int) -> Record:
    """Return the record after a look.

    Keys: `seen` (the look itself), `rates` (what was computed and carried over so many seconds,
    which are too few to be judged yet), `idle_s` (seconds without use at that look), `spell`
    (another one after each use), `last` (`who` and `what`, the last use), `hours` (by hour, user
    and job: seconds of CPU, of GPU, and of holding a GPU).

    Args:
        hour: The hour since 1970; it only says where seconds are added.
    """
    before = record["seen"]
    same = before is not None and before["boot"] == seen["boot"]
    elapsed = seen["uptime"] - before["uptime"] if same else seen["uptime"]
    rates = _rates(record["rates"], before, seen, elapsed) if same else _NONE
    use = next(_uses(before if same else None, seen, rates, elapsed), None)
    return {
        "version": VERSION,
        "seen": dict(seen),
        "rates": rates if rates["s"] < LEAST_S else _NONE,
        "idle_s": 0.0 if use else record["idle_s"] + elapsed,
        "spell": f"{seen['boot']} {seen['uptime']:.0f}" if use else record["spell"],
        "last": {"who": use[0], "what": use[1]} if use else record["last"],
        "hours": _added(record["hours"], seen, elapsed if same else 0.0, hour),
    }


def _rates(
    rates: Mapping[str, Any],
    before: Mapping[str, Any],
    seen: Mapping[str, Any],
    elapsed: float,
) -> dict[str, Any]:
    # While gpubed measures or collects, what the network carries is no use, and all else is.
    carried = 0 if seen["own"] else max(0, seen["network"] - before["network"])
    return {
        "s": rates["s"] + elapsed,
        "cpu_s": rates["cpu_s"] + sum(row[2] for row in seen["work"]),
        "bytes": rates["bytes"] + carried,
        "copied": rates["copied"] + _copied(before, seen, max(0.0, carried - CHATTER * elapsed)),
    }


def _copied(before: Mapping[str, Any], seen: Mapping[str, Any], rest: float) -> float:
    """Return the bytes that logins without a terminal carried since the last look.

    Args:
        rest: What they may have carried, where one does not tell.
    """
    told = [copied for _, copied in _by_login(before, seen)]
    return rest if None in told else sum(filter(None, told))


def _by_login(
    before: Mapping[str, Any], seen: Mapping[str, Any]
) -> Iterator[tuple[str, float | None]]:
    """Yield whose each login is, and what it carried since the last look; None where unknown.

    None of gpubed's own is among them.
    """
    others = {key: one for key, one in seen["logins"].items() if key not in seen["own"]}
    for key, (user, carried) in others.items():
        _, known = before["logins"].get(key, ("", 0))
        yield user, None if carried is None else carried - (known or 0)


def _uses(
    before: Mapping[str, Any] | None,
    seen: Mapping[str, Any],
    rates: Mapping[str, Any],
    elapsed: float,
) -> Iterator[tuple[str, str]]:
    """Yield by whom and how the node was used since the last look; the plainest comes first."""
    yield from _now(seen)
    if before is None:
        yield "", "its start"
        return
    yield from _typed(before, seen)
    if rates["s"] >= LEAST_S and rates["cpu_s"] >= CORES * rates["s"]:
        most = max(seen["work"], key=lambda row: row[2], default=[""])
        yield most[0], "programs compute"
    if rates["s"] >= LEAST_S and rates["copied"] >= COPY * rates["s"]:
        who, _ = max(_by_login(before, seen), key=lambda pair: pair[1] or 0.0, default=("", 0.0))
        yield who, "a copy over SSH"
    if rates["s"] >= LEAST_S and rates["bytes"] >= TRAFFIC * rates["s"]:
        yield "", "the network carries data"
    yield from (("", why) for why in seen["mute"])
    if not 0 <= elapsed <= GAP_S:
        yield "", "a time in which nobody looked"


def _now(seen: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what is at work at this moment: jobs, and GPUs; one that does not tell, if held."""
    yield from ((user, job) for user, job in seen["ranks"])
    for gpu in seen["gpus"]:
        if gpu["utilization"] or (gpu["utilization"] is None and gpu["held"]):
            yield (gpu["held"][0][0] if gpu["held"] else ""), "a GPU computes"


def _typed(before: Mapping[str, Any], seen: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield terminals and notebooks that are new, or on which somebody was since the last look."""
    for name, (user, typed) in seen["terminals"].items():
        if before["terminals"].get(name) != [user, typed]:
            yield user, "a terminal"
    for id_, (user, at, state) in seen["kernels"].items():
        known = before["kernels"].get(id_)
        if state == "busy" or known is None or known[1] != at:
            yield user, "a notebook"


def _added(
    hours: Mapping[str, Any], seen: Mapping[str, Any], elapsed: float, hour: int
) -> dict[str, Any]:
    kept = {key: rows for key, rows in hours.items() if 0 <= hour - int(key) < HOURS}
    rows = {(user, job): figures for user, job, *figures in kept.get(str(hour), [])}
    known: dict[str, set[str]] = {}
    for user, job, *_ in (row for told in kept.values() for row in told):
        known.setdefault(user, set()).add(job)

    def add(user: str, job: str, *figures: float) -> None:
        jobs = known.setdefault(user, set())
        job = job if job in jobs or len(jobs) < _MOST_JOBS else _OTHER_JOBS
        jobs.add(job)
        former = rows.get((user, job), [0.0, 0.0, 0.0])
        rows[user, job] = [round(a + b, 2) for a, b in zip(former, figures, strict=True)]

    for user, job, seconds in seen["work"] if elapsed else ():
        add(user, job, seconds, 0.0, 0.0)
    # Who was not there at the last look holds a GPU since then at most.
    span = min(elapsed, GAP_S)
    for gpu in seen["gpus"] if elapsed > 0 else ():
        holders = sorted({(user, job) for user, job in gpu["held"]})
        for user, job in holders or ([("", "")] if gpu["utilization"] else []):
            share = (gpu["utilization"] or 0.0) * span / max(1, len(holders))
            add(user, job, 0.0, share, span)
    if rows:
        kept[str(hour)] = [[*key, *figures] for key, figures in sorted(rows.items())]
    return kept


def total(record: Record) -> list[dict[str, Any]]:
    """Return who used the node in the last hours: seconds of CPU, of GPU, of holding GPUs."""
    found: dict[tuple[str, str], list[float]] = {}
    for rows in record["hours"].values():
        for user, job, *figures in rows:
            former = found.get((user, job), [0.0, 0.0, 0.0])
            found[user, job] = [a + b for a, b in zip(former, figures, strict=True)]
    return [
        {"user": user, "job": job}
        | {name: round(value) for name, value in zip(SECONDS, row, strict=True)}
        for (user, job), row in sorted(found.items())
        if max(row) >= 1
    ]
