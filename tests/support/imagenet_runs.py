"""Records of runs of job imagenet, as `gpubed run` keeps them."""

from datetime import UTC, datetime

from gpubed.jobs import jobfile
from gpubed.jobs.runs import record
from support.samples import sample_origin


def ran(runs, rate, hour=10, ranks=1, **settings):
    """Write a run on CPUs that has ended well; `runs` is the cluster's folder of them."""
    started = datetime(2026, 11, 23, hour, tzinfo=UTC)
    given = {name: str(value) for name, value in settings.items()}
    values = jobfile.load("imagenet").values("imagenet", given)
    step_s = ranks * values["batch_size"] / rate
    run = record.Record(
        run_id=f"{started:%Y-%m-%dT%H%M%SZ}-imagenet",
        request=record.Request(job="imagenet", settings=given),
        origin=sample_origin(),
        command=(),
        values=values,
        world_size=ranks,
        started=started,
        state="ok",
        seconds=values["steps"] * step_s + 20,
        metrics={
            "images_per_s": rate,
            "step_s": step_s,
            "steps": values["steps"],
            "device": "cpu",
            "emulated": None,
        },
    )
    (runs / run.run_id).mkdir(parents=True)
    record.write(runs / run.run_id, run)
