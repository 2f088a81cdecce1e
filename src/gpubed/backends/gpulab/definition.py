"""The schema of a GPULab job, to find mistakes before submission.

It follows what the public client 3.11.12 accepts and refuses for REST v4.0 (keys, bounds,
patterns); both refuse unknown keys. Not modelled, as unused: e-mail, reservations, SSH keys,
workers by name.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from gpubed.core import wording

# Linux refuses a longer word of a command (MAX_ARG_STRLEN), so the container would not start.
LONGEST_WORD = 131_071

# `[registry[:port]/]name[:tag]`, lower case; digests are refused, and so are credentials here.
ImageName = Annotated[
    str,
    Field(
        pattern=wording.pattern(
            r"^([a-z0-9.-]+(:[0-9]+)?/)?[a-z0-9._-]+(/[a-z0-9._-]+)*(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?$",
            "an image, such as gpulab.ilabt.imec.be:5050/team/train:1",
        )
    ),
]
# A number and a unit: `1d` is refused, `1 day` is not.
Duration = Annotated[
    str,
    Field(
        pattern=r"^[0-9]+(\.[0-9]+)? (h|hours?|m|min|minutes?|s|sec|seconds?|days?|weeks?)$",
    ),
]
AbsolutePath = Annotated[str, Field(pattern=r"^/[^\n:]*$")]
Fragment = Annotated[str, Field(min_length=2)]
Word = Annotated[str, Field(max_length=LONGEST_WORD)]
Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class _Model(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True, strict=True
    )


class Resources(_Model):
    """Resources of a job, all on one worker; memory in whole GB."""

    cpus: int = Field(gt=0)
    gpus: int = Field(ge=0)
    cpu_memory_gb: int = Field(gt=0)
    gpu_model: tuple[Fragment, ...] = ()
    min_cuda_version: int | None = Field(default=None, gt=0)
    cluster_id: int | None = None


class Mount(_Model):
    """Storage in the container; `tmpfs` as host path is memory of `size_gb`."""

    host_path: Literal["tmpfs"] | AbsolutePath
    container_path: AbsolutePath
    size_gb: int | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _only_memory_has_a_size(self) -> Self:
        if (self.host_path == "tmpfs") != (self.size_gb is not None):
            raise ValueError("tmpfs needs sizeGb, and nothing else has it")
        return self


class Docker(_Model):
    """The container."""

    image: ImageName
    command: tuple[Word, ...]
    environment: dict[Variable, str | int | bool] = {}
    storage: tuple[Mount, ...] = ()


class Scheduling(_Model):
    """Scheduling of a job: it runs once, for at most `max_duration`."""

    interactive: bool = False
    restartable: bool = False
    max_duration: Duration


class Request(_Model):
    """Resources, container and scheduling of a job."""

    resources: Resources
    docker: Docker
    scheduling: Scheduling


class Owner(_Model):
    """Project that a job belongs to."""

    project_urn: str = Field(pattern=r"^urn:publicid:IDN\+[^+\s]+\+project\+[^+\s]+$")


class NewJob(_Model):
    """The whole body of `POST jobs`."""

    name: str = Field(min_length=1)
    description: str
    request: Request
    owner: Owner
    deployment_environment: Literal["production", "staging"]

    def document(self) -> bytes:
        """Return the JSON that is sent."""
        return self.model_dump_json(by_alias=True, exclude_none=True).encode()
