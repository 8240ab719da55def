"""The section `monitors:` of a run's config: when a run speaks up, and when it ends itself (see `monitors`)."""

from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator

from rg_env.core.config import Section
from rg_env.core.config_sections import Above0, Share
from rg_env.errors import unknown_name

Factor = Annotated[float, Field(gt=1, allow_inf_nan=False)]

ALL = "all"


class MonitorsConfig(Section):
    """Rules over what a run logs, each under its name with its threshold. One that fires says in one line what is the
    matter, the likely cause, and the key to change; it stays silent then until all was well for a whole window."""

    window: Annotated[int, Field(ge=2, le=10_000)] = 10
    """Logs, one a step, over which a rule takes its means; the first line can come after so many."""
    off: list[str] = Field(default_factory=list)
    """Rules that are left out; [all]: every one."""
    stop_on: list[str] = Field(default_factory=list)
    """Rules that end the run when they fire: with the last evaluation, a checkpoint, all results, and exit code 1."""
    zero_variance: Share = 0.9
    """Share of groups with equal rewards, which teach nothing, from here up."""
    answer_rate: Share = 0.5
    """Share of completions with a well-formed answer below this, and not rising."""
    format_rate: Share = 0.5
    """The same for the form that the reward `think_format` asks for, where it is paid."""
    truncation: Share = 0.2
    """Share of completions that the token limit cut off, from here up."""
    length_drift: Factor = 2.0
    """Mean length of completions so many times that of the first window, or that part of it, without more accuracy."""
    entropy_collapse: Share = 0.1
    """Entropy below this part of that in the first window, at an accuracy below 0.8 that does not rise."""
    reward_hacking: Above0 = 0.1
    """Rise of the mean reward over that of the window before, or the first one, from here up and beyond noise, without
    more accuracy; half of it is enough with less."""
    kl_spike: Factor = 5.0
    """KL divergence so many times its median over the window, and above 0.1 nats a token."""
    ratio_spike: Factor = 5.0
    """Largest probability ratio of a token so many times its median over the window, and above 10."""
    grader_timeouts: Share = 0.02
    """Share of answers whose grading took too long, from here up."""
    ungradable: Share = 0.02
    """Share of answers that could not be graded, from here up."""

    @field_validator("off", "stop_on")
    @classmethod
    def _known(cls, names: list[str], info: ValidationInfo) -> list[str]:
        for name in names:
            if name not in rule_names() and not (name == ALL and info.field_name == "off"):
                raise unknown_name("monitor", name, rule_names())
            if info.field_name == "stop_on" and {name, ALL} & set(info.data.get("off", [])):
                raise ValueError(f"{name} is off: take it out of monitors.off")
        return names

    def active(self) -> list[str]:
        """The rules that are on."""
        return [] if ALL in self.off else [name for name in rule_names() if name not in self.off]


def rule_names() -> list[str]:
    """All of them, in the order in which they are asked."""
    return [name for name in MonitorsConfig.model_fields if name not in ("window", "off", "stop_on")]
