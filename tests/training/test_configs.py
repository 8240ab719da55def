"""Every run config in configs/, loaded as by `rg-env train`."""

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from rg_env.evaluation.load import load_eval_config
from rg_env.tiny import TRAINING
from rg_env.training.config.grpo import GRPOSettings
from rg_env.training.config.load import load_train_config
from rg_env.training.config.schema import TrainConfig

CONFIGS = Path(__file__).parents[2] / "configs"
BASES = {"base.yaml", "base_intra.yaml", "base_inter.yaml", "base_curriculum.yaml"}  # in train/paper
EXPERIMENTS = sorted(path for path in (CONFIGS / "train").rglob("*.yaml") if path.name not in BASES)
PARTS = sorted(
    path for part in ("algorithms", "models", "tasks", "prompts") for path in (CONFIGS / part).rglob("*.yaml")
)


def name(path: Path) -> str:
    return str(path.relative_to(CONFIGS))


def loaded(folder: Path, *extends: Path | str, **sections: Any) -> TrainConfig:
    """Write a config that extends files and has these sections, and load it."""
    file = folder / "run.yaml"
    file.write_text(json.dumps({"extends": [str(path) for path in extends], **sections}))
    return load_train_config(file)


@pytest.mark.parametrize("path", EXPERIMENTS, ids=name)
def test_an_experiment_loads_and_is_documented(path: Path) -> None:
    """The resolved config loads to an equal config, and the comment at the top gives the
    command, the source of the numbers, and the metrics under labels."""
    config = load_train_config(path)
    assert TrainConfig.model_validate_json(config.model_dump_json()) == config
    head = path.read_text().split("extends:")[0]
    assert f"rg-env train configs/{name(path)}\n" in head
    assert re.search("(?i)published|figures|not from a publication|measured", head.replace("\n# ", " "))
    assert re.findall(r"eval/([\w.-]+)/accuracy", head) == config.evaluation.labels


@pytest.mark.parametrize("path", PARTS, ids=name)
def test_a_part_loads_with_a_minimal_config(path: Path, tmp_path: Path) -> None:
    """Each file for an algorithm, a model, tasks or a prompt can be added to base.yaml."""
    own = yaml.safe_load(path.read_text())
    model = {"name": "tiny", **own.get("model", {})}
    tasks = own.get("tasks") or {"ab": {}} if path.parent.name != "held_out" else {"count_primes": {}}
    config = loaded(tmp_path, CONFIGS / "base.yaml", path, model=model, tasks=tasks)
    assert own.keys() - {"extends"} <= config.model_fields_set


def test_base_spells_out_the_defaults(tmp_path: Path) -> None:
    """A run with base.yaml has the same values as one without it, also if it is shorter than the default warmup."""
    sections = {"model": {"name": "tiny"}, "tasks": {"ab": {}}, "training": {"max_steps": 3}}
    assert loaded(tmp_path, CONFIGS / "base.yaml", **sections) == loaded(tmp_path, **sections)


def test_a_list_of_rewards_replaces_those_of_base_yaml(tmp_path: Path) -> None:
    """A mapping of rewards adds to those of base.yaml."""
    sections = {"model": {"name": "tiny"}, "tasks": {"ab": {}}}
    listed = [{"name": "correctness", "weight": 0.8}, {"name": "brevity", "weight": 0.2}]
    assert [*loaded(tmp_path, CONFIGS / "base.yaml", **sections, rewards=listed).rewards] == ["correctness", "brevity"]
    added = loaded(tmp_path, CONFIGS / "base.yaml", **sections, rewards={"brevity": 0.2}).rewards
    assert [*added] == ["correctness", "format", "brevity"]


@pytest.mark.parametrize("model", ["tiny", "any other"])
def test_scripts_and_configs_have_the_same_defaults(tmp_path: Path, model: str) -> None:
    """`default_config` returns the values of the resolved shipped configs, field by field."""
    from rg_env.inference.models import Policy
    from rg_env.training.config.grpo import default_config

    part = CONFIGS / "models" / ("tiny.yaml" if model == "tiny" else "qwen2.5-3b.yaml")
    config = loaded(tmp_path, CONFIGS / "base.yaml", part, tasks={"ab": {}})
    if model == "tiny":
        tiny = load_train_config(CONFIGS / "train" / "tiny.yaml")
        assert config.training == tiny.training == GRPOSettings(**TRAINING)
    ours = default_config(Policy(None, None, model, is_tiny=model == "tiny"), tmp_path)
    assert ours == config.grpo_config(tmp_path)


