"""How far an evaluation is: a bar a pair of model and task on a terminal, a line now and then elsewhere."""

import contextlib
import sys
import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bars

from rg_env.evaluation.jobs import Work
from rg_env.evaluation.runner import Outcome

_LINE_EVERY_S = 15.0
_MOST_BARS = 30


class Progress:
    """Shows outcomes as they grow."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)
        self._terminal = sys.stdout.isatty()
        self._bars: Any = None
        self._ids: dict[int, Any] = {}
        self._last = time.monotonic()
        self._told: set[int] = set()

    def __enter__(self) -> "Progress":
        if self._terminal:
            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[left]}"),
            )
            self._bars = Bars(*columns, console=self._console)
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the terminal as it stands."""
        if self._bars is not None:
            self._bars.stop()
            self._bars = None

    def show(self, outcome: Outcome) -> None:
        """Bring it up to `outcome`."""
        if self._bars is not None:
            for work in outcome.works:
                self._bar(work)
            return
        for work in outcome.works:
            if id(work) not in self._told and work.made >= work.asked:
                self._told.add(id(work))
                self._line(work)
        if time.monotonic() - self._last >= _LINE_EVERY_S:
            for work in outcome.works:
                if work.began is not None and id(work) not in self._told:
                    self._line(work)

    def _bar(self, work: Work) -> None:
        if id(work) not in self._ids:
            if work.began is None or len(self._ids) >= _MOST_BARS:
                return
            self._ids[id(work)] = self._bars.add_task(_name(work), total=work.asked, left="")
        self._bars.update(self._ids[id(work)], completed=work.made, left=_left(work))

    def _line(self, work: Work) -> None:
        self._last = time.monotonic()
        left = _left(work)
        line = f"{_name(work)}: {work.made:,} of {work.asked:,}{', ' if left else ''}{left}"
        with contextlib.suppress(OSError):  # nobody reads it, or the disk is full: it is told after the results
            print(line, flush=True)


def _name(work: Work) -> str:
    return f"{work.model} · {work.label}"


def _left(work: Work) -> str:
    seconds = work.seconds_left
    if seconds is None or work.made >= work.asked:
        return ""
    return f"{seconds:.0f} s left" if seconds < 100 else f"{seconds / 60:.0f} min left"
