"""The page: one HTML file that needs nothing else, neither a network nor a script."""

from __future__ import annotations

from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from gpubed.core.paths import assets
from gpubed.report import findings, svg, tables, versions
from gpubed.report.analysis import Analysis
from gpubed.report.read import Campaign, Measured
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
    campaign = analysis.measured.campaign
    return environment.get_template(_TEMPLATE).render(
        campaign=campaign,
        simulated=analysis.measured.simulated,
        summary=findings.summary(analysis),
        details=findings.details(analysis),
        remarks=findings.remarks(analysis),
        figures=figures,
        tables=tables.made(analysis),
        facts=_facts(analysis.measured),
        commands=_commands(campaign),
        file=yaml.safe_dump(campaign.campaign, sort_keys=False, allow_unicode=True),
    )


def _clean(value: Any) -> Any:
    """Return text as HTML can hold it; a figure, which the template calls safe, is XML already."""
    plain = isinstance(value, str) and not hasattr(value, "__html__")
    return svg.clean(value) if plain else value


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


def _commands(campaign: Campaign) -> list[str]:
    """Return what repeats it, each line as it is typed."""
    checkout = [f"git checkout {campaign.git.commit}"] if campaign.git else []
    up = [f"gpubed up {campaign.cluster}"] if campaign.cluster else []
    bench = [campaign.command] if campaign.command else []
    return [*checkout, *up, *bench, f"gpubed report {campaign.cluster} {campaign.name}"]