@pytest.mark.parametrize("path", [path for path in EXPERIMENTS if path.stem.endswith("_fixed")], ids=name)
def test_a_fixed_config_differs_from_its_curriculum_only_in_difficulty(path: Path) -> None:
    """Configs may also differ in the numbers of steps and questions."""
    fixed = load_train_config(path)
    other = load_train_config(path.with_name(path.name.replace("_fixed", "")))
    assert fixed.curriculum is None
    assert other.curriculum is not None
    same = {"curriculum": None, "tasks": other.tasks, "splits": other.splits}
    steps = fixed.training.model_copy(update={"max_steps": other.training.max_steps})
    assert fixed.model_copy(update={**same, "training": steps}) == other.model_copy(update=same)


@pytest.mark.parametrize(
    ("path", "values"),
    [
        (
            "leg_counting_qwen7b",  # configs/ of AH-Technologies/reasoning-gym, and defaults of verifiers 0.1.5
            {"learning_rate": 3e-5, "num_generations": 8, "warmup_steps": 100, "temperature": 0.7, "beta": 0.001,
             "loss_type": "dr_grpo", "scale_rewards": "none", "mask_truncated_completions": True, "max_seq_len": 2048},
        ),
        ("syllogism_toy", {"warmup_steps": 20, "bf16": True}),
        ("multi_tasks", {"warmup_steps": 20, "bf16": True, "loss_type": "dapo"}),
        ("paper/inter_algebra", {"per_device_train_batch_size": 8, "entropy_coef": 0.001, "max_tokens": 2048}),
        ("paper/intra_graphs", {"per_device_train_batch_size": 4, "entropy_coef": 0.001, "max_tokens": 1024}),
    ],
)  # fmt: skip
def test_training_settings_match_their_sources(path: str, values: dict[str, Any]) -> None:
    training = load_train_config(CONFIGS / "train" / f"{path}.yaml").training
    assert {key: getattr(training, key) for key in values} == values


def test_evaluations_match_their_sources() -> None:
    """The sources are the latest versions of the evaluation files for graphs and knights_knaves."""
    graphs = load_train_config(CONFIGS / "train" / "paper" / "intra_graphs.yaml").evaluation
    assert (graphs.temperature, graphs.top_p, graphs.rollouts_per_example) == (0.6, 0.9, 3)
    knights = load_train_config(CONFIGS / "train" / "paper" / "curriculum_knights_knaves.yaml").evaluation
    options = {"n_people": 4, "depth_constraint": 3, "width_constraint": 3}
    assert (knights.temperature, knights.top_p, knights.rollouts_per_example) == (1.0, 1.0, 3)
    assert knights.tasks["knights_knaves_4"].config == options
    assert load_eval_config(CONFIGS / "eval" / "paper_curriculum.yaml").tasks["knights_knaves"].config == options


def test_the_inter_domain_evaluation_has_the_held_out_tasks() -> None:
    """Training runs evaluate the held-out tasks of one domain, whereas this evaluation config combines all domains."""
    extended = yaml.safe_load((CONFIGS / "eval" / "paper_inter.yaml").read_text())["extends"]
    domains = {path.name for path in (CONFIGS / "tasks" / "held_out").iterdir()}
    assert {Path(each).name for each in extended if "held_out" in each} == domains


def test_the_length_reward_gives_the_same_advantages_as_its_source() -> None:
    """The source's reward is score + 0.2 x (1 - score) x length, which differs from that of paper/inter_*.yaml by a
    constant."""
    rewards = load_train_config(CONFIGS / "train" / "paper" / "inter_algebra.yaml").rewards
    ours = {name: (each.weight, each.when, each.options) for name, each in rewards.items() if each is not None}
    assert ours["correctness"] == (0.8, None, {})
    assert ours["length"] == (-0.2, "not_correct", {"max_tokens": 256})
    for right, tokens in itertools.product((0.0, 1.0), range(0, 300, 25)):
        source = right + 0.2 * (1 - right) * min(tokens / 256, 1)
        here = 0.8 * right - 0.2 * (1 - right) * (1 - min(tokens / 256, 1))
        assert source - here == pytest.approx(0.2), "they differ by a constant, which no advantage sees"
