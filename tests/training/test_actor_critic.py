"""`examples/train_actor_critic.py`: its parts, compared with independent computations, and the script as a process."""

import math
import runpy
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from forked_python import PYTHON
from hypothesis import given, settings
from hypothesis import strategies as st
from interrupts import interrupted
from model_families import SMALL
from run_code import EXAMPLES, example_module
from run_metrics import keep, lines_of, results_of
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

EXAMPLE = EXAMPLES / "train_actor_critic.py"
OPTIONS = Namespace(rows_per_pass=3, gamma=0.9, lam=0.8, epochs=1, minibatches=1, clip=0.2)
numbers = st.floats(-2, 2, width=32)
shares = st.floats(0, 1, width=32)


@pytest.fixture(scope="module")
def example() -> Any:
    return example_module("train_actor_critic")


@pytest.fixture
def rollouts() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Token ids `(6, 20)` with prompts of 8 tokens, the mask `(6, 19)` of completions of 1 to 12 tokens, and rewards
    `(6,)`."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, 700, (6, 20), generator=generator)
    columns = torch.arange(19)
    mask = (columns >= 7) & (columns < 7 + torch.tensor([2, 12, 4, 6, 1, 5])[:, None])
    ids[:, 1:][(columns >= 7) & ~mask] = 0
    return ids, mask, torch.tensor([1.1, 0.1, 0.0, 1.0, -0.5, 1.1])


def small_head(seed: int = 0, width: int = SMALL["hidden_size"]) -> torch.nn.Linear:
    torch.manual_seed(seed)
    return torch.nn.Linear(width, 1)


def alone(model: Any, head: Any, ids: torch.Tensor, mask: torch.Tensor) -> list[tuple[list[float], list[float]]]:
    """Log-probabilities and values of each row's completion, computed for each row separately and without padding."""
    results = []
    for row, kept in zip(ids, mask, strict=True):
        first, end = int(kept.nonzero().min()), int(kept.nonzero().max()) + 1
        with torch.no_grad():
            output = model(row[None, : end + 1], output_hidden_states=True)
            logps = output.logits[0, :-1].log_softmax(-1).gather(-1, row[1 : end + 1, None]).squeeze(-1)
            hidden = output.hidden_states[-1][0, :-1]
            values = head(torch.nn.functional.rms_norm(hidden, hidden.shape[-1:], eps=1e-12)).squeeze(-1)
        results.append((logps[first:].tolist(), values[first:].tolist()))
    return results


def lambda_return(rewards: list[float], values: list[float], t: int, gamma: float, lam: float) -> float:
    """The mean of all n-step returns from `t`, weighted by `(1 - lam) lam^(n - 1)`; the longest gets the remaining
    weight."""
    left = len(rewards) - t
    total = 0.0
    for n in range(1, left + 1):
        of_n = sum(gamma**k * rewards[t + k] for k in range(n)) + (gamma**n * values[t + n] if n < left else 0.0)
        total += lam ** (n - 1) * (1 - lam if n < left else 1.0) * of_n
    return total


@settings(deadline=None, max_examples=50)
@given(
    rows=st.lists(
        st.tuples(st.integers(0, 3), st.lists(st.tuples(numbers, numbers), min_size=1, max_size=9), numbers),
        min_size=1,
        max_size=4,
    ),
    gamma=shares,
    lam=shares,
)
def test_advantages_are_lambda_returns_minus_values(example: Any, rows: Any, gamma: float, lam: float) -> None:
    """Advantages match their definition over all n-step returns, and do not depend on values outside the mask."""
    width = max(start + len(steps) for start, steps, _ in rows) + 1
    rewards, values = (torch.tensor([[junk] * width for _, _, junk in rows]) for _ in range(2))
    mask = torch.zeros(len(rows), width, dtype=torch.bool)
    expected = torch.zeros(len(rows), width)
    for i, (start, steps, _) in enumerate(rows):
        part = slice(start, start + len(steps))
        mask[i, part] = True
        earned, thought = (list(each) for each in zip(*steps, strict=True))
        rewards[i, part], values[i, part] = torch.tensor(earned), torch.tensor(thought)
        expected[i, part] = torch.tensor(
            [lambda_return(earned, thought, t, gamma, lam) - thought[t] for t in range(len(steps))]
        )
    torch.testing.assert_close(example.gae(rewards, values, mask, gamma, lam), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("ratio", "advantage", "slope"),
    [(1.0, 2.0, -2.0), (1.0, -2.0, 2.0), (1.5, 2.0, 0.0), (0.5, 2.0, -1.0), (0.5, -2.0, 0.0), (1.5, -2.0, 3.0)],
)
def test_the_loss_is_flat_beyond_the_clip(example: Any, ratio: float, advantage: float, slope: float) -> None:
    """The slope in the log-probability is `-ratio A` within the bounds, and also beyond a bound if the ratio moved the
    wrong way."""
    logps = torch.tensor([ratio]).log().requires_grad_()
    loss, clipped = example.ppo_loss(logps, torch.zeros(1), torch.tensor([advantage]), 0.2)
    loss.sum().backward()
    torch.testing.assert_close(logps.grad, torch.tensor([slope]))
    assert clipped.tolist() == [slope == 0.0]


