"""How far an evaluation is: a bar a pair of model and task on a terminal, a line now and then elsewhere."""

import sys
import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bars

from rg_env.evaluation.runner import Outcome, Pair

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
                TextColumn("{task.description}"),
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
            for pair in outcome.pairs:
                self._bar(pair)
            return
        for pair in outcome.pairs:
            if id(pair) not in self._told and pair.tally.made >= pair.tally.asked:
                self._told.add(id(pair))
                self._line(pair)
        if time.monotonic() - self._last >= _LINE_EVERY_S:
            for pair in outcome.pairs:
                if pair.began is not None and id(pair) not in self._told:
                    self._line(pair)

    def _bar(self, pair: Pair) -> None:
        if id(pair) not in self._ids:
            if pair.began is None or len(self._ids) >= _MOST_BARS:
                return
            self._ids[id(pair)] = self._bars.add_task(_name(pair), total=pair.tally.asked, left="")
        self._bars.update(self._ids[id(pair)], completed=pair.tally.made, left=_left(pair))

    def _line(self, pair: Pair) -> None:
        self._last = time.monotonic()
        left = _left(pair)
        print(f"{_name(pair)}: {pair.tally.made:,} of {pair.tally.asked:,}{', ' if left else ''}{left}", flush=True)


def _name(pair: Pair) -> str:
    return f"{pair.model} · {pair.task.name}"


def _left(pair: Pair) -> str:
    seconds = pair.seconds_left
    if seconds is None or pair.tally.made >= pair.tally.asked:
        return ""
    return f"{seconds:.0f} s left" if seconds < 100 else f"{seconds / 60:.0f} min left"
