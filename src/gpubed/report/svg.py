"""SVG, made of elements, so that any text in it is text.

A figure stands alone or within the page. It says in words what it shows, follows the reader's
light or dark scheme and prints on white; colours (Okabe and Ito's, which colour-blind people tell
apart) never carry a meaning alone: lines have markers and dashes, bars have patterns.
"""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree as ET

WIDTH = 760
_NOT_XML = re.compile("[^\t\n\r\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_INK = "ink"  # black or white: whatever text has
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#808080", _INK)
KINDS = len(_COLOURS)
# By class, as a page has several figures. Without variables, which programs that draw SVG for
# papers do not know; they do not know @media either, and show what is light.
_THEME = """
.fig .paper,.fig .hollow{{fill:{paper}}}.fig text,.fig .ink{{fill:{ink}}}.fig .soft{{fill:{soft}}}
.fig .grid{{stroke:{grid}}}.fig .faint{{stroke:{soft}}}
.fig .axis,.fig .bus,.fig .bar,.fig .mark,.fig .box,.fig .reference,.fig .stroke{{stroke:{ink}}}
"""
_LIGHT = _THEME.format(paper="#ffffff", ink="#1b1b1b", soft="#5c5c5c", grid="#dcdcdc")
_DARK = _THEME.format(paper="#16181b", ink="#ededed", soft="#b0b0b0", grid="#3c3c3c")
_PRINT = _THEME.format(paper="#ffffff", ink="#000000", soft="#444444", grid="#cccccc")
_STYLE = f"""
.fig{{font-family:system-ui,sans-serif;font-size:13px}}
.fig .line{{fill:none;stroke-width:2}}.fig .ideal{{fill:none;stroke-width:1.3;stroke-dasharray:2 4}}
.fig .bar{{stroke-width:.8}}.fig .error{{stroke-width:1.5}}.fig .bus{{stroke-width:3}}
.fig .box{{fill:none}}.fig .faint{{stroke-dasharray:3 4}}.fig .reference{{stroke-dasharray:6 4}}
{_LIGHT}
@media (prefers-color-scheme:dark){{{_DARK}}}
@media print{{{_PRINT}}}
"""
_DASHES = ("", "8 4", "16 3", "8 3 2 3", "16 3 3 3", "5 3", "10 3 2 3 2 3", "20 6")


def clean(text: str) -> str:
    """Return text without what XML and HTML cannot hold, and other controls."""
    return _NOT_XML.sub("", text)


class Figure:
    """A figure that is drawn on.

    Args:
        name: Of its file; unique on a page.
        title: A line that says what it shows.
        description: The same in sentences, for who cannot see it.
        height: In pixels; the width is that of the page.
    """

    def __init__(self, name: str, title: str, description: str, height: float) -> None:
        self.name, self.title, self.description = name, clean(title), clean(description)
        self._root = ET.Element(
            "svg",
            {
                "xmlns": "http://www.w3.org/2000/svg",
                "class": "fig",
                "viewBox": f"0 0 {WIDTH} {height:g}",
                "width": str(WIDTH),
                "height": f"{height:g}",
                "role": "img",
                "aria-labelledby": f"{name}-title {name}-desc",
            },
        )
        for tag, text in (("title", self.title), ("desc", self.description)):
            ET.SubElement(self._root, tag, {"id": f"{name}-{tag}"}).text = text
        ET.SubElement(self._root, "style").text = _STYLE
        self._definitions = ET.SubElement(self._root, "defs")
        self.add("rect", "paper", width=WIDTH, height=height)

    def add(self, tag: str, kind: str = "", text: str = "", **attributes: Any) -> None:
        """Draw an element; `_` in an attribute's name stands for `-`."""
        written = {name.replace("_", "-"): _written(value) for name, value in attributes.items()}
        element = ET.SubElement(self._root, tag, ({"class": kind} if kind else {}) | written)
        if text:
            element.text = clean(text)

    def text(self, x: float, y: float, text: str, kind: str = "", **attributes: Any) -> None:
        """Write a line; `text_anchor` says which end of it is at x."""
        self.add("text", kind, text, x=x, y=y, **attributes)

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str, **more: Any) -> None:
        """Draw a straight line."""
        self.add("line", kind, x1=x1, y1=y1, x2=x2, y2=y2, **more)

    def box(self, x: float, y: float, width: float, height: float, fill: str) -> None:
        """Draw a part of a bar."""
        self.add("rect", "bar", x=x, y=y, width=width, height=height, fill=fill)

    def path(self, points: list[tuple[float, float]], kind: str, series: int) -> None:
        """Draw a line through points in the colour and dashes of a series."""
        dashes = _DASHES[series % len(_DASHES)] if kind == "line" else ""
        more = {"stroke_dasharray": dashes} if dashes else {}
        listed = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self._stroke("polyline", kind, series, points=listed, **more)

    def marker(self, x: float, y: float, series: int, hollow: bool = False) -> None:
        """Draw the marker of a series; a hollow one stands for what was measured once."""
        colour = _COLOURS[series % KINDS]
        named = hollow or colour == _INK
        kind = f"mark {'hollow' if hollow else _INK}" if named else "mark"
        fill = {} if named else {"fill": colour}
        shape, turn = _SHAPES[series % len(_SHAPES)]
        if not shape:
            self.add("circle", kind, cx=x, cy=y, r=4.5, **fill)
            return
        listed = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in shape)
        turned = f"rotate({turn} {x:.1f} {y:.1f})"
        self.add("polygon", kind, points=listed, transform=turned, **fill)

    def error(
        self,
        x1: float,
        y1: float,
        x2: float,
        y2: float,
        series: int,
        ends: tuple[bool, bool] = (True, True),
    ) -> None:
        """Draw an interval, with caps at its ends; `ends` says which of them the figure has."""
        dx, dy = (0, 4) if y1 == y2 else (4, 0)
        places = ((x1, y1, ends[0]), (x2, y2, ends[1]))
        caps = [(x - dx, y - dy, x + dx, y + dy) for x, y, there in places if there]
        for a, b, c, d in ((x1, y1, x2, y2), *caps):
            self._stroke("line", "error", series, x1=a, y1=b, x2=c, y2=d)

    def _stroke(self, tag: str, kind: str, series: int, **attributes: Any) -> None:
        colour = _COLOURS[series % KINDS]
        if colour == _INK:
            self.add(tag, f"{kind} stroke", **attributes)
        else:
            self.add(tag, kind, stroke=colour, **attributes)

    def pattern(self, kind: int) -> str:
        """Define the fill of a kind of bar, and return it."""
        name = f"{self.name}-pattern-{kind}"
        if self._definitions.find(f"*[@id='{name}']") is None:
            size = {"id": name, "width": "8", "height": "8", "patternUnits": "userSpaceOnUse"}
            pattern = ET.SubElement(self._definitions, "pattern", size)
            ET.SubElement(
                pattern, "rect", {"width": "8", "height": "8", "fill": _COLOURS[kind % (KINDS - 1)]}
            )
            drawn = _PATTERNS[kind % len(_PATTERNS)]
            if drawn:
                stroke = {"d": drawn, "stroke": "#000", "stroke-width": "1.2", "fill": "none"}
                ET.SubElement(pattern, "path", stroke)
        return f"url(#{name})"

    def drawing(self) -> str:
        """Return the figure as SVG."""
        return ET.tostring(self._root, encoding="unicode")


