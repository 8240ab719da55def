"""The trainer is our own: no class inherits from another library's trainer or its arguments."""

import re
from pathlib import Path

import rg_env
from rg_env.training.config.grpo import GRPOConfig
from rg_env.training.trainer import GRPOTrainer

FOREIGN = re.compile(r"verifiers(\.| import )trainers|import .*\b(Trainer|TrainingArguments)\b|class .*vf\.GRPOTrainer")


def test_no_class_inherits_from_a_foreign_trainer() -> None:
    """Nothing imports one, within functions either."""
    assert GRPOTrainer.__mro__ == (GRPOTrainer, object)
    foreign = ("verifiers.", "transformers.trainer", "transformers.training_args", "trl.")
    assert not any(base.__module__.startswith(foreign) for base in GRPOConfig.__mro__)
    for file in sorted(Path(rg_env.__file__).parent.rglob("*.py")):
        assert not FOREIGN.search(file.read_text(encoding="utf-8")), file
