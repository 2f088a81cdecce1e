"""Computes the idle time and the users of a node from two looks at it.

Time is counted by uptime, so that clock changes count neither as use nor as idle time. A failed
measurement counts as use.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

GAP_S = 600.0  # a longer time between two looks counts as use
CORES = 0.1  # an unused JupyterLab takes a hundredth of a core
LEAST_S = 30.0  # shorter looks are added up, so that the start of a program is no use
COPY = 10_000.0  # byte/s over SSH that count as a copy; keepalives are far below
HOURS = 24
SECONDS = ("cpu_s", "gpu_s", "held_s")
_MOST_JOBS, _OTHER_JOBS = 200, "others"  # jobs of an account, which may invent any number
VERSION = 3
_NONE = {"s": 0.0, "cpu_s": 0.0, "copied": 0.0}
Record = dict[str, Any]


def first() -> Record:
    """Return the record of a node without looks."""
    empty = {"seen": None, "rates": _NONE, "idle_s": 0.0, "spell": "", "last": None, "hours": {}}
    return {"version": VERSION, **empty}


def fold(record: Record, seen: Mapping[str, Any], hour: int) -> Record:
    """Return the record after a look.

    Keys: `seen` (the look), `rates` (what was computed and copied in how many seconds, while these
    are too few to judge), `idle_s` (seconds without use), `spell` (changes with each use), `last`
    (`who` and `what`, the last use), `hours` (by hour, user and job: seconds of CPU, of GPU, and of
    holding a GPU).

    Args:
        hour: Hours since 1970: where seconds are added.
    """
    before = record["seen"]
    if before is None or before["boot"] != seen["boot"]:
        before = None
    elapsed = seen["uptime"] - (before["uptime"] if before else 0.0)
    rates = _NONE
    if before:
        copied = sum(carried for _, carried in _logins(before, seen, elapsed))
        added = (elapsed, sum(row[2] for row in seen["work"]), copied)
        rates = {key: record["rates"][key] + more for key, more in zip(_NONE, added, strict=True)}
    use = next(_uses(before, seen, rates, elapsed), None)
    return {
        "version": VERSION,
        "seen": dict(seen),
        "rates": rates if rates["s"] < LEAST_S else _NONE,
        "idle_s": 0.0 if use else record["idle_s"] + elapsed,
        "spell": f"{seen['boot']} {seen['uptime']:.0f}" if use else record["spell"],
        "last": {"who": use[0], "what": use[1]} if use else record["last"],
        "hours": _added(record["hours"], seen, elapsed if before else 0.0, hour),
    }


def _logins(
    before: Mapping[str, Any], seen: Mapping[str, Any], elapsed: float
) -> Iterator[tuple[str, float]]:
    """Yield the account of each login without a terminal, and the bytes that it transferred.

    One that cannot be read counts as a copy. Logins of gpubed itself are left out.
    """
    for key, (user, carried) in seen["logins"].items():
        if key not in seen["own"]:
            known = before["logins"].get(key)
            if carried is None:
                yield user, COPY * elapsed if known else 0.0
            else:
                yield user, carried - ((known and known[1]) or 0)


def _uses(
    before: Mapping[str, Any] | None,
    seen: Mapping[str, Any],
    rates: Mapping[str, float],
    elapsed: float,
) -> Iterator[tuple[str, str]]:
    """Yield each user and kind of use since the last look."""
    yield from ((user, job) for user, job in seen["ranks"])
    for gpu in seen["gpus"]:
        if gpu["utilization"] or (gpu["utilization"] is None and gpu["held"]):
            yield (gpu["held"][0][0] if gpu["held"] else ""), "a GPU computes"
    if before is None:
        yield "", "its start"
        return
    yield from _typed(before, seen)
    if rates["s"] >= LEAST_S and rates["cpu_s"] >= CORES * rates["s"]:
        yield max(seen["work"], key=lambda row: row[2], default=[""])[0], "programs compute"
    if rates["s"] >= LEAST_S and rates["copied"] >= COPY * rates["s"]:
        logins = _logins(before, seen, elapsed)
        yield max(logins, key=lambda one: one[1], default=("", 0.0))[0], "a copy over SSH"
    yield from (("", why) for why in seen["mute"])
    if not 0 <= elapsed <= GAP_S:
        yield "", "a time in which nobody looked"


def _typed(before: Mapping[str, Any], seen: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, (user, typed) in seen["terminals"].items():
        if before["terminals"].get(name) != [user, typed]:
            yield user, "a terminal"
    for id_, (user, at, state) in seen["kernels"].items():
        if state == "busy" or before["kernels"].get(id_, ("", None))[1] != at:
            yield user, "a notebook"


def _added(
    hours: Mapping[str, Any], seen: Mapping[str, Any], elapsed: float, hour: int
) -> dict[str, Any]:
    kept = {key: rows for key, rows in hours.items() if 0 <= hour - int(key) < HOURS}
    rows = {(user, job): figures for user, job, *figures in kept.get(str(hour), [])}
    known = defaultdict(set)
    for user, job, *_ in (row for told in kept.values() for row in told):
        known[user].add(job)

    def add(user: str, job: str, *figures: float) -> None:
        if job not in known[user] and len(known[user]) >= _MOST_JOBS:
            job = _OTHER_JOBS
        known[user].add(job)
        former = rows.get((user, job), [0.0, 0.0, 0.0])
        rows[user, job] = [round(a + b, 2) for a, b in zip(former, figures, strict=True)]

    for user, job, seconds in seen["work"] if elapsed else ():
        add(user, job, seconds, 0.0, 0.0)
    span = min(elapsed, GAP_S)  # a program holds a GPU since the last look at most
    for gpu in seen["gpus"] if elapsed > 0 else ():
        holders = sorted({(user, job) for user, job in gpu["held"]})
        for user, job in holders or ([("", "")] if gpu["utilization"] else []):
            add(user, job, 0.0, (gpu["utilization"] or 0.0) * span / max(1, len(holders)), span)
    if rows:
        kept[str(hour)] = [[*key, *figures] for key, figures in sorted(rows.items())]
    return kept


def total(record: Record) -> list[dict[str, Any]]:
    """Return the use of the last 24 hours by user: seconds of CPU, of GPU, of holding GPUs."""
    found = defaultdict(lambda: [0.0, 0.0, 0.0])
    for user, job, *figures in (row for rows in record["hours"].values() for row in rows):
        found[user, job] = [a + b for a, b in zip(found[user, job], figures, strict=True)]
    return [
        {"user": user, "job": job, **{k: round(v) for k, v in zip(SECONDS, row, strict=True)}}
        for (user, job), row in sorted(found.items())
        if max(row) >= 1
    ]
