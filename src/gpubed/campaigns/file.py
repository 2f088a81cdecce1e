"""The campaign file: a job, the settings that vary, and how often each point is repeated."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    field_validator,
    model_validator,
)

from gpubed.core import reading, wording, yaml_lines
from gpubed.core.errors import UsageError
from gpubed.core.paths import Project, assets
from gpubed.core.reading import Unreadable
from gpubed.core.text import nearest_name
from gpubed.jobs.jobfile import Value
from gpubed.nodes import link_rates

NODES, RANKS, RATE, ENVIRONMENT = "nodes", "ranks", "rate", "environment"
OWN = (NODES, RANKS, RATE, ENVIRONMENT)
"""Factors that are no arguments of the job."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_Factor = Annotated[
    str,
    Field(
        pattern=wording.pattern(
            r"^[a-z][a-z0-9_]{0,63}$", "lower-case letters, digits and '_', a letter first"
        )
    ),
]
_Text = Annotated[str, Field(max_length=256)]
# 64 bits, which every JSON reader holds.
_Whole = Annotated[int, Field(ge=-(2**63), lt=2**63)]


def _plain(value: object) -> Value:
    """Validate a setting with one message; pydantic gives one for each type of the union."""
    fits = isinstance(value, bool) or (isinstance(value, str) and len(value) <= 256)
    fits = fits or (isinstance(value, int) and -(2**63) <= value < 2**63)
    if not (fits or (isinstance(value, float) and math.isfinite(value))):
        raise ValueError("must be a number, a word, true or false, and none too large")
    return cast(Value, value)


_Value = Annotated[Value, PlainValidator(_plain, json_schema_input_type=Value)]


Key = frozenset[tuple[str, str]]
"""Settings as text, such as `{("batch_size", "32")}`."""


class Unusable(Unreadable):
    """A campaign file is wrong."""

    exit_code = 2


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Stop(_Model):
    """The condition that ends the repetitions of a point early."""

    metric: _Text = Field(description="a number that the job reports")
    relative_width: float = Field(
        gt=0, description="of the mean's 95 % interval, from end to end, as a share of the mean"
    )
    at_least: int = Field(default=3, ge=2, description="repetitions before the width is judged")


class Environment(_Model):
    """What a value of the factor `environment` stands for."""

    container: _Text | None = Field(default=None, description="image that ranks run in")
    launcher: _Text | None = Field(default=None, description="what starts the ranks")


class Campaign(_Model):
    """A campaign file."""

    contract: Literal["gpubed/campaign-file/1"] = Field(
        alias="schema", description="version of this format"
    )
    description: str = Field(default="", description="for readers; it may be changed later")
    job: _Text = Field(description="a folder of `jobs/`")
    factors: dict[_Factor, Annotated[tuple[_Value, ...], Field(min_length=1)]] = Field(
        min_length=1,
        description="what varies: `nodes` or `ranks`, `rate`, `environment`, arguments of the job",
    )
    settings: dict[_Factor, _Value] = Field(
        default={}, description="arguments of the job that are the same for all points"
    )
    exclude: tuple[Annotated[dict[_Factor, _Value], Field(min_length=1)], ...] = Field(
        default=(), description="combinations that are left out; each names some factors' values"
    )
    repeat: int = Field(default=1, ge=1, le=1000, description="repetitions of each point")
    seed: _Whole = Field(default=1, description="of the random order within each round")
    stop: Stop | None = Field(
        default=None, description="when a point has been repeated often enough"
    )
    environments: dict[_Text, Environment] = Field(
        default={}, description="what values of the factor `environment` stand for"
    )

    @field_validator("factors", "exclude", mode="after")
    @classmethod
    def _rates_are_written_alike(cls, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(cls._with_rate(one) for one in value)
        return cls._with_rate(value)

    @staticmethod
    def _with_rate(given: Mapping[str, Any]) -> dict[str, Any]:
        rate = given.get(RATE)
        if rate is None:
            return dict(given)
        several = isinstance(rate, tuple)
        written = tuple(
            link_rates.compact(link_rates.parse(one)) for one in (rate if several else [rate])
        )
        return {**given, RATE: written if several else written[0]}

    @model_validator(mode="after")
    def _parts_agree(self) -> Self:
        if NODES in self.factors and RANKS in self.factors:
            raise ValueError("factors: nodes and ranks exclude each other")
        for name in self.settings:
            if name in self.factors:
                raise ValueError(f"settings: {name} is a factor already")
            if name in OWN:
                raise ValueError(f"settings: {name} is a factor: give it a list of one value there")
        if self.stop and self.stop.at_least > self.repeat:
            raise ValueError(f"stop: at_least is more than repeat ({self.repeat})")
        labels = [text(value) for value in self.factors.get(ENVIRONMENT, ())]
        for name in self.environments:
            if name not in labels:
                raise ValueError(
                    f"environments: {name!r} is no value of the factor environment; "
                    + nearest_name(name, labels)
                )
        return self

    def content(self) -> dict[str, Any]:
        """Return the values of the file that differ from the defaults, for JSON."""
        return self.model_dump(mode="json", by_alias=True, exclude_defaults=True)


@dataclass(frozen=True)
class Source:
    """A campaign file's content, and the line of each value."""

    path: Path
    name: str  # of the campaign: the file's name without its suffix
    campaign: Campaign
    lines: yaml_lines.Located

    def refusal(self, where: tuple[str | int, ...], message: str, hint: str = "") -> UsageError:
        """Return an error that names a value's line and what is wrong with it."""
        dotted = ".".join(map(str, where))
        return UsageError(
            f"{self.path}:{self.lines.line(where)}: {dotted}: {reading.short(message)}",
            hint or None,
        )


def text(value: Value) -> str:
    """Write a value as `--set` takes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def key(settings: Mapping[str, Any]) -> Key:
    """Return a key that is equal for equal settings."""
    return frozenset((name, text(value)) for name, value in settings.items())


def load(given: str, project: Project) -> Source:
    """Read a campaign by the path of its file, or by the name of a file of the project or gpubed.

    Raises:
        Unusable: The file is invalid.
    """
    path = _find(given, project)
    if not _NAME.fullmatch(path.stem):
        raise UsageError(
            f"{path}: a campaign cannot be named {path.stem!r}",
            "give the file a name of letters, digits, - and _",
        )
    document = reading.file(path, f"correct {path}", error=Unusable, limit=yaml_lines.MAX_BYTES)
    campaign = document.yaml(Campaign)
    return Source(path, path.stem, campaign, yaml_lines.parse(document.data))


def _find(given: str, project: Project) -> Path:
    path = Path(given)
    if path.is_file():
        return path
    paths = _paths(project)
    # `campaigns/smoke.yml` also stands for the campaign of that name in gpubed's own folder.
    inside = path.parent.name in ("", "campaigns") and path.suffix in ("", ".yml")
    name = path.name.removesuffix(".yml")
    if inside and name in paths:
        return paths[name]
    raise UsageError(f"there is no campaign {given!r}", nearest_name(name, sorted(paths)))


def names(project: Project) -> list[str]:
    """Return the names of the campaigns in the folders of a project and of gpubed, sorted."""
    return sorted(_paths(project))


def _paths(project: Project) -> dict[str, Path]:
    roots = (assets() / "campaigns", project.campaigns)
    return {path.stem: path for root in roots for path in sorted(root.glob("*.yml"))}
