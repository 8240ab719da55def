"""Shared parts of plots: colors, markers, short names, legends, intervals and file output."""

import os
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from rg_env.core.run_folder import written_aside
from rg_env.core.text import one_line
from rg_env.errors import InputError, OutputFolderError
from rg_env.evaluation.results import Accuracy

# Okabe and Ito's palette for color-blind readers, without yellow, which is faint on white.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
"""One marker per color, for readers who cannot distinguish colors."""
GREY = "#777777"
SUFFIXES = (".png", ".svg", ".pdf")


def panels(width: float, height: float, rows: int = 1, columns: int = 1, **grid: Any) -> tuple[Figure, Any]:
    """A figure and its array (rows, columns) of panels, which together fill `width` x `height` inches. Labels, legends
    and titles are placed outside this area; `save` includes them in the image."""
    figure = Figure(figsize=(width, height))
    grid = {"left": 0, "right": 1, "bottom": 0, "top": 1, **grid}
    return figure, figure.subplots(rows, columns, squeeze=False, gridspec_kw=grid)


def label_whole_steps(axes: Axes) -> None:
    """Put x-axis ticks at multiples of 1, 2, 5 or 10."""
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))


def short_names(names: Sequence[str], most: int = 48) -> dict[str, str]:
    """Distinct labels for `names`, of at most `most` characters plus a number if necessary.

    Long names are shortened in the middle. If that would make names identical, most of their common prefix is removed
    first.
    """
    labels: dict[str, str] = {}
    for name in names:
        text = one_line(name, len(name))
        if len(text) > most:
            alike = [
                other
                for other in names
                if other != name and _without_middle(other, most) == _without_middle(name, most)
            ]
            shared = len(os.path.commonprefix([name, *alike]))  # noqa: RUF071 (of characters, not of folders)
            text = _without_middle(f"...{text[max(0, shared - most // 4) :]}" if alike else text, most)
        number = 2
        label = text
        while label in labels.values():
            label, number = f"{text} #{number}", number + 1
        labels[name] = label
    return labels


def _without_middle(text: str, most: int) -> str:
    half = (most - 5) // 2
    return text if len(text) <= most else f"{text[:half]} ... {text[-half:]}"


def legend(axes: Axes, handles: Sequence[Any], labels: Sequence[str], **options: Any) -> None:
    """Add a legend that shows labels literally, even if they contain dollar signs or start with an underscore."""
    made = axes.legend(handles, ["-"] * len(handles), frameon=False, **options)
    for text, label in zip(made.get_texts(), labels, strict=True):
        text.set_parse_math(False)
        text.set_text(label)


def bare(axes: Axes, grid: Literal["x", "y", "both"]) -> None:
    """Remove the top and right sides of the frame, and draw faint grid lines for the axis `grid`."""
    axes.grid(alpha=0.25, axis=grid)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def error_bars(middle: Sequence[float], intervals: Sequence[tuple[float, float]]) -> list[list[float]]:
    """Distances to the lower and upper ends of the intervals, clipped at 0 because of rounding errors."""
    lower = [max(0.0, each - low) for each, (low, _) in zip(middle, intervals, strict=True)]
    upper = [max(0.0, high - each) for each, (_, high) in zip(middle, intervals, strict=True)]
    return [lower, upper]


def draw_intervals(axes: Axes, rows: Sequence[tuple[float, Accuracy]], **look: Any) -> None:
    """Draw accuracies with their intervals; `rows` are (y position, accuracy) pairs."""
    means, intervals = zip(*(found.measured for _, found in rows), strict=True)
    bars = error_bars(means, intervals)
    axes.errorbar(means, [place for place, _ in rows], xerr=bars, **{"markersize": 4.5, "linestyle": "none", **look})


def label_rows(axes: Axes, labels: Sequence[str], grid: bool = True, size: float = 9) -> None:
    """Set up one row per label, with the first on top."""
    axes.set_yticks(range(len(labels)), labels, fontsize=size, parse_math=False)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    if grid:
        bare(axes, "x")


def share_axis(axes: Axes, caption: str, room: float = 0.02, **look: Any) -> None:
    """Set up the x-axis for accuracies."""
    axes.set_xlim(-room, 1 + room)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "0.25", "0.5", "0.75", "1"], **look)
    axes.set_xlabel(caption, fontsize=9)


def titled(figure: Figure, title: str) -> None:
    """Put `title` above everything else, wrapped to fit."""
    if text := one_line(title, len(title)):
        (width, height), box = figure.get_size_inches(), figure.get_tightbbox()
        lines = textwrap.wrap(text, max(20, int(box.width / 0.1)))  # a character is about 0.1 inches wide
        title_box = figure.text((box.x0 + box.x1) / 2 / width, (box.y1 + 0.1) / height, "\n".join(lines), fontsize=12)
        title_box.set(ha="center", va="bottom", parse_math=False)  # otherwise text between dollar signs is a formula


def check_suffix(output: Path) -> Path:
    """Return `output`, or raise `InputError` if it does not end in one of `SUFFIXES`."""
    if output.suffix.lower() not in SUFFIXES:
        raise InputError(f"{output} must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}")
    return output


def save(figure: Figure, output: Path) -> None:
    """Write the plot; the suffix determines the format.

    Raises:
        InputError: the suffix is not one of `SUFFIXES`.
        OutputFolderError: the plot cannot be written.
    """
    kind = check_suffix(output).suffix[1:].lower()
    try:
        # Keep text in SVG files as text, which can be searched, copied and edited.
        with written_aside(output) as aside, matplotlib.rc_context({"svg.fonttype": "none"}):
            extent = "tight" if figure.get_layout_engine() is None else None  # other layouts fill the figure
            figure.savefig(aside, dpi=120, format=kind, bbox_inches=extent, pad_inches=0.15)
    except OSError as error:
        raise OutputFolderError(f"cannot write {output}: {error.strerror}") from error
