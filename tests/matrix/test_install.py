"""The wheel in empty environments: the README's examples run as printed, and commands name the extra they need."""

import json
import re
import sys
from pathlib import Path

import pytest
from release_checks import run
from release_environments import RELEASES, ROOT, Make, Release, uv

README = (ROOT / "README.md").read_text()
USE = README.partition("## Use it in your project")[2].partition("\n## ")[0]
CALLS = re.findall(r"`((?:vf|rg_env)[\w.]*\([^`]*\))`", USE.replace("ReasoningGym(...)", 'ReasoningGym("maze")'))
(EXAMPLE,) = re.findall(r"```python\n(from rg_env import Environment\n.*?)```", README, re.DOTALL)
NEED_AN_EXTRA = (
    "train configs/train/tiny.yaml", "train configs/train/tiny.yaml --sweep seed=0,1",
    "launch configs/train/tiny.yaml --vllm-gpus 0", "eval --models tiny --tasks maze",
    "probe --model tiny --tasks maze",
)  # fmt: skip
RUN_COMMANDS = """
import contextlib, io, json, sys
import rg_env
from rg_env.cli.main import main

printed = {}
for name, words in json.loads(sys.argv[1]).items():
    sys.argv = ["rg-env", *words]
    with contextlib.redirect_stderr(io.StringIO()) as errors:
        try:
            main()
        except SystemExit as end:
            printed[name] = [end.code or 0, errors.getvalue()]
try:
    import rg_env.adapters.v0
except rg_env.MissingExtraError as error:
    printed["v0"] = str(error)
print(json.dumps(printed))
"""
"""Runs the given commands in one process, and prints each one's exit code and standard error as JSON."""
IN_CI = [release for release in RELEASES if release.project]

pytestmark = [pytest.mark.network, pytest.mark.timeout(1800)]


def test_the_readme_has_calls_for_every_framework() -> None:
    assert [call.partition("(")[0] for call in CALLS] == [
        "rg_env.load_environment", "vf.load_environment", "rg_env.adapters.trl.load_environment", "rg_env.ReasoningGym",
    ]  # fmt: skip


@pytest.mark.parametrize("release", IN_CI, ids=lambda release: release.version)
def test_the_readmes_calls_and_example_run(release: Release, environment: Make, tmp_path: Path) -> None:
    """Calls in the table work if the release has their API. The example without a model prints the stated result."""
    calls = [call for call in CALLS if "v0" in release.apis or not call.startswith("vf.")]
    code = ["import rg_env, rg_env.adapters.trl, verifiers as vf", *(f"assert {call}" for call in calls), EXAMPLE]
    done = run(environment(release) / "python", "-W", "ignore", "-c", "\n".join(code), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == EXAMPLE.strip().rpartition("# ")[2]


def test_the_base_install(environment: Make, tmp_path: Path) -> None:
    """Commands that need an extra print one line with the remedy, other commands work, and importing the v0 adapter
    without the v0 API suggests both alternatives."""
    programs = environment(IN_CI[-1])
    (tmp_path / "RUN").mkdir()
    fail = (*NEED_AN_EXTRA, "export RUN --out model", "push RUN --repo-id me/mine")
    work = ("tasks maze --show 1", "train configs/train/tiny.yaml --dry-run")
    commands = {each: each.replace("configs/", f"{ROOT}/configs/").split() for each in (*fail, *work)}
    done = run(programs / "python", "-W", "ignore", "-c", RUN_COMMANDS, json.dumps(commands), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout.splitlines()[-1])
    for command in fail:
        code, errors = printed[command]
        assert (code, errors.count("\n")) == (2, 1), (command, errors)
        assert errors.startswith("error: ")
        install = re.search(r"pip install '.*\.whl\[(train|eval)\]'", errors)
        assert install or command not in NEED_AN_EXTRA, (command, errors)
    assert [printed[command][0] for command in work] == [0, 0], printed
    assert "use rg_env.load_environment" in printed["v0"]
    assert "pip install 'verifiers<0.4'" in printed["v0"]
    assert run(programs / "rg-env", "--version", cwd=tmp_path).returncode == 0


@pytest.mark.full_matrix
def test_flash_attn_installs_without_a_cuda_compiler(tmp_path: Path) -> None:
    """`uv sync --all-extras` succeeds on a machine without a GPU, where flash-attn has no effect."""
    sync = ("sync", "-q", "--frozen", "--no-default-groups", "--extra", "train", "--extra", "flash-attn")
    uv(*sync, "--python", sys.executable, UV_PROJECT_ENVIRONMENT=str(tmp_path / "venv"))
    code = "from rg_env.inference.models import flash_attention_problem as f; import torch; print(f(torch.bfloat16))"
    python = tmp_path / "venv" / "bin" / "python"
    done = run("env", "CUDA_VISIBLE_DEVICES=", python, "-W", "ignore", "-c", code, cwd=tmp_path)
    assert done.stdout == "this machine has no CUDA GPU\n", done.stderr
