"""The cluster as a picture: nodes, their two networks, and what the links were measured to do."""

from __future__ import annotations

from collections.abc import Sequence

from gpubed.jobs import figures
from gpubed.report.read import Campaign, Link, Measured
from gpubed.report.svg import WIDTH, Figure

_IN_A_ROW, _MOST = 5, 40
_LEFT, _TOP, _HIGH, _WIDE, _NODE = 30, 40, 196, 122, 62
_IN = 18  # from a node's edge to its links
_RATE = "bit/s"


def drawn(measured: Measured, name: str) -> Figure | None:
    """Draw it; None where the campaign names no nodes."""
    campaign = measured.campaign
    shown = campaign.nodes[:_MOST]
    if not shown:
        return None
    rows = -(-len(shown) // _IN_A_ROW)
    left = len(campaign.nodes) - len(shown)
    title = f"Cluster {measured.label or campaign.cluster}: nodes, networks and measured rates"
    if campaign.simulated:
        title += " (GPUs are simulated)"
    figure = Figure(name, title, _said(campaign), _TOP + _HIGH * rows + (24 if left else 0))
    figure.text(_LEFT, 22, "control network (SSH)", "soft")
    for number, node in enumerate(shown):
        row, place = divmod(number, _IN_A_ROW)
        x, y = _LEFT + 10 + place * (_WIDE + 12), _TOP + row * _HIGH
        middle = x + _WIDE / 2
        figure.line(x + _IN, y, x + _IN, y + 26, "faint")
        figure.add("rect", "box", x=x, y=y + 26, width=_WIDE, height=_NODE, rx=6)
        figure.text(middle, y + 48, _short(node.name), text_anchor="middle")
        gpus = f", {node.gpus} GPUs" if node.gpus else ""
        slots = f"{node.slots} ranks{gpus}" if node.slots is not None else gpus.removeprefix(", ")
        figure.text(
            middle, y + 70, slots.replace("1 ranks", "1 rank"), "soft", text_anchor="middle"
        )
        figure.line(x + _IN, y + 26 + _NODE, x + _IN, y + 150, "axis")
        for line, rate in enumerate(_sends(campaign.links, node.name)):
            figure.text(x + _IN + 6, y + 112 + 18 * line, rate, "soft")
    for row in range(rows):
        y = _TOP + row * _HIGH
        figure.line(_LEFT, y, WIDTH - _LEFT, y, "faint")
        figure.line(_LEFT, y + 150, WIDTH - _LEFT, y + 150, "bus")
    if rows > 1:  # the networks are one each
        end = _TOP + (rows - 1) * _HIGH
        figure.line(_LEFT, _TOP, _LEFT, end, "faint")
        figure.line(WIDTH - _LEFT, _TOP + 150, WIDTH - _LEFT, end + 150, "bus")
    experiment = "experiment network" + _declared(campaign.declared_bps)
    figure.text(_LEFT, _TOP + _HIGH * (rows - 1) + 172, experiment)
    if left:
        figure.text(_LEFT, _TOP + _HIGH * rows + 6, f"and {left} more nodes", "soft")
    return figure


def _said(campaign: Campaign) -> str:
    nodes = ", ".join(node.name for node in campaign.nodes[:_MOST])
    measured = [one.measured_bps for one in campaign.links if one.measured_bps]
    rates = "the links were not measured"
    if measured:
        low, high = (figures.written(bps, _RATE) for bps in (min(measured), max(measured)))
        rates = f"measured rates of the links are {low} to {high}"
    return f"All nodes ({nodes}) are on a control and an experiment network; {rates}."


def _declared(rates: Sequence[float]) -> str:
    return (
        ", declared " + " to ".join(figures.written(r, _RATE) for r in _ends(rates))
        if rates
        else ""
    )


def _sends(links: Sequence[Link], node: str) -> list[str]:
    """Return the least and the most that a node's links bring, a line each."""
    rates = [one.measured_bps for one in links if one.src == node and one.measured_bps]
    least, *most = [figures.written(rate, _RATE) for rate in _ends(sorted(rates))] or [""]
    return [least, *(f"to {rate}" for rate in most)]


def _ends(rates: Sequence[float]) -> Sequence[float]:
    """Return the smallest and the largest, once where they are written alike."""
    if not rates or figures.written(rates[0], _RATE) == figures.written(rates[-1], _RATE):
        return rates[:1]
    return (rates[0], rates[-1])


def _short(name: str) -> str:
    return name if len(name) <= 17 else f"{name[:16]}…"
