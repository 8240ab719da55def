"""Tests that the page about the environment, in the Environments Hub's format, agrees with the code."""

import ast
import inspect
import re
import tomllib
from pathlib import Path

from release_environments import RELEASES

from rg_env.adapters.v1 import ReasoningGymTasksetConfig
from rg_env.core.config.parsing import DEFAULT_REWARDS
from rg_env.core.environment import ReasoningGym
from rg_env.core.prompts import SYSTEM_PROMPT
from rg_env.core.rewards import resolve_rewards

ROOT = Path(__file__).parents[1]
ENVIRONMENT = (ROOT / "docs" / "reference" / "environment.md").read_text()
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", ENVIRONMENT, re.MULTILINE | re.DOTALL))


def table(text: str) -> list[list[str]]:
    """Return the cells of the first table, without its header."""
    (found, *_) = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in found.splitlines()[2:]]


def names(cell: str) -> list[str]:
    return re.findall(r"`(.+?)`", cell)


def test_the_sections_are_those_of_the_hub() -> None:
    assert [*SECTIONS][:6] == ["Overview", "Datasets", "Task", "Quickstart", "Environment Arguments", "Metrics"]


def test_the_overview_agrees_with_the_package_metadata() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"- **Environment ID**: `{project['name']}`\n" in SECTIONS["Overview"]
    (tags,) = re.findall(r"^- \*\*Tags\*\*: (.+)$", SECTIONS["Overview"], re.MULTILINE)
    assert names(tags) == project["tags"]


def test_the_arguments_are_those_of_load_environment_with_their_defaults() -> None:
    """The table has the arguments of every installation, and the additional ones of Verifiers' v1 and v0 objects."""
    parameters = dict(inspect.signature(ReasoningGym).parameters)
    parameters |= {
        "split": inspect.Parameter("split", inspect.Parameter.KEYWORD_ONLY, default="eval"),
        "rubric": inspect.Parameter("rubric", inspect.Parameter.KEYWORD_ONLY, default=None),
        "parser": inspect.Parameter("parser", inspect.Parameter.KEYWORD_ONLY, default=None),
    }
    documented: dict[str, str] = {}
    for argument, default, _ in table(SECTIONS["Environment Arguments"]):
        defaults = default.split(", ") if len(names(argument)) > 1 else [default]
        documented |= dict(zip(names(argument), defaults, strict=True))
    assert documented.keys() == parameters.keys()
    rewards = {reward.name: reward.weight for reward in resolve_rewards(parameters["rewards"].default)}
    assert documented.pop("rewards") == ", ".join(f"`{name}` {weight}" for name, weight in rewards.items())
    literals = {"none": None, '"Think step by step, …"': SYSTEM_PROMPT}
    for name, text in documented.items():
        value = literals[text] if text in literals else ast.literal_eval(text.strip("`"))
        assert value == parameters[name].default, name


def test_the_tasksets_options_are_its_fields() -> None:
    fields = set(ReasoningGymTasksetConfig.__annotations__)
    options = {name for row in table(SECTIONS["With Verifiers' v1 API"]) for name in names(row[0])}
    assert options == fields - {"task"}


def test_every_release_of_the_matrix_is_in_the_table() -> None:
    """A release is marked as checked in CI only if it is."""
    checks: dict[str, str] = {}
    for release, _, checked in table(SECTIONS["Releases"]):
        checks |= dict.fromkeys(re.findall(r"\b0\.\d[\w.]*", release.split(" with ")[0]), checked)
    assert checks.keys() == {release.version for release in RELEASES}
    assert {version for version, checked in checks.items() if checked == "in CI"} == {
        release.version for release in RELEASES if release.project
    }


def test_sizes_and_rewards_are_the_defaults() -> None:
    parameters = inspect.signature(ReasoningGym).parameters
    sizes = [parameters[f"num_{split}_examples"].default for split in ("train", "eval")]
    assert "{:,} questions for training and {:,} for evaluation".format(*sizes) in SECTIONS["Datasets"]
    (first, weight), (second, other) = DEFAULT_REWARDS.items()
    assert f"`{first}` (weight {weight}) and `{second}` ({other})" in SECTIONS["Task"]


def test_the_metrics_are_those_of_the_rubrics() -> None:
    """The table covers all gradings, including metrics that only some of them have."""
    found: set[str] = set()
    for options in ({}, {"grading": "partial"}, {"grading": "upstream"}, {"gym": ["leg_counting", "chain_sum"]}):
        env = ReasoningGym(**{"gym": "maze", "num_train_examples": 2, "num_eval_examples": 0, **options})
        found |= {each.name for each in [*env.rubric.rewards, *env.rubric.metrics]}
    found = {re.sub("^accuracy/.*", "accuracy/<task>", name) for name in found}
    documented = {name for metric, _ in table(SECTIONS["Metrics"]) for name in names(metric)}
    assert documented == found | {"reward"}, "reward is their weighted sum, which Verifiers makes"