def _written(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else clean(str(value))


_SQUARE = ((-4, -4), (4, -4), (4, 4), (-4, 4))
_TRIANGLE = ((0.0, -5.5), (5, 4), (-5, 4))
_CROSS = (
    (-1.6, -5), (1.6, -5), (1.6, -1.6), (5, -1.6), (5, 1.6), (1.6, 1.6),
    (1.6, 5), (-1.6, 5), (-1.6, 1.6), (-5, 1.6), (-5, -1.6), (-1.6, -1.6),
)  # fmt: skip
_SHAPES: tuple[tuple[tuple[tuple[float, float], ...], int], ...] = (
    ((), 0),
    (_SQUARE, 0),
    (_TRIANGLE, 0),
    (_SQUARE, 45),
    (_TRIANGLE, 180),
    (_CROSS, 0),
    (_CROSS, 45),
    (_TRIANGLE, 90),
)
_PATTERNS = (
    "",
    "M-2,2 l4,-4 M0,8 l8,-8 M6,10 l4,-4",
    "M4,3 v2",
    "M0,4 h8",
    "M-2,6 l4,4 M0,0 l8,8 M6,-2 l4,4",
    "M4,0 v8",
    "M0,4 h8 M4,0 v8",
    "M2,2 h1 M6,6 h1",
)
