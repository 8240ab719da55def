"""`monitors` in a run: a callback for transformers' trainers that prints what they tell, and can end the run.

    GRPOTrainer(..., callbacks=[MonitorCallback(MonitorsConfig(stop_on=["reward_hacking"]))])

`train` puts one into every run. In a run that goes on from a checkpoint the monitors are where they were, by what its
state has of earlier logs: what had fired then is not told again.

Monitors over a run's logged metrics: they tell in one line what is going wrong.

    monitors = Monitors(MonitorsConfig())
    for record in records:                 # dicts, as in metrics.jsonl
        for alarm in monitors.see(record):
            print(alarm.line)

No trainer and no torch here: `monitor_callback` puts them into a run, and `monitor_rules` has the rules.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from transformers import TrainerCallback

from rg_env.inference.models import processes
from rg_env.training.config.schema import MonitorsConfig
from rg_env.training.distributed import on_main
from rg_env.training.monitors.rules import RULES, History


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


class MonitorCallback(TrainerCallback):
    """Shows `config`'s monitors what is logged.

    Args:
        config: default: all rules, with their default thresholds.
        say: where lines go, on the main process; default: standard output.
    """

    def __init__(self, config: MonitorsConfig | None = None, say: Callable[[str], Any] | None = None):
        self.config = config or MonitorsConfig()
        self.say: Callable[[str], Any] = say or (lambda line: print(line, flush=True))
        self.alarms: list[Alarm] = []
        """All of the run, earlier parts of it included; on the main process."""
        self.stopped_by: str | None = None
        """The rule that ended the run; on all processes."""
        self._monitors = Monitors(self.config)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.stopped_by, self._monitors = None, Monitors(self.config)
        self.alarms = [alarm for record in state.log_history for alarm in self._monitors.see(record)]

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        record = {"step": state.global_step, **(logs or {})}
        if "loss" not in record:  # evaluations are logged by the main process alone
            return
        if self.config.stop_on:
            self.stopped_by = on_main(processes(), lambda: self._look(record))
            control.should_training_stop = control.should_training_stop or self.stopped_by is not None
        elif state.is_world_process_zero:
            self._look(record)

    def _look(self, record: dict[str, Any]) -> str | None:
        """Say what there is to say; the rule that ends the run, if one does."""
        alarms = self._monitors.see(record)
        self.alarms += alarms
        ends = next((alarm.rule for alarm in alarms if alarm.rule in self.config.stop_on), None)
        for alarm in alarms:
            self.say(f"{alarm.line} (the run ends here: monitors.stop_on)" if alarm.rule == ends else alarm.line)
        return ends
