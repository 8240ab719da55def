"""Shared parts of plots: style, colors, markers, short names, intervals and file output."""

import os
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from rg_env.core.files import written_aside
from rg_env.core.text import one_line
from rg_env.errors import InputError
from rg_env.evaluation.results import Accuracy

# Okabe and Ito's palette for color-blind readers, without yellow, which is faint on white.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
"""One marker per color, for readers who cannot distinguish colors."""
GREY = "#777777"
_MARGIN = 0.15
"""Margin around a plot, in inches."""
IMAGE_SUFFIXES = (".png", ".svg", ".pdf")
styled = matplotlib.rc_context(
    {
        "axes.axisbelow": True,
        "axes.grid": True,
        "axes.labelsize": 9,
        "axes.spines.right": False,
        "axes.spines.top": False,
        "grid.alpha": 0.25,
        "legend.fontsize": 8,
        "legend.frameon": False,
        "svg.fonttype": "none",  # keeps the text searchable and editable
        "text.usetex": False,  # a matplotlibrc in the working directory must not run LaTeX
        "text.parse_math": False,  # prevents text between dollar signs from being rendered as a formula
    }
)
"""Decorator for functions that draw and save a plot."""


def panels(width: float, height: float, rows: int = 1, columns: int = 1, **grid: Any) -> tuple[Figure, Any]:
    """Return a figure and its array of panels (indexed by row and column), which together fill `width` x `height`
    inches. Labels, legends and titles are placed outside this area, but `save` includes them in the image."""
    figure = Figure(figsize=(width, height))
    grid = {"left": 0, "right": 1, "bottom": 0, "top": 1, **grid}
    return figure, figure.subplots(rows, columns, squeeze=False, gridspec_kw=grid)


def label_whole_steps(axes: Axes) -> None:
    """Put x-axis ticks at whole numbers: multiples of 1, 2 or 5 times a power of ten."""
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))


LONGEST_NAME = 48
"""Number of characters above which names are shortened in plots."""


def short_names(names: Sequence[str], most: int = LONGEST_NAME) -> dict[str, str]:
    """Return distinct labels for `names`, each with at most `most` characters, plus a number if necessary.

    Most of the prefix shared by the long names is removed. Names that are still too long are shortened in the middle.
    """
    long = [name for name in names if len(name) > most]
    shared = len(os.path.commonprefix(long)) if len(long) > 1 else 0  # noqa: RUF071 (of characters, not of folders)
    start, half = max(0, shared - most // 4), (most - 5) // 2
    labels: dict[str, str] = {}
    for name in names:
        text = one_line(name, len(name))
        if name in long and start:
            text = f"...{text[start:]}"
        if len(text) > most:
            text = f"{text[:half]} ... {text[-half:]}"
        numbered = (f"{text} #{number}" for number in range(2, len(names) + 2))
        labels[name] = next(label for label in (text, *numbered) if label not in labels.values())
    return labels


def error_bars(middle: Sequence[float], intervals: Sequence[tuple[float, float]]) -> list[list[float]]:
    """Return the distances from the values to the lower and upper ends of their intervals, clipped at 0 because of
    rounding errors."""
    lower = [max(0.0, each - low) for each, (low, _) in zip(middle, intervals, strict=True)]
    upper = [max(0.0, high - each) for each, (_, high) in zip(middle, intervals, strict=True)]
    return [lower, upper]


def look_of(number: int) -> dict[str, Any]:
    """Return the color and marker of a series. Each of the first 49 series has its own combination."""
    return {"color": COLORS[number % 7], "marker": MARKERS[(number + number // 7) % 7]}


def draw_series(axes: Axes, series: Sequence[Sequence[Accuracy | None]]) -> list[Line2D]:
    """Draw several series of accuracies, each with its own color and marker. Row i shows all series' i-th accuracies,
    one above another. Return the handles for a legend."""
    handles = []
    for number, accuracies in enumerate(series):
        shift = (number - (len(series) - 1) / 2) * 0.8 / len(series)
        if rows := [(row + shift, *each.measured) for row, each in enumerate(accuracies) if each]:
            heights, means, intervals = zip(*rows, strict=True)
            look = {"linestyle": "none", "markersize": 4.5, "elinewidth": 1.2, "capsize": 2, **look_of(number)}
            axes.errorbar(means, heights, xerr=error_bars(means, intervals), **look)
        handles.append(Line2D([], [], **look_of(number), markersize=5))
    return handles


def label_rows(axes: Axes, labels: Sequence[str], size: float = 9) -> None:
    """Set up one row per label, with the first label at the top."""
    axes.set_yticks(range(len(labels)), labels, fontsize=size)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")


def share_axis(axes: Axes, caption: str) -> None:
    """Set up the x-axis for accuracies."""
    axes.set_xlim(-0.02, 1.02)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "0.25", "0.5", "0.75", "1"])
    axes.set_xlabel(caption)


def check_suffix(output: Path) -> Path:
    """Return `output`, or raise `InputError` if it does not end in one of `IMAGE_SUFFIXES`."""
    if output.suffix.lower() not in IMAGE_SUFFIXES:
        raise InputError(f"{output} must end in {', '.join(IMAGE_SUFFIXES[:-1])} or {IMAGE_SUFFIXES[-1]}")
    return output


def finish(figure: Figure, title: str, output: Path, size: tuple[float, float] | None = None) -> None:
    """Add `title` above the rest of the figure, wrapped to fit, and save the plot.

    Args:
        size: width and height of the image in inches. By default, they depend on the contents.

    Raises:
        InputError: the suffix is not one of `IMAGE_SUFFIXES`, or the labels leave no room for the plot.
        OutputFolderError: the plot cannot be written.
    """
    _titled(figure, title)
    for _ in range(3 if size else 0):  # labels may be wrapped or placed differently in the new size
        assert size
        width, height = figure.get_size_inches()
        box = figure.get_tightbbox()
        new = size[0] - 2 * _MARGIN - (box.width - width), size[1] - 2 * _MARGIN - (box.height - height)
        if min(new) < 0.5:
            raise InputError(
                f"--size {size[0]:g}x{size[1]:g} is too small for the plot and its labels: use a larger size"
            )
        figure.set_size_inches(*new)
        _titled(figure, title)
    save(figure, output)


def _titled(figure: Figure, title: str) -> None:
    for text in list(figure.texts):
        text.remove()
    if line := one_line(title, len(title)):
        (width, height), box = figure.get_size_inches(), figure.get_tightbbox()
        lines = textwrap.wrap(line, max(20, int(box.width / 0.1)))  # a character is about 0.1 inches wide
        middle, top = (box.x0 + box.x1) / 2 / width, (box.y1 + 0.1) / height
        figure.text(middle, top, "\n".join(lines), fontsize=12, ha="center", va="bottom")


def save(figure: Figure, output: Path) -> None:
    """Write the plot to `output`. The file's suffix determines the format.

    Raises:
        InputError: the suffix is not one of `IMAGE_SUFFIXES`.
        OutputFolderError: the plot cannot be written.
    """
    kind = check_suffix(output).suffix[1:].lower()
    extent = "tight" if figure.get_layout_engine() is None else None  # layout engines fit everything into the figure
    with written_aside(output) as aside:
        figure.savefig(aside, dpi=120, format=kind, bbox_inches=extent, pad_inches=_MARGIN)
