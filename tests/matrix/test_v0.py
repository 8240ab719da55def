"""The wheel with each release of Verifiers that has the v0 API, in separate environments.

    .venv/bin/pytest -m network tests/matrix                                    # all of them
    .venv/bin/pytest -m "network and not full_matrix" tests/matrix            # what CI runs, with locked versions

Needs uv, and the registry unless uv's cache has the packages.
"""

import json
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from chat_server import ChatServer
from release_checks import EXAMPLES, OPTIONS, REWARDS, ROLLOUTS, check, releases, run
from release_environments import ROOT, Make, Release

SCENARIO = Path(__file__).with_name("v0_scenario.py")
IN_CI = [each for each in releases("v0") if not each.marks]

pytestmark = [pytest.mark.network, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("release", releases("v0"))
def test_v0(release: Release, environment: Make, server: ChatServer, expected: Any, tmp_path: Path) -> None:
    """Evaluation from Python gives the same rewards, metrics and errors in all releases."""
    calls = {name: {"rewards": spec} for name, spec in REWARDS.items()}
    bad = {"breaks": {"rewards": ["correctness", "breaks"]}, "argument": {"gyn": 1}, "task": {"gym": "leg_countin"}}
    spec = {"url": server.url, "options": OPTIONS, "calls": {**calls, **bad}, "examples": EXAMPLES}
    done = run(environment(release) / "python", "-W", "ignore", SCENARIO, json.dumps(spec), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout.splitlines()[-1])
    assert printed["version"] == release.version.removesuffix(".post0") or printed["version"] == release.version
    assert printed["heavy_imports"] == []
    assert len(printed["v1_errors"]) == (0 if "v1" in release.apis else 3)
    assert all("needs the v1 API of Verifiers, which verifiers 0.1." in error for error in printed["v1_errors"])
    for name in REWARDS:
        check(printed["results"][name], expected[name])
    assert printed["results"]["breaks"].startswith("RewardError: reward 'breaks' raised KeyError: 'five' (")
    assert printed["results"]["argument"] == (
        "UnknownNameError: unknown parameter 'gyn' of the environment: did you mean 'gym'?"
    )
    assert printed["results"]["task"].startswith(
        "UnknownNameError: unknown task 'leg_countin': did you mean 'leg_counting'"
    )


@pytest.mark.parametrize("release", releases("v0"))
def test_v0_vf_eval(release: Release, environment: Make, server: ChatServer, expected: Any, tmp_path: Path) -> None:
    """`vf-eval rg-env` accepts options. A failing reward ends it, even in releases that score in a server process."""

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
    saved = [path.read_text().splitlines() for path in tmp_path.glob("outputs/evals/rg-env--no-usage/*/results.jsonl")]
    kept = [json.loads(line) for lines in saved for line in lines]
    assert all(row["accuracy"] == 0 for row in kept), "rollouts whose reward raised an error are not saved"


@pytest.mark.parametrize("release", IN_CI)
def test_the_tests_of_the_v0_api(release: Release, environment: Make, tmp_path: Path) -> None:
    """The v0 tests, which are skipped in the development environment, pass with the releases in CI; none is skipped."""
    report = tmp_path / "report.xml"
    options = ("-o", "addopts=", "--import-mode=importlib", "-p", "no:cacheprovider", "-q", f"--junitxml={report}")
    done = run(environment(release) / "pytest", *options, "tests/adapters/test_v0.py", cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    (suite,) = ET.parse(report).getroot().iter("testsuite")
    assert int(suite.attrib["tests"]) > 0
    assert suite.attrib["skipped"] == "0", done.stdout
