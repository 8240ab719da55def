"""Elements of a picture and their positions, read from an SVG file written by matplotlib."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

_SVG = "{http://www.w3.org/2000/svg}"


class Text(NamedTuple):
    """A text and its position in points; y grows downward."""

    text: str
    x: float
    y: float


class Shape(NamedTuple):
    """The bounding box of a line or a filled area."""

    left: float
    right: float
    top: float
    bottom: float


class Picture:
    """Picture that the function `draw` writes to a file in `folder`."""

    def __init__(self, draw: Callable[[Path], object], folder: Path):
        file = folder / "picture.svg"
        draw(file)
        self.root = ET.parse(file).getroot()
        self.size = tuple(float(each) for each in self.root.get("viewBox", "").split()[2:])
        self.texts = [_text(each) for each in self.root.iter(f"{_SVG}text")]

    @property
    def words(self) -> list[str]:
        return [each.text for each in self.texts]

    def text(self, text: str) -> Text:
        """Return the only text element with exactly this text."""
        (found,) = [each for each in self.texts if each.text == text]
        return found

    def lines(self, color: str, width: float) -> list[Shape]:
        return list(self._shapes(f"stroke: {color}; stroke-width: {width:g}"))

    def bands(self, color: str) -> list[Shape]:
        """Return the filled areas between two lines."""
        uses = [
            each for each in self.root.iter(f"{_SVG}use") if f"fill: {color}; fill-opacity" in each.get("style", "")
        ]
        paths = {f"#{each.get('id')}": each for each in self.root.iter(f"{_SVG}path") if each.get("id")}
        found = []
        for use in uses:
            box, down = _box(paths[use.get("{http://www.w3.org/1999/xlink}href", "")]), float(use.get("y", ""))
            found.append(Shape(box.left, box.right, box.top + down, box.bottom + down))
        return found

    def marks(self, color: str) -> list[tuple[float, float]]:
        """Return the centers of the markers with this color, in drawing order."""
        return [
            (float(each.get("x", "")), float(each.get("y", "")))
            for each in self.root.iter(f"{_SVG}use")
            if f"stroke: {color}" in (style := each.get("style", ""))
            and "stroke-width: 0.8" not in style  # the width of ticks
        ]

    def _shapes(self, style: str) -> list[Shape]:
        paths = self.root.iter(f"{_SVG}path")
        return [_box(path) for path in paths if style in path.get("style", "") and path.get("id") is None]


def _box(path: ET.Element) -> Shape:
    numbers = [float(each) for each in re.findall(r"-?\d+(?:\.\d+)?", path.get("d", ""))]
    xs, ys = numbers[::2], numbers[1::2]
    return Shape(min(xs), max(xs), min(ys), max(ys))


def _text(element: ET.Element) -> Text:
    if element.get("x") is not None:
        return Text("".join(element.itertext()), float(element.get("x", "")), float(element.get("y", "")))
    x, y = re.findall(r"translate\((\S+) (\S+)\)", element.get("transform", ""))[0]
    return Text("".join(element.itertext()), float(x), float(y))
