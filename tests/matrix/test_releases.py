"""The built wheel beside each release of Verifiers, in an environment of its own, against a server of the tests.

    .venv/bin/pytest -m network tests/matrix                                    # all of them
    .venv/bin/pytest -m "network and not every_release" tests/matrix            # what CI runs, as uv.lock has it

Needs uv, and the registry unless uv's cache has the packages.
"""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from chat_server import ChatServer, completion
from release_environments import RELEASES, Release, build_wheel, make_environment
from starlette.responses import JSONResponse

from rg_env.core.dataset import build_rows
from rg_env.core.metrics import metrics_of
from rg_env.core.rewards import Rollout, resolve_rewards
from rg_env.core.tasks import Mixture

EXAMPLES, ROLLOUTS = 12, 2
GYM = [{"name": "leg_counting"}, {"name": "chain_sum", "weight": 2}]
OPTIONS: dict[str, Any] = {"gym": GYM, "num_train_examples": 4, "num_eval_examples": EXAMPLES, "eval_seed": 3}
REWARDS: dict[str, Any] = {
    "default": None,
    # Weights whose products are no round numbers: sums in another order would differ in the last digit.
    "several": [["correctness", 0.7], ["format", 0.1], ["brevity", 0.33], {"name": "cosine", "weight": 0.017}],
}
SCENARIO = Path(__file__).with_name("v0_scenario.py")
BREAKS = """import rg_env
@rg_env.reward
def breaks(rollout):
    raise KeyError("five")
"""

pytestmark = [pytest.mark.network, pytest.mark.timeout(600)]


def releases(api: str) -> list[Any]:
    return [
        pytest.param(each, id=each.version, marks=() if each.group else pytest.mark.every_release)
        for each in RELEASES
        if api in each.apis
    ]


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Release], Path]:
    """From a release to the folder of programs of its environment, made once."""
    wheel = build_wheel(tmp_path_factory.mktemp("wheel"))
    made: dict[str, Path] = {}

    def make(release: Release) -> Path:
        if release.version not in made:
            folder = tmp_path_factory.mktemp(release.version)
            made[release.version] = make_environment(release, wheel, folder, locked=release.group is not None)
        return made[release.version]

    return make


@pytest.fixture(scope="session")
def replies() -> dict[str, str | None]:
    """By question, an answer of each kind: right, wrong, unmarked, empty, none at all, right among other text."""
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
    """By kind of rewards and question: the reward and the metrics that every release has to give."""
    mixture = Mixture.parse(GYM)
    found: dict[str, dict[str, Any]] = {}
    for name, spec in REWARDS.items():
        rewards, found[name] = resolve_rewards(spec), {}
        metrics = metrics_of(rewards, mixture, "strict")
        for row in build_rows(GYM, "eval", EXAMPLES, 3):
            reply = replies[row["question"]]

            def scored(row: Any, reply: Any, tokens: int | None, rewards: Any, metrics: Any) -> dict[str, Any]:
                rollout = Rollout.of(
                    prompt=[], completion=reply, answer=row["answer"], info=row["info"], completion_tokens=tokens
                )
                return {
                    "reward": sum(reward.value(rollout, {}) * reward.weight for reward in rewards),
                    "metrics": {metric.name: metric.value(rollout) for metric in metrics},
                }

            found[name][row["question"]] = scored(row, reply, 5, rewards, metrics)
            if not reply:
                found[name][row["question"]]["failed"] = scored(row, reply, None, rewards, metrics)
    return found


