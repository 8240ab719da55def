"""The trainer is our own: no class inherits from another library's trainer or its arguments, under any alias."""

import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import transformers as tf

import rg_env
from rg_env.training.trainer import GRPOTrainer

FOREIGN = re.compile(r"(transformers|trl|verifiers)\..*(Trainer|TrainingArguments|(GRPO|RL|SFT)Config)")
IMPORTS = re.compile(r"verifiers(\.| import )trainers|import .*\b(Trainer|TrainingArguments)\b|class .*vf\.GRPOTrainer")


def foreign_bases(ours: type) -> list[str]:
    """Return the trainers and classes of trainers' arguments from other libraries that a class inherits from."""
    names = [f"{base.__module__}.{base.__qualname__}" for base in ours.__mro__]
    return [name for name in names if FOREIGN.fullmatch(name)]


def our_classes() -> Iterator[type]:
    for module in pkgutil.walk_packages(rg_env.__path__, "rg_env."):
        try:
            members = vars(importlib.import_module(module.name)).values()
        except ImportError:  # for example, the adapter for a release of Verifiers that is not installed
            assert not module.name.startswith("rg_env.training.")
            continue
        yield from (each for each in members if isinstance(each, type) and each.__module__ == module.name)


def test_no_class_inherits_from_a_foreign_trainer() -> None:
    """No module imports a foreign trainer either, not even inside functions."""
    classes = list(our_classes())
    assert GRPOTrainer in classes
    assert GRPOTrainer.__mro__ == (GRPOTrainer, object)
    assert {each: bases for each in classes if (bases := foreign_bases(each))} == {}
    for file in sorted(Path(rg_env.__file__).parent.rglob("*.py")):
        assert not IMPORTS.search(file.read_text(encoding="utf-8")), file


def test_the_check_sees_aliases() -> None:
    class Other(tf.Trainer): ...

    class Arguments(tf.TrainingArguments): ...

    class Callback(tf.TrainerCallback): ...

    assert foreign_bases(Other) == ["transformers.trainer.Trainer"]
    assert foreign_bases(Arguments) == ["transformers.training_args.TrainingArguments"]
    assert foreign_bases(Callback) == []
