"""Fixtures with an environment for each release, a chat server, and the expected results."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from chat_server import ChatServer, completion
from filelock import FileLock
from release_checks import EXAMPLES, GYM, REWARDS
from release_environments import Make, Release, build_wheel, make_environment, make_training_environment
from shared_folders import shared_folder
from starlette.responses import JSONResponse

from rg_env.core.data.dataset import build_rows
from rg_env.core.grading.scoring import Rollout
from rg_env.core.rewards import Rubric, resolve_rewards
from rg_env.core.tasks.mixture import Mixture

FIRST = ("test_the_quick_tests", "test_the_script_builds_upstreams_trainer", "test_the_main_job")
"""Beginnings of the names of tests that take minutes."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the longest tests first, so that no worker runs one alone at the end."""
    items.sort(key=lambda item: next((n for n, name in enumerate(FIRST) if item.name.startswith(name)), len(FIRST)))


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Return a function from a release, or the name of an environment for training, to the `bin` folder of its
    environment, which is created once per test run."""
    shared = shared_folder(tmp_path_factory)

    def once(name: str, make: Callable[[Path], object]) -> Path:
        folder, done = shared / name, shared / f"{name}.done"
        with FileLock(shared / f"{name}.lock"):
            if not done.exists():
                make(folder)
                done.touch()
        return folder

    def make(release: Release | str) -> Path:
        (wheel,) = once("wheel", build_wheel).glob("*.whl")
        if isinstance(release, str):
            return once(release, lambda folder: make_training_environment(release, wheel, folder)) / "bin"
        return once(f"verifiers-{release.version}", lambda folder: make_environment(release, wheel, folder)) / "bin"

    return make


@pytest.fixture(scope="session")
def replies() -> dict[str, str | None]:
    """Return a reply to each question: right, wrong, without tags, empty, missing, or right and surrounded by text."""
    found: dict[str, str | None] = {}
    for index, row in enumerate(build_rows(GYM, "eval", EXAMPLES, 3)):
        gold = row["answer"]
        found[row["question"]] = [
            f"<answer>{gold}</answer>", "<answer>x</answer>", "no tags", "", None, f"so <answer> {gold} </answer>, yes",
        ][index % 6]  # fmt: skip
    return found


@pytest.fixture(scope="session")
def server(replies: dict[str, str | None]) -> Iterator[ChatServer]:
    def trouble(number: int, body: dict[str, Any]) -> JSONResponse | None:
        if body["model"] != "no-usage":
            return None
        answer = completion(replies[body["messages"][-1]["content"]])
        return JSONResponse({key: value for key, value in answer.items() if key != "usage"})

    with ChatServer(lambda question: replies[question], trouble=trouble) as server:  # type: ignore[arg-type,return-value]
        yield server


@pytest.fixture(scope="session")
def expected(replies: dict[str, str | None]) -> dict[str, dict[str, Any]]:
    """Return the reward and metrics expected from every release, by set of rewards and question."""
    found: dict[str, dict[str, Any]] = {}

    def scored(row: Any, rubric: Rubric, tokens: int | None) -> dict[str, Any]:
        rollout = Rollout([], replies[row["question"]] or "", row["answer"], row["info"], tokens)
        return {
            "reward": sum(reward.value(rollout, {}) * reward.weight for reward in rubric.rewards),
            "metrics": {metric.name: metric.value(rollout) for metric in rubric.metrics},
        }

    for name, spec in REWARDS.items():
        rubric = Rubric.of_tasks(resolve_rewards(spec), Mixture.parse(GYM), "hardened")
        found[name] = {}
        for row in build_rows(GYM, "eval", EXAMPLES, 3):
            found[name][row["question"]] = scored(row, rubric, 5)
            if not replies[row["question"]]:
                found[name][row["question"]]["failed"] = scored(row, rubric, None)
    return found