def run(*command: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A command in an environment of its own, with no more of this one's than it needs."""
    kept = {key: os.environ[key] for key in ("PATH", "HOME", "LANG", "RG_ENV_CACHE") if key in os.environ}
    return subprocess.run(
        [*map(str, command)],
        cwd=cwd,
        env={**kept, "NO_KEY": "none", "COLUMNS": "400"},
        stdin=subprocess.DEVNULL,
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )


def check(found: list[dict[str, Any]], expected: dict[str, Any]) -> None:
    """Every question `ROLLOUTS` times, each with the very reward and metrics.

    From 0.1.12 on an empty reply is an error to Verifiers itself: it is recorded, and scored as if nothing had come.
    """
    assert sorted(each["question"] for each in found) == sorted([*expected] * ROLLOUTS)
    for each in found:
        wanted = expected[each["question"]]
        if each["error"]:
            assert "EmptyModelResponse" in str(each["error"])
            wanted = wanted["failed"]
        assert each["reward"] == wanted["reward"], each
        assert wanted["metrics"].items() <= each["metrics"].items(), each


@pytest.mark.parametrize("release", releases("v0"))
def test_v0(
    release: Release,
    environment: Callable[[Release], Path],
    server: ChatServer,
    expected: dict[str, Any],
    tmp_path: Path,
) -> None:
    """Loaded and evaluated from Python: rewards and metrics are equal in all releases, and so are errors."""
    calls = {name: {"rewards": spec} for name, spec in REWARDS.items()}
    bad = {"breaks": {"rewards": ["correctness", "breaks"]}, "argument": {"gyn": 1}, "task": {"gym": "leg_countin"}}
    spec = {"url": server.url, "options": OPTIONS, "calls": {**calls, **bad}, "examples": EXAMPLES}
    done = run(environment(release) / "python", "-W", "ignore", SCENARIO, json.dumps(spec), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["version"] == release.version.removesuffix(".post0") or said["version"] == release.version
    assert said["light"] == []
    for name in REWARDS:
        check(said["found"][name], expected[name])
    assert said["found"]["breaks"].startswith("RewardError: reward 'breaks' raised KeyError: 'five'; task ")
    assert said["found"]["argument"] == (
        "UnknownNameError: unknown parameter of the environment 'gyn': did you mean 'gym'?"
    )
    assert said["found"]["task"].startswith("UnknownNameError: unknown task 'leg_countin': did you mean 'leg_counting'")


@pytest.mark.parametrize("release", releases("v0"))
def test_v0_vf_eval(
    release: Release,
    environment: Callable[[Release], Path],
    server: ChatServer,
    expected: dict[str, Any],
    tmp_path: Path,
) -> None:
    """`vf-eval rg-env` with options; a reward that raises ends it, also where a server runs the environment."""

    def vf_eval(model: str, options: dict[str, Any]) -> subprocess.CompletedProcess[str]:
        return run(
            environment(release) / "vf-eval", "rg-env", "-m", model, "-b", server.url, "-k", "NO_KEY",
            "-n", EXAMPLES, "-r", ROLLOUTS, "-s", "-a", json.dumps(options), cwd=tmp_path,
        )  # fmt: skip

    done = vf_eval("m", OPTIONS)
    assert done.returncode == 0, done.stderr
    (results,) = tmp_path.glob("outputs/evals/rg-env--m/*/results.jsonl")
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    found = [
        {
            "question": row["prompt"][-1]["content"],
            "reward": row["reward"],
            "metrics": {**row, **row.get("metrics", {})},
            "error": row.get("error"),
        }
        for row in rows
    ]
    check(found, expected["default"])

    done = vf_eval("no-usage", {**OPTIONS, "rewards": ["correctness", "brevity"]})
    assert done.returncode != 0
    assert "reward 'brevity': the server reported no usage" in done.stderr
    kept = [
        json.loads(line)
        for path in tmp_path.glob("outputs/evals/rg-env--no-usage/*/results.jsonl")
        for line in path.open()
    ]
    assert all(row["accuracy"] == 0 for row in kept), "those whose reward raised are not among the results"


@pytest.mark.parametrize("release", releases("v1"))
def test_v1(
    release: Release,
    environment: Callable[[Release], Path],
    server: ChatServer,
    expected: dict[str, Any],
    tmp_path: Path,
) -> None:
    """Evaluated, validated and scored anew from the command line, with no sandbox and no login; errors are told."""
    programs = environment(release)
    prefix = "" if "v0" in release.apis else "vf-"  # 0.2 and 0.3 call v1's commands `eval`, `validate` and `replay`
    place = "--taskset" if release.version.startswith("0.2.") else "--env.taskset"

    def evaluate(name: str, *, model: str = "m", **options: Any) -> subprocess.CompletedProcess[str]:
        options = {**OPTIONS, **options}
        flags = [part for key, value in options.items() for part in (f"{place}.{key.replace('_', '-')}", text(value))]
        client = ("--client.base-url", server.url, "--client.api-key-var", "NO_KEY")
        return run(
            programs / f"{prefix}eval", "rg-env", "-m", model, *client, "-n", EXAMPLES, "-r", ROLLOUTS,
            "--output-dir", name, "--no-rich", *flags, cwd=tmp_path,
        )  # fmt: skip

    done = evaluate("run", rewards=REWARDS["several"])
    assert done.returncode == 0, done.stderr
    check(traces(tmp_path / "run"), expected["several"])

    run_folder = next((tmp_path / "run").rglob("traces.jsonl")).parent
    other = (
        "--taskset.id",
        "rg-env",
        "--taskset.gym",
        json.dumps(GYM),
        "--taskset.rewards",
        '{"correctness": 1.0, "format": 0.1}',
    )
    done = run(programs / f"{prefix}replay", run_folder, "--no-rich", "--output-dir", "again", *other, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    check(traces(tmp_path / "again"), expected["default"])

    local = ("--runtime.type", "subprocess")
    done = run(programs / f"{prefix}validate", "rg-env", *local, "-n", 20, "--no-rich", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("reason=valid") == 20 or '"valid_rate": 1.0' in done.stdout, done.stdout + done.stderr

    (tmp_path / "breaks.py").write_text(BREAKS)
    evaluate("broken", imports=["breaks.py"], rewards={"correctness": 1.0, "breaks": 1.0})
    found = traces(tmp_path / "broken")
    assert len(found) == EXAMPLES * ROLLOUTS
    assert all(
        "reward 'breaks' raised KeyError: 'five'; task " in str(each["error"]) for each in found if each["reply"]
    )
    assert not any(each["metrics"] or each["reward"] for each in found)

    for options, error in (
        ({"gyn": "1"}, "gyn"),
        ({"gym": "leg_countin"}, "unknown task 'leg_countin': did you mean 'leg_counting'"),
    ):
        done = evaluate("bad", **options)
        assert done.returncode != 0
        assert error in " ".join(done.stderr.replace("│", " ").split())
        assert "Traceback" not in done.stderr


def text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def traces(folder: Path) -> list[dict[str, Any]]:
    """All traces under a run's folder in one form: each release has a form of its own."""
    found = []
    for path in folder.rglob("traces.jsonl"):
        for line in path.read_text().splitlines():
            record = json.loads(line)
            for trace in record.get("traces", [record]):
                rewards = [
                    reward["score"] * reward["weight"] if isinstance(reward, dict) else reward
                    for reward in trace["rewards"].values()
                ]
                errors = trace.get("errors") or []
                found.append(
                    {
                        "question": trace["task"]["data"]["question"],
                        "reply": any(call.get("error") is None for call in trace["calls"]),
                        "reward": sum(value for value in rewards if value is not None),
                        "metrics": {key: value for key, value in trace["metrics"].items() if value is not None},
                        "error": errors,
                    }
                )
    return found
