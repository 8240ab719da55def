"""The trainer is our own: no class inherits from another library's trainer, and none of verifiers' is imported."""

import ast
import inspect
from importlib import import_module
from pathlib import Path

import pytest

import rg_env

PACKAGE = Path(rg_env.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
FOREIGN = ("verifiers.trainers", "transformers.trainer", "transformers.training_args", "trl")
"""Modules whose classes no class of ours may inherit from; callbacks are in `transformers.trainer_callback`."""


def imported(tree: ast.AST) -> dict[str, str]:
    """From the names of a module to what they were imported as, imports within functions included."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {each.asname or each.name: each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
    return found


def is_trainer(name: str) -> bool:
    last = name.rpartition(".")[2]
    return name.startswith(("verifiers.", "transformers.", "trl.")) and last.endswith(("Trainer", "TrainingArguments"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_no_class_inherits_from_a_foreign_trainer(file: Path) -> None:
    """By the names in its source, `vf.GRPOTrainer` under any alias."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    names = imported(tree)
    modules = {*names.values(), *(name.rpartition(".")[0] for name in names.values())}
    assert not any(module == "verifiers.trainers" or module.startswith("verifiers.trainers.") for module in modules)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            assert not ast.unparse(node).endswith("verifiers.trainers")
        if isinstance(node, ast.ClassDef):
            for base in node.bases:
                first, _, rest = ast.unparse(base).partition(".")
                full = ".".join(filter(None, [names.get(first, first), rest]))
                full = full.replace("vf.", "verifiers.", 1) if full.startswith("vf.") else full
                assert not is_trainer(full), f"{node.name} inherits from {full}"


def test_the_check_sees_what_it_must() -> None:
    source = (
        "import verifiers as vf\nfrom transformers import Trainer as T\nclass A(vf.GRPOTrainer): ...\nclass B(T): ..."
    )
    names = imported(ast.parse(source))
    assert is_trainer(f"{names['vf']}.GRPOTrainer")
    assert is_trainer(names["T"])
    assert not is_trainer("transformers.TrainerCallback")


def test_the_trainer_and_its_config_have_no_foreign_base() -> None:
    for module, name in (("trainer", "GRPOTrainer"), ("config.grpo", "GRPOConfig")):
        bases = inspect.getmro(getattr(import_module(f"rg_env.training.{module}"), name))
        assert not any(base.__module__.startswith(FOREIGN) for base in bases)
    trainer = import_module("rg_env.training.trainer").GRPOTrainer
    assert trainer.__mro__ == (trainer, object)
