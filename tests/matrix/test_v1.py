"""The wheel with each release of Verifiers that has the v1 API, in separate environments (see `test_v0.py`)."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from chat_server import ChatServer
from release_checks import EXAMPLES, GYM, OPTIONS, REWARDS, ROLLOUTS, check, releases, run
from release_environments import Make, Release
from user_code import TASK

from rg_env.core.data.dataset import build_rows
from rg_env.core.environment import PromptOptions

BREAKS = """import rg_env
@rg_env.reward
def breaks(rollout):
    raise KeyError("five")
"""

OWN = f"""{TASK}
import rg_env

@rg_env.reward
def shouts(rollout):
    return float("<ANSWER" not in rollout.text)

@rg_env.reward
def wants_state(state):
    return 0.0
"""
"""A user's task `own_sums` and reward, and a reward that needs an argument the v1 API lacks."""
CASES = yaml.safe_load(Path(__file__).with_name("v1_options.yaml").read_text())
CASES["refused"]["deep JSON"] = {"options": {"gym": "[" * 100_000}, "message": "not JSON"}
SPEC = {
    "accepted": {name: case["options"] for name, case in CASES["accepted"].items()},
    "refused": {name: case["options"] for name, case in CASES["refused"].items()},
}
SCENARIO = Path(__file__).with_name("v1_scenario.py")

pytestmark = [pytest.mark.network, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("release", releases("v1"))
def test_the_commands(release: Release, environment: Make, server: ChatServer, expected: Any, tmp_path: Path) -> None:
    """The commands evaluate, rescore and validate without a sandbox or login, record errors of rewards, and report an
    invalid option without a traceback."""
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
    rewards = '{"correctness": 1.0, "format": 0.1}'
    other = ("--taskset.id", "rg-env", "--taskset.gym", json.dumps(GYM), "--taskset.rewards", rewards)
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
    assert all("reward 'breaks' raised KeyError: 'five' (" in str(each["error"]) for each in found if each["reply"])
    assert not any(each["metrics"] or each["reward"] for each in found)

    done = evaluate("bad", gym="leg_countin")
    assert done.returncode != 0
    message = " ".join(done.stderr.replace("│", " ").split())
    assert "unknown task 'leg_countin': did you mean 'leg_counting'" in message
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("release", releases("v1"))
def test_from_python(release: Release, environment: Make, tmp_path: Path) -> None:
    """Rows and prompts equal core's for all options, users' tasks and rewards work, and invalid options are refused."""
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "spec.json").write_text(json.dumps(SPEC))
    done = run(environment(release) / "python", "-W", "ignore", SCENARIO, tmp_path, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout.splitlines()[-1])
    rows = {name: core_rows(**case.get("core", case["options"])) for name, case in CASES["accepted"].items()}
    assert printed["accepted"] == rows
    for name, case in CASES["refused"].items():
        assert case["message"] in printed["refused"][name], name
    assert "register your own function with @rg_env.reward" in printed["a function"]
    assert printed["gold"] == [True] * 14
    assert printed["keys"] == [14, 14]
    none = {"status/wrong": 0.0, "status/no_answer": 0.0, "status/too_long": 0.0, "status/ungradable": 0.0}
    own = {
        "rewards": {"correctness": [1.0, 1.0], "shouts": [1.0, 0.5]},
        "metrics": {"accuracy": 1.0, "status/timed_out": 0.0, **none},
    }
    assert printed["own"] == printed["pickled"] == printed["dumped"] == own
    assert printed["bare"]["rewards"] == {"correctness": [0.0, 1.0], "format": [1.0, 0.1]}
    assert printed["bare"]["metrics"] == {"accuracy": 0.0, **none, "status/wrong": 1.0}
    assert printed["one reward"] == {"format": [1.0, 1.0]}
    assert printed["upstream"]["metrics"] == {
        "accuracy": 0.0, "status/partial": 0.0, "status/timed_out": 0.0, **none, "status/wrong": 1.0,
    }  # fmt: skip
    assert printed["loaded"] == ["ReasoningGymEnv", f"rg_env.adapters.{release.apis[0]}"]


def core_rows(
    *, gym: Any = "leg_counting", split: Any = "eval", num_train_examples: int = 3, seed: int = 0, **options: Any
) -> list[dict[str, Any]]:
    """Return the same rows, built by core."""
    rows = PromptOptions(**options).to_examples(build_rows(gym, split, num_train_examples, seed))
    return [
        {
            "system": next((each["content"] for each in row["prompt"] if each["role"] == "system"), None),
            "prompt": row["prompt"][-1]["content"],
            "info": row["info"],
        }
        for row in rows
    ]


def text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def traces(folder: Path) -> list[dict[str, Any]]:
    """Return all traces in a run's folder, converted to one format, because the format differs between releases."""
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
