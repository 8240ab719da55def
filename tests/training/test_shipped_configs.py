"""Every shipped experiment trains for two steps, with a small random model that has a long context, and builds its rows
at full size."""

from functools import cache
from pathlib import Path

import pytest
from data_files import data
from run_metrics import lines_of
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from rg_env.evaluation.load import load_eval_config
from rg_env.evaluation.questions import draw
from rg_env.tiny import POLICY_DIR
from rg_env.training.config.load import load_train_config
from rg_env.training.from_config import run_config

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
EXPERIMENTS = sorted(path for path in (ROOT / "configs" / "train").rglob("*.yaml") if not path.stem.startswith("base"))
EVALUATIONS = sorted((ROOT / "configs" / "eval").glob("*.yaml"))


@pytest.fixture(scope="session")
def long_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a random model with 32,768 positions and the tiny policy's tokenizer, which knows every byte."""
    folder = tmp_path_factory.mktemp("models") / "random"
    tokenizer = AutoTokenizer.from_pretrained(POLICY_DIR)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=32768, pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@cache
def evaluated(path: Path) -> tuple[str, ...]:
    """Return the held-out tasks and labels that an experiment evaluates."""
    return tuple(load_train_config(path).evaluation.tasks)


def first_with(name: str) -> Path:
    """Return the first experiment that evaluates this task or label."""
    return next(path for path in EXPERIMENTS if name in evaluated(path))


def smaller(path: Path, model: str, output: Path) -> list[str]:
    """Return overrides that keep the experiment but reduce its size. Tasks that several experiments evaluate are
    evaluated only in the first one, because generating their questions takes longest."""
    config = load_train_config(path)
    tasks = len(config.tasks)
    kept = [name for name in evaluated(path) if first_with(name) == path] or evaluated(path)[:1]
    return [
        *(f"evaluation.tasks.{name}=null" for name in evaluated(path) if name not in kept),
        *(f"evaluation.tasks.{name}.num_examples=1" for name in kept),
        *data("small_run"),
        f"model.name={model}",
        f"splits.num_train_examples={max(8, tasks)}",
        f"splits.num_eval_examples={tasks}",
        f"output.dir={output}",
    ]


IN_CI = {"train/tiny.yaml", "eval/seven_tasks.yaml"}
"""A config of each kind; the second requests more questions than a task has. Others take minutes."""


@pytest.mark.timeout(1800)  # rows that are not cached take minutes, and more on a busy machine
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in IN_CI else pytest.mark.full_matrix)
        for name in (str(path.relative_to(ROOT / "configs")) for path in (*EXPERIMENTS, *EVALUATIONS))
    ],
)
def test_rows_of_every_experiment_at_full_size(name: str) -> None:
    """All training rows are there. Evaluation rows are distinct, and as many as requested if the task has them."""
    path = ROOT / "configs" / name
    if name.startswith("train"):
        config = load_train_config(path)
        env = config.environment()
        assert len(env.train_rows) == config.splits.num_train_examples
        evaluated = {label: each.eval_rows for label, each in config.evaluation_environments()}
        evaluated["training tasks"] = env.eval_rows
        asked = {label: round(sum(t.weight for t in own.tasks)) for label, own in config.evaluation_mixtures.items()}
        asked["training tasks"] = config.splits.num_eval_examples
    else:
        evaluation = load_eval_config(path, ["models.base=any@http://127.0.0.1:1/v1"])  # "tiny" has options of its own
        evaluated = {task: draw(evaluation, task).env.eval_rows for task in evaluation.tasks}
        asked = {task: evaluation.count(task) for task in evaluation.tasks}
    for rows in evaluated.values():
        assert len({row["question"] for row in rows}) == len(rows) > 0
    fewer = {label for label, rows in evaluated.items() if len(rows) < asked[label]}
    assert fewer <= {"tower_of_hanoi", "jugs"}


ALIKE = ("curriculum_[ckm]*", "inter_a*", "inter_g*", "intra_[!a]*", "intra_al*")
"""Experiments that differ from others only in their tasks. CI trains the others, and the weekly tests all of them."""


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[pytest.mark.full_matrix] * any(map(path.match, ALIKE))) for path in EXPERIMENTS],
    ids=lambda path: str(path.relative_to(ROOT / "configs" / "train")),
)
def test_two_steps_of_every_experiment(path: Path, long_model: str, tmp_path: Path) -> None:
    output = tmp_path / "run"
    config = load_train_config(path, smaller(path, long_model, output))
    results = run_config(config)
    assert results["steps"] == 2
    assert set(results["eval_after"]["tasks"]) == set(config.tasks)
    others = results["eval_after"]["held_out"]
    assert set(others["tasks"] if others else ()) == set(config.evaluation.held_out)
    assert {label: scores["n"] for label, scores in results["eval_after"]["labelled"].items()} == dict.fromkeys(
        config.evaluation.labels, 1
    )
    assert sum("loss" in line for line in lines_of(output / "metrics.jsonl")) == 2
    assert load_train_config(output / "config.yaml") == config
