"""`job.yml`: the program of a job, its arguments and its metrics.

Arguments are checked before anything starts; the program gets valid ones only.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from gpubed.core import reading, wording
from gpubed.core.errors import UsageError
from gpubed.core.paths import Project, assets
from gpubed.core.reading import Unreadable
from gpubed.core.text import nearest_name, word_fault
from gpubed.jobs import launchers
from gpubed.jobs.checkpoint_files import folder_fault, folder_name
from gpubed.spec.sections import Python

if TYPE_CHECKING:
    from gpubed.jobs.runs.record import Request

Value = bool | int | float | str
_Name = Annotated[
    str,
    Field(
        pattern=wording.pattern(
            r"^[a-z][a-z0-9_]*$", "lower-case letters, digits and '_', a letter first"
        )
    ),
]
# Each type's validator, and its name in messages.
_TYPES: dict[str, tuple[TypeAdapter[Any], str]] = {
    "int": (TypeAdapter(int), "a whole number"),
    "float": (TypeAdapter(FiniteFloat), "a number"),
    "bool": (TypeAdapter(bool), "true or false"),
    "str": (TypeAdapter(str), "a text"),
}


class Unusable(Unreadable):
    """A job's description is wrong."""

    exit_code = 2


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _require_room(least: float | None, most: float | None) -> None:
    if least is not None and most is not None and least > most:
        raise ValueError(f"at_least ({least:g}) is more than at_most ({most:g})")


def _leads_out(path: PurePosixPath) -> bool:
    return path.is_absolute() or ".." in path.parts


CHECKPOINT = "checkpoint"
"""The only argument of a command, which gets the folder in `GPUBED_CHECKPOINTS`."""


class Argument(_Model):
    """An argument of a job; the program gets `keep_every` as `--keep-every=value`, unless null."""

    type: Literal["int", "float", "bool", "str"] | None = Field(
        default=None, description="by default that of `default`, or `str`"
    )
    default: Value | None = Field(default=None, description="null leaves the argument out")
    required: bool = Field(default=False, description="whether `--set` must give it")
    choices: tuple[Value, ...] = Field(default=(), description="the values that it may have")
    at_least: FiniteFloat | None = Field(default=None, description="the least that it may be")
    at_most: FiniteFloat | None = Field(default=None, description="the most that it may be")
    resumes: bool = Field(
        default=False,
        description="whether it names the checkpoint folder that runs resume from: repetitions "
        "are refused then",
    )
    dataset: bool = Field(
        default=False,
        description="whether it names a folder of the cluster's datasets: a campaign notices "
        "when that is made again",
    )
    help: str = Field(default="", description="what it is")

    @model_validator(mode="after")
    def _default_is_allowed(self) -> Self:
        if self.required and self.default is not None:
            raise ValueError("a required argument has no default")
        if (self.at_least, self.at_most) != (None, None) and not self.is_number:
            raise ValueError("at_least and at_most need `type: int` or `type: float`")
        _require_room(self.at_least, self.at_most)
        if (self.resumes or self.dataset) and self.kind != "str":
            raise ValueError("resumes and dataset need `type: str`: the value names a folder")
        if why := next(filter(None, map(self.fault, self.choices)), ""):
            raise ValueError(f"choice {why}")
        if self.default is not None and (why := self.fault(self.default)):
            raise ValueError(f"default {why}")
        return self

    @property
    def kind(self) -> str:
        """The name of its type."""
        given = [self.default] if self.default is not None else [*self.choices] or [""]
        kinds = {type(value).__name__ for value in given}
        return self.type or ("float" if kinds == {"int", "float"} else type(given[0]).__name__)

    @property
    def is_number(self) -> bool:
        """Whether its type is `int` or `float`."""
        return self.kind in ("int", "float")

    def read(self, given: Value) -> Value:
        """Convert a text or a default to the argument's type; normalize the name of a folder.

        Raises:
            ValidationError: The text has another type; `fault` says why.
        """
        value: Value = _TYPES[self.kind][0].validate_python(given)
        return folder_name(str(value)) if self.resumes else value

    def fault(self, value: Value) -> str:
        """Return why a value is not allowed; empty if it is."""
        adapter, wanted = _TYPES[self.kind]
        shown = reading.short(repr(value))
        if isinstance(value, str) and (why := word_fault(value)):
            return f"{shown} {why}"
        try:
            read = adapter.validate_python(value)
        except ValidationError:
            return f"{shown} is not {wanted}"
        if self.choices and read not in self.choices:
            return f"{shown} is not one of {', '.join(map(str, self.choices))}"
        if self.dataset and _leads_out(PurePosixPath(read)):
            return f"{shown} leads out of the cluster's datasets"
        if self.resumes and (why := folder_fault(str(read))):
            return why
        if self.at_least is not None and not read >= self.at_least:
            return f"{reading.short(str(value))} is less than {self.at_least:g}"
        if self.at_most is not None and not read <= self.at_most:
            return f"{reading.short(str(value))} is more than {self.at_most:g}"
        return ""


