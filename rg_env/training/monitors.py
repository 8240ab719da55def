"""Monitors over a run's logged metrics: they tell in one line what is going wrong.

    monitors = Monitors(MonitorsConfig())
    for record in records:                 # dicts, as in metrics.jsonl
        for alarm in monitors.see(record):
            print(alarm.line)

No trainer and no torch here: `monitor_callback` puts them into a run, and `monitor_rules` has the rules.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rg_env.training.config_monitors import MonitorsConfig
from rg_env.training.metric_history import History
from rg_env.training.monitor_rules import RULES


@dataclass(frozen=True)
class Alarm:
    """A rule has fired."""

    step: int
    rule: str
    message: str
    """What is the matter, the likely cause, and what to change."""

    @property
    def line(self) -> str:
        return f"step {self.step}: monitor {self.rule}: {self.message}"


class Monitors:
    """The rules that `config` has on, and what they have seen."""

    def __init__(self, config: MonitorsConfig):
        self._history = History(config.window)
        self._rules = {name: RULES[name](getattr(config, name)) for name in config.active()}
        self._calm: dict[str, int] = {}
        """Of the rules that have fired: for how many records in a row they have been well since."""

    def see(self, record: Mapping[str, Any]) -> list[Alarm]:
        """Take up a line of metrics, and tell which rules fire now. Lines that are of no training step have no loss,
        and are passed over."""
        if "loss" not in record:
            return []
        self._history.add(record)
        found = {name: rule(self._history) for name, rule in self._rules.items()}
        alarms = [
            Alarm(self._history.step, name, message)
            for name, message in found.items()
            if message is not None and name not in self._calm
        ]
        for name, message in found.items():
            if message is not None:
                self._calm[name] = 0
            elif name in self._calm:
                self._calm[name] += 1
                if self._calm[name] >= self._history.window:
                    del self._calm[name]
        return alarms
