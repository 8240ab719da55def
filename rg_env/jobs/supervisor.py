"""Programs that belong together: their output on the console, and time to save when the run is interrupted.

    supervisor = Supervisor(save_timeout_s=300)
    with supervisor.noting_signals(), supervisor.ending_programs():
        program = supervisor.start(Command(("train",)), Path("train.log"), "[train] {}".format)
        if not supervisor.wait_until(lambda: program.code is not None):      # a signal came first
            supervisor.let_save(program, "interrupted: the trainer", interrupt=True)

The first Ctrl-C, SIGTERM or SIGHUP asks for an end, and a later one hurries it. Signals are only noted, so that none
interrupts cleaning up.
"""

import contextlib
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rg_env.core.processes import TICK_S, Command, ProcessGroup, ending_orphans

GRACE_S = 15.0
"""Seconds between SIGTERM and SIGKILL, once nothing has to be saved any more."""
HURRY_S = 2.0
"""The same after a second signal."""
TOGETHER_S = 1.0
"""Different signals within this time are one request: a closed terminal or a scheduler may send two."""


class Supervisor:
    """Used from the main thread, because signals arrive there."""

    def __init__(self, save_timeout_s: float = 300.0):
        self.signals: list[int] = []
        """Numbers of the signals that asked for an end."""
        self._save_timeout_s = save_timeout_s
        self._patience = 1  # number of signals that do not hurry
        self._programs: list[tuple[ProcessGroup, Callable[[str], str | None]]] = []

    @contextlib.contextmanager
    def noting_signals(self) -> Iterator[None]:
        """In this block, signals that ask for an end are added to `signals`."""
        assert threading.current_thread() is threading.main_thread(), "signals come to the main thread"
        last = (0, 0.0)

        def note(number: int, _: object) -> None:
            nonlocal last
            before, last = last, (number, time.monotonic())
            if before[0] in (0, number) or last[1] - before[1] > TOGETHER_S:
                self.signals.append(number)

        # A terminal that is closed sends SIGHUP; nohup has it ignored, and it stays so.
        kinds = [signal.SIGINT, signal.SIGTERM]
        kinds += [signal.SIGHUP] if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN else []
        earlier = {kind: signal.signal(kind, note) for kind in kinds}
        try:
            yield
        finally:
            for kind, handler in earlier.items():
                signal.signal(kind, handler)

    @contextlib.contextmanager
    def ending_programs(self) -> Iterator[None]:
        """At the end of this block, all programs started in it end, the last one first, with all that they started."""
        with ending_orphans(self._grace):
            try:
                yield
            finally:
                for program, _ in reversed(self._programs):
                    program.end(self._grace)
                self._show_output()
                self._programs.clear()

    def start(self, command: Command, log: Path, shown: Callable[[str], str | None]) -> ProcessGroup:
        """Start a program whose output goes to `log`. `shown` makes the line for the console of each line, or None."""
        program = ProcessGroup(command, log)
        self._programs.append((program, shown))
        return program

    def wait_until(self, done: Callable[[], bool], most_s: float = math.inf) -> bool:
        """Show output until `done()`, for at most `most_s` seconds; False if a signal came first."""
        deadline = time.monotonic() + most_s
        while not done() and time.monotonic() < deadline:
            self._tick()
            if self.signals:
                return False
        return True

    def let_save(self, program: ProcessGroup, what: str, *, interrupt: bool) -> None:
        """Return when the program has ended, its time to save is over, or a further signal came.

        Args:
            what: what has happened, and to whom time is given, for the console.
            interrupt: send it SIGINT; otherwise it notices by itself.
        """
        self._patience = len(self.signals)
        self.say(f"{what} has {self._save_timeout_s:g} s to save and end (Ctrl-C ends it at once)")
        deadline = time.monotonic() + self._save_timeout_s
        while program.code is None and len(self.signals) == self._patience:
            if time.monotonic() >= deadline:
                self.say(f"it did not end within {self._save_timeout_s:g} s and is stopped now")
                return
            if interrupt:
                program.interrupt()  # again and again: a launcher may have been about to start one more worker
            self._tick()

    def say(self, line: str) -> None:
        """Print a line. The reader or the terminal may be gone: the run continues, and its logs are on disk."""
        try:
            print(line, flush=True)
        except OSError:
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def _grace(self) -> float:
        return HURRY_S if len(self.signals) > self._patience else GRACE_S

    def _tick(self) -> None:
        time.sleep(TICK_S)
        self._show_output()

    def _show_output(self) -> None:
        for program, shown in self._programs:
            for line in program.new_lines():
                if (text := shown(line)) is not None:
                    self.say(text)
