"""Publishing a run under ZeRO-3 to a hub, and using the download, with the commands that a user would run."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hub_runs import CONFIG, SMALL
from hub_server import CANARY, HubServer
from repeating_server import RepeatingServer
from safetensors.torch import load_file
from stack_server import REPOSITORY, RunningServer, cpu_environment

from rg_env.evaluation.results import read_results

BIN = Path(sys.executable).parent
LAUNCH = (BIN / "accelerate", "launch", "--config-file", REPOSITORY / "configs" / "zero3_cpu.yaml", "--module")


@pytest.mark.full_matrix
def test_a_run_under_zero3_is_published_and_resumed(server: RunningServer, tmp_path: Path) -> None:
    """Downloaded files equal those of the run, and the downloaded model has the accuracy that the run recorded.

    Two processes that resume from the downloaded shards reach the weights of the uninterrupted run if the server
    returns the same samples. A single process cannot resume from the shards of two.
    """
    run, copy = tmp_path / "run", tmp_path / "copy"
    with HubServer() as hub, RepeatingServer(server.port) as between:
        hub.tokens = {CANARY: ("me", True)}
        online = {**hub.environment, "HF_HUB_OFFLINE": "0", "HF_TOKEN": CANARY, "HF_HOME": str(tmp_path / "hf")}

        def call(*words: Any, code: int = 0) -> str:
            done = subprocess.run(
                [str(word) for word in words],
                env=cpu_environment(**online),
                cwd=tmp_path,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
                timeout=1000,
            )
            assert done.returncode == code, done.stdout[-3000:]
            return done.stdout

        engine = ("engine.kind=vllm", f"engine.port={between.port}")
        call(*LAUNCH, "rg_env.cli.main", "train", CONFIG, *engine, *SMALL, f"output.dir={run}", "training.max_steps=3")
        second = run / "checkpoint-2"
        output = call(BIN / "rg-env", "export", second, "--output-dir", tmp_path / "exported")
        assert "ZeRO-3 shards of 2 processes, step 2" in output
        assert "verified: every tensor equals the trained tensor" in output
        call(BIN / "rg-env", "push", second, "--repo-id", "me/legs", "--optimizer-state", "full")
        call(BIN / "hf", "download", "me/legs", "--local-dir", copy)
        # The remaining commands are those on the model card.
        config, evaluation = copy / "run/config.yaml", tmp_path / "evaluation"
        eval_only = ("--eval-only", "--checkpoint", copy, "engine.kind=embedded")
        call(BIN / "rg-env", "train", config, *eval_only, f"output.dir={evaluation}")
        resume = (*engine, f"output.dir={copy / 'run'}", "--resume", "auto")
        output = call(BIN / "rg-env", "train", config, *resume, code=2)
        assert "it was saved by 2 processes, not 1" in output
        between.repeat()
        assert "resuming after step 2" in call(*LAUNCH, "rg_env.cli.main", "train", config, *resume)

    ours, theirs = contents(run / "checkpoint-2"), contents(copy / "run" / "checkpoint-2")
    assert theirs == {path: content for path, content in ours.items() if path in theirs}
    assert ours.keys() - theirs.keys() == {"zero_to_fp32.py", "zero_to_torch.py"}  # code is not published
    exported, published = (load_file(folder / "model.safetensors") for folder in (tmp_path / "exported", copy))
    assert exported.keys() == published.keys()
    assert all(torch.equal(exported[name], published[name]) for name in exported)

    files = (next(evaluation.rglob("eval_step_*.json")), run / "eval_results/eval_step_2.json")
    measured, recorded = (scores for file in files if (scores := read_results(file).overall()))
    assert measured.greedy_accuracy == pytest.approx(recorded.greedy_accuracy, abs=1 / 12 + 1e-9)

    results = json.loads((copy / "run/train_results.json").read_text())
    assert results["steps"] == 3
    assert results["resumed_from"].endswith("checkpoint-2")
    assert between.repeated, "the third step did not get the earlier samples"
    uninterrupted, resumed = (load_file(folder / "checkpoint-3/model.safetensors") for folder in (run, copy / "run"))
    third_step = sum((uninterrupted[name] - exported[name]).square().sum() for name in uninterrupted) ** 0.5
    difference = sum((uninterrupted[name] - resumed[name]).square().sum() for name in uninterrupted) ** 0.5
    # The ratio is 0 if each group's answers arrive in the same order; without the optimizer's moments, it was 0.76.
    assert difference < 0.01 * third_step


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
