"""From a run under ZeRO-3 to the hub and back, by the commands."""

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
def test_a_run_under_zero3_is_published_and_goes_on(server: RunningServer, tmp_path: Path) -> None:
    """Two processes train. What is downloaded is the run's to the byte, the model answers as the run recorded, and two
    processes go on from the shards as if they had never stopped: what the server samples being the same, so are the
    weights. One process alone is refused."""
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
                timeout=400,
            )
            assert done.returncode == code, done.stdout[-3000:]
            return done.stdout

        engine = ("engine.kind=vllm", f"engine.port={between.port}")
        call(*LAUNCH, "rg_env.cli.main", "train", CONFIG, *engine, *SMALL, f"output.dir={run}", "training.max_steps=3")
        second = run / "checkpoint-2"
        said = call(BIN / "rg-env", "export", second, "--output-dir", tmp_path / "exported")
        assert "ZeRO-3 shards of 2 processes, step 2" in said
        assert " greedy answers to frozen questions are correct" in said
        call(BIN / "rg-env", "push", second, "--repo-id", "me/legs", "--optimizer-state", "full")
        call(BIN / "hf", "download", "me/legs", "--local-dir", copy)
        # The commands on its card.
        config, asked = copy / "run/config.yaml", tmp_path / "asked"
        only = ("--eval-only", "--checkpoint", copy, "engine.kind=embedded")
        call(BIN / "rg-env", "train", config, *only, f"output.dir={asked}")
        further = (*engine, f"output.dir={copy / 'run'}", "--resume", "auto")
        said = call(BIN / "rg-env", "train", config, *further, code=2)
        assert "it was saved by 2 processes, not 1" in said
        between.repeat()
        assert "resuming after step 2" in call(*LAUNCH, "rg_env.cli.main", "train", config, *further)

    ours, theirs = contents(run / "checkpoint-2"), contents(copy / "run" / "checkpoint-2")
    assert theirs == {path: content for path, content in ours.items() if path in theirs}
    assert ours.keys() - theirs.keys() == {
        "zero_to_fp32.py",
        "zero_to_torch.py",
    }  # pickled, or code
    exported, published = (load_file(folder / "model.safetensors") for folder in (tmp_path / "exported", copy))
    assert exported.keys() == published.keys()
    assert all(torch.equal(exported[name], published[name]) for name in exported)

    files = (next(asked.rglob("eval_step_*.json")), run / "eval_results/eval_step_2.json")
    found, recorded = (scores for file in files if (scores := read_results(file).overall()))
    assert found.greedy_accuracy == pytest.approx(recorded.greedy_accuracy, abs=1 / 12 + 1e-9)

    results = json.loads((copy / "run/train_results.json").read_text())
    assert results["steps"] == 3
    assert results["resumed_from"].endswith("checkpoint-2")
    assert between.repeated, "the third step's answers"
    never, stopped = (load_file(folder / "checkpoint-3/model.safetensors") for folder in (run, copy / "run"))
    third = sum((never[name] - exported[name]).square().sum() for name in never) ** 0.5
    apart = sum((never[name] - stopped[name]).square().sum() for name in never) ** 0.5
    # None at all where a group's answers come in the same order; without the optimizer's moments it was 0.76.
    assert apart < 0.01 * third


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
