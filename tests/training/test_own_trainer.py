"""The trainer is our own: no class inherits from another library's trainer or its arguments, under any alias."""

import ast
import inspect
from pathlib import Path

import rg_env
from rg_env.training.config.grpo import GRPOConfig
from rg_env.training.trainer import GRPOTrainer

PACKAGE = Path(rg_env.__file__).parent


def foreign_bases(source: str) -> list[str]:
    """Full names of the trainers, or classes of trainers' arguments, of other libraries that classes inherit from."""
    tree = ast.parse(source)
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {each.asname or each.name: each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
    found = []
    for node in ast.walk(tree):
        for base in node.bases if isinstance(node, ast.ClassDef) else ():
            first, *rest = ast.unparse(base).split(".")
            full = ".".join([names.get(first, first), *rest])
            if full.startswith(("verifiers.", "transformers.", "trl.")) and full.endswith(
                ("Trainer", "TrainingArguments", "GRPOConfig")
            ):
                found.append(full)
    return found


def test_no_class_inherits_from_a_foreign_trainer() -> None:
    """Nothing imports `verifiers.trainers`, within functions either."""
    for file in sorted(PACKAGE.rglob("*.py")):
        source = file.read_text(encoding="utf-8")
        assert "verifiers.trainers" not in source, file
        assert "from verifiers import trainers" not in source, file
        assert foreign_bases(source) == [], file
    foreign = ("verifiers.", "transformers.trainer", "transformers.training_args", "trl.")
    for ours in (GRPOTrainer, GRPOConfig):
        assert not any(base.__module__.startswith(foreign) for base in inspect.getmro(ours))
    assert GRPOTrainer.__mro__ == (GRPOTrainer, object)


def test_the_check_sees_aliases() -> None:
    source = (
        "import verifiers as vf\nfrom transformers import Trainer as T\nclass A(vf.GRPOTrainer): ...\nclass B(T): ..."
    )
    assert sorted(foreign_bases(source)) == ["transformers.Trainer", "verifiers.GRPOTrainer"]
    assert foreign_bases("from transformers import TrainerCallback\nclass A(TrainerCallback): ...") == []
