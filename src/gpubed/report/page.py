"""The page: one HTML file that needs nothing else, neither a network nor a script."""

from __future__ import annotations

import shlex
from collections import defaultdict
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from gpubed.core.paths import assets
from gpubed.jobs.figures import one_line
from gpubed.report import findings, svg, tables, versions
from gpubed.report.analysis import Analysis
from gpubed.report.read import Measured
from gpubed.report.svg import Figure

_TEMPLATE = "report.html.j2"


def html(analysis: Analysis, figures: list[Figure]) -> str:
    """Return the page; whatever came from files is text in it, never markup."""
    environment = Environment(
        loader=FileSystemLoader(assets() / "templates" / "report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_clean,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    measured = analysis.measured
    return environment.get_template(_TEMPLATE).render(
        title=_title(measured),
        heading=_heading(measured),
        descriptions=_descriptions(measured),
        simulated=measured.simulated,
        summary=findings.summary(analysis),
        details=findings.details(analysis),
        remarks=findings.remarks(analysis),
        figures=figures,
        tables=tables.made(analysis),
        facts=[(part.label, _facts(part)) for part in measured.each],
        commands=_commands(measured),
        campaigns=_files(measured),
    )


def _clean(value: Any) -> Any:
    """Return text as HTML can hold it; a figure, which the template calls safe, is XML already."""
    plain = isinstance(value, str) and not hasattr(value, "__html__")
    return svg.clean(value) if plain else value


def _title(measured: Measured) -> str:
    campaign = measured.campaign
    return f"{campaign.job if measured.parts else campaign.name} on {campaign.cluster}"


def _heading(measured: Measured) -> str:
    campaign = measured.campaign
    if measured.parts:
        return f"Job {campaign.job} on {campaign.cluster}"
    return f"Campaign {campaign.name} on cluster {campaign.cluster}"


def _descriptions(measured: Measured) -> list[str]:
    """Return what the campaigns say of themselves, each once."""
    said = (part.campaign.campaign.get("description") for part in measured.each)
    return list(dict.fromkeys(text for text in said if isinstance(text, str)))


def _facts(measured: Measured) -> dict[str, str]:
    campaign, commit = measured.campaign, "not known"
    if campaign.git:
        commit = campaign.git.commit + ("" if campaign.git.clean else ", with uncommitted changes")
    return {
        "started": f"{campaign.started:%Y-%m-%d %H:%M:%S %Z}",
        "job": campaign.job,
        "cluster": f"{campaign.cluster} ({campaign.uuid or 'no UUID'})",
        "backend": campaign.backend,
        "recipe": campaign.recipe or "none",
        "gpubed": campaign.gpubed,
        "software of the job": _software(measured),
        "job's files": campaign.job_files or "not known",
        "commit of the project": commit,
        "repetitions asked for": str(campaign.repeat),
        "order": f"random, seed {campaign.seed}",
        "digest of the campaign": campaign.digest,
        "GPUs": _gpus(measured),
    }


def _software(measured: Measured) -> str:
    return ", ".join(map(str, versions.found(measured.points))) or "not known"


def _gpus(measured: Measured) -> str:
    count = sum(node.gpus or 0 for node in measured.campaign.nodes)
    return f"{count}{', simulated' if measured.simulated else ''}" if count else "none"


def _commands(measured: Measured) -> list[str]:
    """Return what repeats it, each line as it is typed."""
    lines = []
    for part in measured.each:
        campaign = part.campaign
        lines += [f"# {one_line(part.label)}"] if part.label else []
        lines += [_typed("git", "checkout", campaign.git.commit)] if campaign.git else []
        lines += [_typed("gpubed", "up", campaign.cluster)] if campaign.cluster else []
        lines += [_typed(*_words(campaign.command))] if campaign.command else []
    first, *others = [part.campaign for part in measured.each]
    further = (word for one in others for word in ("--with", f"{one.cluster}/{one.name}"))
    return [*lines, _typed("gpubed", "report", first.cluster, first.name, *further)]


def _typed(*words: str) -> str:
    """Return a command on one line, of which a shell runs nothing else, whatever files say."""
    return shlex.join(map(one_line, words))


def _words(command: str) -> list[str]:
    """Return the words of a command; one that no shell could read is a word by itself."""
    try:
        return shlex.split(command)
    except ValueError:
        return [command]


def _files(measured: Measured) -> list[tuple[str, str]]:
    """Return the campaigns' files, each once, with whose they are where there are several."""
    labels: dict[str, list[str]] = defaultdict(list)
    for part in measured.each:
        file = yaml.safe_dump(part.campaign.campaign, sort_keys=False, allow_unicode=True)
        labels[file].append(part.label)
    return [(", ".join(filter(None, named)), file) for file, named in labels.items()]
