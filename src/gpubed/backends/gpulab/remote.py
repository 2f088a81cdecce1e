"""Models of GPULab's answers: jobs, their states and events, clusters and workers.

Only the fields in use are validated; others are ignored.
"""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel


def _as_written(value: object) -> object:
    """The service writes `MUSTHALT`; its own library also reads `Must Halt`."""
    return value.upper().replace(" ", "") if isinstance(value, str) else value


Waiting = Literal["ONHOLD", "QUEUED", "ASSIGNED"]
Ended = Literal["FINISHED", "FAILED", "CANCELLED", "HALTED", "DELETED"]
State = Waiting | Literal["STARTING", "RUNNING", "MUSTHALT", "HALTING", "CANCELLING"] | Ended
WAITING, ENDED = set(get_args(Waiting)), set(get_args(Ended))


class _Model(BaseModel):
    model_config = ConfigDict(
        extra="ignore", frozen=True, alias_generator=to_camel, populate_by_name=True
    )


class Scheduling(_Model):
    """Why a job waits."""

    queued_explanations: tuple[str, ...] | None = None


class Status(_Model):
    """The state of a job."""

    status: Annotated[State, BeforeValidator(_as_written)]
    scheduling: Scheduling | None = None


class RemoteJob(_Model):
    """A job as GPULab has it; `description` carries our labels."""

    uuid: str = Field(pattern=r"^[0-9a-fA-F-]{36}$")
    name: str
    description: str | None = None
    state: Status

    @property
    def status(self) -> State:
        """One of the states of the service's state machine."""
        return self.state.status

    @property
    def ended(self) -> bool:
        """Whether the state is final."""
        return self.status in ENDED

    @property
    def explanation(self) -> str:
        """Why it waits, in the service's words; may be empty."""
        found = self.state.scheduling and self.state.scheduling.queued_explanations
        return "; ".join(found or ())


class Jobs(_Model):
    """The answer to `GET jobs`."""

    items: tuple[RemoteJob, ...]


class Event(_Model):
    """One line of a job's history."""

    msg: str | None = None


class Amount(_Model):
    """How much of something there is; `available` counts what is free and offered."""

    system_total: int = 0
    available: int = 0


class Gpu(_Model):
    """A kind of GPU."""

    name: str


class Cluster(_Model):
    """One of GPULab's clusters: workers of one kind."""

    cluster_id: int
    comment: str | None = None
    slave_count: int = 0
    gpu_model: tuple[Gpu, ...] = ()
    gpu: Amount = Amount()
    have_access: bool | None = None
    storage_paths_available: tuple[str, ...] | None = None


class Worker(_Model):
    """A machine that runs jobs (`slave` in the service's words)."""

    name: str
    cluster_id: int
    gpu_model: tuple[Gpu, ...] = ()
    gpu: Amount = Amount()
    cpu: Amount = Amount()
    cpu_memory_mb: Amount = Amount()
    cuda_version_major: int | None = None
    accepting_jobs: bool = True
    shutting_down: bool = False
