"""Supervise related programs: show their output, and let them save when the run is interrupted.

    supervisor = Supervisor(save_timeout_s=300)
    with supervisor.noting_signals(), supervisor.ending_programs():
        program = supervisor.start(Command(("train",)), Path("train.log"), "[train] {}".format)
        if not supervisor.wait_until(lambda: program.code is not None):      # a signal came first
            supervisor.let_save(program, "interrupted: the trainer", interrupt=True)

The first Ctrl-C, SIGTERM or SIGHUP requests a stop. Later signals shorten the grace period. Handlers only record
signals so that no signal interrupts cleanup.
"""

import contextlib
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rg_env.core.fork_server import ForkServer
from rg_env.core.processes import TICK_S, TOGETHER_S, Command, ProcessGroup, ending_orphans, stop_signals

GRACE_S = 15.0
"""Seconds between SIGTERM and SIGKILL. The time allowed for saving comes before SIGTERM and is not included."""
HURRY_S = 2.0
"""Seconds between SIGTERM and SIGKILL after a second signal."""


class Supervisor:
    """Starts and stops programs. Use it in the main thread, which receives signals."""

    def __init__(self, save_timeout_s: float = 300.0):
        self.signals: list[int] = []
        """Numbers of the signals that requested a stop."""
        self._save_timeout_s = save_timeout_s
        self._patience = 1  # number of signals that do not shorten the grace period
        self._programs: list[tuple[ProcessGroup, Callable[[str], str | None]]] = []

    @contextlib.contextmanager
    def noting_signals(self) -> Iterator[None]:
        """Append the numbers of stop signals to `signals` while this context is active."""
        assert threading.current_thread() is threading.main_thread(), "signals are delivered to the main thread"
        last = (0, 0.0)

        def note(number: int, _: object) -> None:
            nonlocal last
            before, last = last, (number, time.monotonic())
            if before[0] in (0, number) or last[1] - before[1] > TOGETHER_S:
                self.signals.append(number)

        with stop_signals(note):
            yield

    @contextlib.contextmanager
    def ending_programs(self) -> Iterator[None]:
        """On exit, stop the programs started in this context and their children, starting with the newest."""
        with ending_orphans(self._grace):
            try:
                yield
            finally:
                for program, _ in reversed(self._programs):
                    program.end(self._grace)
                self._show_output()
                self._programs.clear()

    def start(
        self, command: Command, log: Path, shown: Callable[[str], str | None], server: ForkServer | None = None
    ) -> ProcessGroup:
        """Start a program, from `server` if possible, and write its output to `log`. `shown` maps an output line to the
        line shown on the console, or to None to hide it."""
        program = ProcessGroup(command, log, fork=server.start if server else None)
        self._programs.append((program, shown))
        return program

    def wait_until(self, done: Callable[[], bool], most_s: float = math.inf) -> bool:
        """Show output until `done()` is true, for at most `most_s` seconds. Returns False if a signal arrives first."""
        deadline = time.monotonic() + most_s
        while not done() and time.monotonic() < deadline:
            self._tick()
            if self.signals:
                return False
        return True

    def let_save(self, program: ProcessGroup, what: str, *, interrupt: bool) -> None:
        """Wait until the program has ended, the time allowed for saving has run out, or another signal arrives.

        Args:
            what: start of the console message, which names the event and the program.
            interrupt: whether to send SIGINT. False if the program detects the event itself.
        """
        self._patience = len(self.signals)
        self.say(f"{what} has {self._save_timeout_s:g} s to save and exit (press Ctrl-C to stop it now)")
        deadline = time.monotonic() + self._save_timeout_s
        while program.code is None and len(self.signals) == self._patience:
            if time.monotonic() >= deadline:
                self.say(f"the program did not exit within {self._save_timeout_s:g} s; stopping it")
                return
            if interrupt:
                program.interrupt()  # repeated, in case a launcher has just started another worker
            self._tick()

    def say(self, line: str) -> None:
        """Print a line. If the pipe or terminal is closed, the run continues because its logs are on disk."""
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
