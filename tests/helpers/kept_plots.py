"""Learning curves of the runs that this test process trains: each is built from the run's files, but only the first is
rendered, which takes a quarter of a CPU second. The tests of plots and programs that tests start render theirs."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rg_env.core.files import written_aside


@contextlib.contextmanager
def plots_are_kept() -> Iterator[None]:
    """Let runs that are trained in the block write the picture of the first run's curve."""
    from rg_env.evaluation.plots import curves, style

    plot_run, save, kept = curves.plot_run, style.save, list[bytes]()

    def write(figure: Any, output: Path) -> None:
        if kept:
            with written_aside(output) as aside:
                aside.write(kept[0])
        else:
            save(figure, output)
            kept.append(output.read_bytes())

    def plot(folder: Path, output: Path | None = None) -> Path | None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(style, "save", write)
            return plot_run(folder, output)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(curves, "plot_run", plot)
        yield