class Metric(_Model):
    """A figure that a job reports."""

    unit: str = Field(
        default="", description="of the value; `1` for a share or a ratio, empty for words"
    )
    columns: dict[str, str] = Field(
        default={}, description="of a list of rows: which keys to show, and the unit of each"
    )
    note: str = Field(default="", description="a note below a list of rows")
    setting: bool = Field(
        default=False, description="whether it is a setting of the run instead of a measurement"
    )
    help: str = Field(default="", description="what it is")


class Equality(_Model):
    """A metric with a certain value."""

    metric: str
    equals: str | int | float


class Condition(_Model):
    """What a metric must be for a run to succeed; a metric that is null meets every condition."""

    metric: str = Field(description="a name of `metrics`")
    equals: str | int | FiniteFloat | None = Field(
        default=None, description="the value; `ranks` stands for the world size"
    )
    at_least: FiniteFloat | None = None
    at_most: FiniteFloat | None = None
    unless: Equality | None = Field(default=None, description="does not apply where this holds")
    from_arguments: dict[str, FiniteFloat] = Field(
        default={}, description="does not apply to a run with smaller ones than these"
    )

    @model_validator(mode="after")
    def _can_be_met(self) -> Self:
        _require_room(self.at_least, self.at_most)
        return self

    def applies(self, metrics: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
        """Return whether the condition applies to a run with these metrics and arguments."""
        if self.unless and metrics.get(self.unless.metric) == self.unless.equals:
            return False
        return not self.is_beyond(values)

    def is_beyond(self, values: Mapping[str, Any]) -> bool:
        """Return whether a run with these arguments is too small for the condition."""
        return any(values[name] < least for name, least in self.from_arguments.items())

    def broken_by(self, metrics: Mapping[str, Any], ranks: int) -> str:
        """Return how the metrics break the condition; empty if they do not."""
        value, wanted = metrics.get(self.metric), ranks if self.equals == "ranks" else self.equals
        if self.metric not in metrics:
            return f"{self.metric} was not reported"
        if value is None:
            return ""
        if wanted is not None and value != wanted:
            return f"{self.metric} is {value} instead of {wanted}"
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number and (self.at_least, self.at_most) != (None, None):
            return f"{self.metric} is {value!r} instead of a number"
        # Negated, so that NaN does not pass.
        if self.at_least is not None and not value >= self.at_least:
            return f"{self.metric} is {value:.4g}, at least {self.at_least:g} is needed"
        if self.at_most is not None and not value <= self.at_most:
            return f"{self.metric} is {value:.4g}, at most {self.at_most:g} is allowed"
        return ""


def _names_exist(condition: Condition, info: ValidationInfo) -> Condition:
    """Refuse a condition on an unknown metric or argument.

    A validator of each single condition, so that the error names its line. `info.data` lacks the
    parts of the file that are invalid.
    """
    metrics, arguments = info.data.get("metrics"), info.data.get("arguments")
    if metrics is not None and condition.metric not in metrics:
        close = nearest_name(condition.metric, metrics)
        raise ValueError(f"there is no metric {condition.metric!r}; {close}")
    if arguments is None:
        return condition
    for name in condition.from_arguments:
        argument = arguments.get(name)
        if argument is None or argument.default is None or not argument.is_number:
            raise ValueError(f"there is no argument {name!r} with a number as its default")
    return condition


def _launcher_exists(launcher: str) -> str:
    if launcher not in launchers.names():
        close = nearest_name(launcher, launchers.names())
        raise ValueError(f"there is no launcher {launcher!r}; {close}")
    return launcher


def _has_a_program(command: tuple[str, ...]) -> tuple[str, ...]:
    if command and not command[0].strip():
        raise ValueError("its first word, the program, is empty")
    return command


def _resumes_by_one(arguments: dict[str, Argument]) -> dict[str, Argument]:
    """Refuse several arguments that resume: a training has one folder of checkpoints."""
    several = [name for name, one in arguments.items() if one.resumes]
    if len(several) > 1:
        raise ValueError(f"only one argument may have `resumes: true`: {', '.join(several)}")
    return arguments


class Job(_Model):
    """`job.yml`, the description of a job in its folder."""

    contract: Literal["gpubed/job/1"] = Field(
        default="gpubed/job/1", alias="schema", description="version of this format"
    )
    description: str = Field(default="", description="one line for the list of jobs")
    launcher: Annotated[str, AfterValidator(_launcher_exists)] = Field(
        default="ssh", description="`ssh`, or `slurm`; a testbed that runs jobs has its own"
    )
    ranks: Literal["all"] = Field(default="all", description="one on each slot of the cluster")
    command: Annotated[tuple[str, ...], AfterValidator(_has_a_program)] = Field(
        min_length=1, description="what each rank runs, in the run's folder"
    )
    container: str | None = Field(
        default=None, description="container image for ranks; null runs them without a container"
    )
    python: Python = Field(default=Python(), description="packages beside the cluster's own")
    progress: bool = Field(
        default=False,
        description="whether it prints progress lines, the first within 10 minutes: "
        "without them, `--elastic` ends the run as stuck",
    )
    arguments: Annotated[dict[_Name, Argument], AfterValidator(_resumes_by_one)] = Field(
        default={}, description="what `--set` takes, by name"
    )
    metrics: dict[str, Metric] = Field(
        default={},
        description="what the job writes to `metrics.json`, by name; a run without it has failed",
    )
    sanity: tuple[Annotated[Condition, AfterValidator(_names_exist)], ...] = Field(
        default=(), description="conditions that metrics must meet for the run to succeed"
    )

    @property
    def numbers(self) -> list[str]:
        """The metrics that are numbers, neither words nor tables, in the file's order."""
        return [name for name, one in self.metrics.items() if one.unit and not one.columns]

    def odd(self, metrics: Mapping[str, Any]) -> dict[str, str]:
        """Return faults in names and types of metrics, by name; `sanity` judges the values."""
        found = {name: self._odd(name, value) for name, value in metrics.items()}
        return {name: why for name, why in found.items() if why}

    def _odd(self, name: str, value: Any) -> str:
        if not name.isprintable():
            return f"{name!r} is no valid name of a metric"
        if isinstance(value, float) and not math.isfinite(value):
            return f"{name} is {value} instead of a number"
        # A mapping or a list is a table, even if `columns` does not describe it.
        if name in self.numbers and isinstance(value, bool | str):
            return f"{name} is {reprlib.repr(value)} instead of a number"
        return ""

    def values(self, name: str, settings: Mapping[str, str]) -> dict[str, Any]:
        """Return the value of each argument: its setting, else its default.

        Raises:
            UsageError: One is unknown, missing, or of another type or range.
        """
        again = f"gpubed run CLUSTER {name} --set "
        for given, text in settings.items():
            if given not in self.arguments:
                raise UsageError(
                    f"job {name} has no argument {given!r}",
                    nearest_name(given, self.arguments),
                )
            argument = self.arguments[given]
            if why := argument.fault(text):
                raise UsageError(
                    f"--set {given}={reading.short(text)}: {why}",
                    f"{given}: {argument.help} ({argument.default} if left out)",
                )
        for key, argument in self.arguments.items():
            if argument.required and key not in settings:
                raise UsageError(f"job {name} needs {key}: {argument.help}", f"{again}{key}=…")
        chosen = {key: settings.get(key, one.default) for key, one in self.arguments.items()}
        return {
            key: None if value is None else self.arguments[key].read(value)
            for key, value in chosen.items()
        }

    def words(self, name: str, settings: Mapping[str, str]) -> list[str]:
        """Return the command with its arguments; floats keep the user's spelling. See `values`."""
        words = list(self.command)
        for key, value in self.values(name, settings).items():
            if value is not None:
                text = str(value).lower() if isinstance(value, bool) else str(value)
                if isinstance(value, float):
                    text = settings.get(key, text).strip()
                # One word: a separate value with a dash at its start would be taken for an option.
                words.append(f"--{key.replace('_', '-')}={text}")
        return words


def parse_settings(settings: Iterable[str]) -> dict[str, str]:
    """Read `name=value` words.

    Raises:
        UsageError: A word has no `=`.
    """
    pairs = [word.partition("=") for word in settings]
    for name, equals, _ in pairs:
        if not (name and equals):
            raise UsageError(f"--set {name!r} is not NAME=VALUE", "--set epochs=20")
    return {name.replace("-", "_"): value for name, _, value in pairs}


def parse_words(words: Sequence[str]) -> dict[str, str]:
    """Read `--name value` and `--name=value`; a name without a value is `true`.

    Raises:
        UsageError: A value has no name before it.
    """
    given: dict[str, str] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name, equals, value = word.removeprefix("--").partition("=")
            name = name.replace("-", "_")
            given[name] = value if equals else "true"
            name = "" if equals else name
        elif name:
            given[name], name = word, ""
        else:
            raise UsageError(f"{word!r} belongs to no argument", "-- --epochs 20")
    return given


def _folders() -> dict[str, Path]:
    """Return the folder of each job; jobs of the project replace gpubed's of the same name."""
    roots = (assets() / "jobs", Project.find().jobs)
    return {path.parent.name: path.parent for root in roots for path in root.glob("*/job.yml")}


def names() -> tuple[str, ...]:
    """Return the names of all jobs, sorted."""
    return tuple(sorted(_folders()))


def folder(name: str) -> Path:
    """Return the folder of a job.

    Raises:
        UsageError: There is no such job.
    """
    folders = _folders()
    if name not in folders:
        close = nearest_name(name, sorted(folders))
        raise UsageError(
            f"there is no job {name!r}", f"gpubed init --job {name} writes one; {close}"
        )
    return folders[name]


def of(request: Request) -> Job:
    """Return the job of a request; a command gets one whose only argument is `checkpoint`.

    Raises:
        UsageError: There is no such job.
        Unusable: Its `job.yml` is not valid.
    """
    if not request.command:
        return load(request.job)
    return Job(command=request.command, arguments={CHECKPOINT: Argument(resumes=True)})


def load(name: str) -> Job:
    """Return a job's description.

    Raises:
        UsageError: There is no such job.
        Unusable: Its `job.yml` is not valid.
    """
    path = folder(name) / "job.yml"
    return reading.file(path, f"correct {path}", error=Unusable).yaml(Job)
