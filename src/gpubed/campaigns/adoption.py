"""Adopts successful runs whose points a killed campaign had not recorded yet."""

from __future__ import annotations

from collections.abc import Mapping

from gpubed.campaigns import provenance
from gpubed.campaigns.matrix import Point
from gpubed.campaigns.records import Key, Record
from gpubed.core.paths import ClusterPaths
from gpubed.jobs.runs import record as runs


def set_of(kin: str, id_: str) -> str:
    """Return the set name that all repetitions of a point share."""
    return f"{kin}.{id_}"


def ended_well(
    paths: ClusterPaths, kin: str, made_with: Mapping[str, str]
) -> dict[Key, runs.Record]:
    """Return a campaign's successful runs by point and repetition; `kin` prefixes its set names."""
    found = {}
    for run in runs.every(paths)[0].values():
        id_ = run.set.removeprefix(f"{kin}.")
        if run.repetition is None or id_ == run.set or run.state != "ok":
            continue
        if _is_alike(run, made_with) and _is_whole(paths, run):
            found[id_, run.repetition] = run
    return found


def record(paths: ClusterPaths, point: Point, run: runs.Record) -> Record:
    """Return the record of a point that a run has measured."""
    rates = run.origin.rates_bps if point.rate_bps is not None else {}
    links = (link.split(">") for link in rates)
    return Record(
        id=point.id,
        repetition=run.repetition or 0,
        status="ok",
        settings=dict(point.settings),
        run_id=run.run_id,
        run_dir=str(paths.runs / run.run_id),
        started=run.started.isoformat(timespec="milliseconds"),
        seconds=run.seconds or 0.0,
        metrics=run.metrics,
        image=run.origin.image,
        links=[
            {"src": ends[0], "dst": ends[-1], "measured_bps": rate}
            for ends, rate in zip(links, rates.values(), strict=True)
        ],
        devices=list(run.devices),
    )


def _is_alike(run: runs.Record, made_with: Mapping[str, str]) -> bool:
    images = [id_ for name, id_ in made_with.items() if name.startswith(provenance.IMAGE)]
    same = run.origin.job_sha256 == made_with.get("the job's files", run.origin.job_sha256)
    return same and (not run.origin.image or not images or run.origin.image in images)


def _is_whole(paths: ClusterPaths, run: runs.Record) -> bool:
    """Say whether the run's files are unchanged; seals a run that was killed before its seal."""
    folder = paths.runs / run.run_id
    if not (folder / runs.SUMS).exists():
        runs.seal(folder)
    return not runs.unsealed(folder)