def test_advantages_are_from_the_value_head(example: Any, rollouts: Any, model: Any) -> None:
    """Advantages, returns and log-probabilities equal those computed row by row, with the reward only at the last
    token. Another value head gives other advantages."""
    ids, mask, final_rewards = rollouts
    per_head = []
    for seed in (0, 1):
        head = small_head(seed, model.config.hidden_size)
        logps, advantages, returns, hidden = example.judge(model, head, ids, mask, final_rewards, OPTIONS)
        per_head.append(advantages)
        for row, (row_logps, values) in enumerate(alone(model, head, ids, mask)):
            rewards = [0.0] * (len(values) - 1) + [final_rewards[row].item()]
            expected = [lambda_return(rewards, values, t, OPTIONS.gamma, OPTIONS.lam) for t in range(len(values))]
            kept = mask[row]
            torch.testing.assert_close(returns[row, kept], torch.tensor(expected), atol=1e-4, rtol=1e-4)
            less = torch.tensor(expected) - torch.tensor(values)
            torch.testing.assert_close(advantages[row, kept], less, atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(logps[row, kept], torch.tensor(row_logps), atol=1e-4, rtol=1e-4)
        assert not advantages[~mask].any()
        assert hidden.shape == (mask.sum(), model.config.hidden_size)
    assert (per_head[0] - per_head[1])[mask].abs().mean() > 0.1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--lambda", "nan"], "--lambda: nan is not between 0 and 1"),
        (["--batch-size", "6"], "--batch-size 6: not divisible by 2 x 2 minibatches"),
    ],
)
def test_mistakes_are_one_line(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    """The exit code is 2, and nothing is written."""
    monkeypatch.setattr(sys, "argv", [EXAMPLE.name, "--model", "tiny", *arguments])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    errors = capsys.readouterr().err
    assert ended.value.code == 2, errors
    assert words in errors.splitlines()[-1]
    assert not list(here.iterdir())


@pytest.mark.parametrize("by", [math.nan, math.inf])
def test_an_update_that_is_not_finite_is_skipped(example: Any, by: float) -> None:
    """This tests the critic; policies use the trainer's guard, which test_step_guard.py tests."""
    critic = torch.nn.Linear(8, 1)
    before = critic.weight.clone()
    hidden = torch.full((4, 8), by)
    optimizer = torch.optim.Adam(critic.parameters(), 0.1)
    logged = example.fit_critic(critic, optimizer, hidden, torch.ones(4), updates=3)
    assert not math.isfinite(logged["value_loss"])
    assert torch.equal(critic.weight, before)


@pytest.mark.slow
@pytest.mark.timeout(1000)
@pytest.mark.usefixtures("forks")
def test_the_tiny_policy_learns(tmp_path: Path) -> None:
    """Sampled accuracy rises by at least 0.3 in three steps, with a critic that predicts part of the outcome."""
    command = [*PYTHON, str(EXAMPLE), "--model", "tiny", "--max-steps", "3", "--output-dir", "run"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    run = tmp_path / "run"
    keep(run, "actor_critic")
    results = results_of(run)
    before, after = results["eval_before"], results["eval_after"]
    assert (results["steps"], before["n"], after["n"], results["interrupted"]) == (3, 200, 200, False)
    assert after["accuracy"] - before["accuracy"] >= 0.3
    metrics = lines_of(run / "metrics.jsonl")
    steps = [line for line in metrics if "reward" in line]
    assert [line["step"] for line in steps] == [1, 2, 3]
    assert steps[0]["explained_variance"] == 0.0
    assert max(line["explained_variance"] for line in steps if line["explained_variance"] is not None) > 0.05
    assert [line["step"] for line in metrics if "eval/accuracy" in line] == list(range(4))
    trained = AutoModelForCausalLM.from_pretrained(run / "checkpoint-3")
    assert load_file(run / "checkpoint-3" / "value_head.safetensors")["weight"].shape == (1, trained.config.hidden_size)


@pytest.mark.slow
@pytest.mark.usefixtures("forks")
def test_ctrl_c_ends_the_run_after_its_step(tmp_path: Path) -> None:
    """A checkpoint of that step and the results so far are saved."""
    command = [*PYTHON, "-u", str(EXAMPLE), "--model", "tiny", "--batch-size", "8", "--max-tokens", "4"]
    interrupted([*command, "--output-dir", "run", "--max-steps", "500"], tmp_path, "step   2/")
    results = results_of(tmp_path / "run")
    assert results["interrupted"]
    assert results["eval_after"] is None
    assert (tmp_path / "run" / f"checkpoint-{results['steps']}" / "model.safetensors").exists()
