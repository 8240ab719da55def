"""Measure the cost of the environment with each release of Verifiers: loading 1,000 rows, and scoring in v1 and v0.

    .venv/bin/python benchmarks/releases.py                  # all releases (takes minutes)
    .venv/bin/python benchmarks/releases.py --check          # exit code 1 if a target is missed
    .venv/bin/python benchmarks/releases.py 0.3.1 0.4.0

Each release is installed in its own virtual environment, which requires uv and either access to the package registry or
a filled uv cache. Loading is timed in a fresh process, with the rows in the cache, after importing everything that
Verifiers needs for any environment; these imports, which Verifiers 0.3 and 0.4 make lazily, take up to ten seconds and
are not part of rg_env's cost. Scoring is timed in one process with Verifiers 0.3.1, which has both APIs. Both APIs
score the same answers, through the functions that Verifiers calls to score a rollout (v0 `Rubric.score_rollout`, v1
`Task.score`).
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))
from release_environments import RELEASES, Release, build_wheel, make_environment

MOST_SECONDS, LEAST_RATIO = 1.5, 0.8
PROCESSES = 5

LOAD_V0 = """
import time
import verifiers as vf
vf.SingleTurnEnv, vf.Rubric, vf.Parser, vf.load_environment
start = time.perf_counter()
env = vf.load_environment("rg-env", gym="leg_counting", num_train_examples=1000, num_eval_examples=0)
assert len(env.get_dataset()) == 1000
print(time.perf_counter() - start)
"""
LOAD_V1 = """
import importlib.util, time
import verifiers.v1
importlib.util.find_spec("verifiers.v1.tasksets.none")
try:
    from verifiers.v1.utils import loaders
except ImportError:
    from verifiers.v1 import loaders
start = time.perf_counter()
kind = loaders.taskset_config_type("rg-env")
config = kind.model_validate({"id": "rg-env", "gym": "leg_counting", "split": "train", "num_train_examples": 1000})
assert len(list(loaders.load_taskset(config).load())) == 1000
print(time.perf_counter() - start)
"""
SCORE = """
import asyncio, json, time
import verifiers as v0
import verifiers.v1 as v1
from verifiers.v1.graph import MessageNode
from verifiers.v1.utils import loaders

COUNT, ROUNDS = 1000, 5
env = v0.load_environment("rg-env", gym="leg_counting", num_train_examples=COUNT, num_eval_examples=0)
kind = loaders.taskset_config_type("rg-env")
options = {"id": "rg-env", "gym": "leg_counting", "split": "train", "num_train_examples": COUNT}
tasks = list(loaders.load_taskset(kind.model_validate(options)).load())
rows = list(env.get_dataset())
assert [row["question"] for row in rows] == [task.data.question for task in tasks]
replies = [f"So it is <answer>{row['answer'] if i % 2 else 'none'}</answer>" for i, row in enumerate(rows)]
agent = v1.AgentInfo(config=v1.AgentConfig(runtime=v1.SubprocessConfig()), name="benchmark")

def states():
    return [{"prompt": row["prompt"], "completion": [{"role": "assistant", "content": reply}], "answer": row["answer"],
             "info": row["info"], "task": "default", "trajectory": []} for row, reply in zip(rows, replies)]

def traces():
    return [v1.Trace(task=v1.TraceTask(type="t", data=task.data), agent=agent,
                     nodes=[MessageNode(message=v1.AssistantMessage(content=reply), sampled=True)])
            for task, reply in zip(tasks, replies)]

async def score_v0(made):
    for state in made:
        await env.rubric.score_rollout(state)

async def score_v1(made):
    for task, trace in zip(tasks, made):
        await task.score(trace)

rates = {"v0": [], "v1": []}
for _ in range(ROUNDS):
    for name, make, score in (("v0", states, score_v0), ("v1", traces, score_v1)):
        made = make()
        start = time.perf_counter()
        asyncio.run(score(made))
        rates[name].append(COUNT / (time.perf_counter() - start))
        right = sum((each["reward"] if name == "v0" else each.reward) > 1 for each in made)
        assert right == COUNT // 2, right
print(json.dumps(rates))
"""


def seconds(python: Path, code: str) -> float:
    """Run `code`, which prints a time in seconds, in fresh processes, and return the median. An extra run at the start
    fills the cache."""
    runs = [_run(python, code) for _ in range(PROCESSES + 1)][1:]
    return statistics.median(float(run) for run in runs)


def _run(python: Path, code: str) -> str:
    command = [python, "-W", "ignore", "-c", code]
    done = subprocess.run(command, cwd=tempfile.gettempdir(), check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{python} failed: {done.stderr[-2000:]}")
    return done.stdout.splitlines()[-1]


def measure(release: Release, python: Path) -> bool:
    """Time loading (and, with Verifiers 0.3.1, scoring), print the figures, and return whether the targets are met."""
    good = True
    for api in release.apis:
        took = seconds(python, LOAD_V0 if api == "v0" else LOAD_V1)
        good &= took <= MOST_SECONDS
        print(
            f"{release.version:12} {api}: 1,000 rows loaded in {took:.2f} s, excluding Verifiers' own imports",
            flush=True,
        )
    if release.version == "0.3.1":
        rates = json.loads(_run(python, SCORE))
        ratio = statistics.median(one / other for one, other in zip(rates["v1"], rates["v0"], strict=True))
        good &= ratio >= LEAST_RATIO
        print(f"{release.version:12} rollouts scored per second, v1 / v0: {ratio:.2f}", flush=True)
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = {release.version: release for release in RELEASES}
    parser.add_argument("releases", nargs="*", help=f"any of {', '.join(known)} (default: all)")
    parser.add_argument("--check", action="store_true", help="exit code 1 if a target is missed")
    options = parser.parse_args()
    if unknown := [name for name in options.releases if name not in known]:
        parser.error(f"unknown releases: {', '.join(unknown)}")
    good = True
    with tempfile.TemporaryDirectory() as folder:
        wheel = build_wheel(Path(folder) / "wheel")
        for name in options.releases or known:
            release = known[name]
            programs = make_environment(release, wheel, Path(folder) / name, locked=release.project is not None)
            good &= measure(release, programs / "python")
    return int(options.check and not good)


if __name__ == "__main__":
    sys.exit(main())
