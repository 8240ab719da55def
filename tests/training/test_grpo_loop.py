"""`examples/grpo_loop.py`: its parts, compared with independent computations, and the script as a process."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from forked_python import PYTHON
from run_code import EXAMPLES, example_module
from transformers import AutoModelForCausalLM, AutoTokenizer

from rg_env import ReasoningGym
from rg_env.tiny import POLICY_DIR, tiny_mixture

EXAMPLE = EXAMPLES / "grpo_loop.py"


@pytest.fixture(scope="module")
def example() -> Any:
    return example_module("grpo_loop")


def test_the_script_is_short() -> None:
    assert len(EXAMPLE.read_text().splitlines()) <= 150


def test_log_probabilities_are_those_of_the_sampled_tokens(example: Any) -> None:
    """Prompts of different lengths are padded on the left. The mask selects the answers, each with its end-of-sequence
    token, and the padding does not change their log-probabilities."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(POLICY_DIR), AutoTokenizer.from_pretrained(POLICY_DIR)
    rows = ReasoningGym(tiny_mixture("leg_counting"), 8, 0).train_rows
    torch.manual_seed(0)
    ids, attention, mask, texts = example.sample(model, tokenizer, rows, 90)
    with torch.no_grad():
        logps = example.log_probabilities(model, ids, attention)
        assert len(set(attention.sum(dim=1).tolist())) > 1
        for i, row in enumerate(rows):
            prompt = tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True)["input_ids"]
            answer = ids[i, 1:][mask[i]]
            assert ids[i][attention[i]].tolist() == [*prompt, *answer]
            assert tokenizer.decode(answer, skip_special_tokens=True) == texts[i]
            assert tokenizer.eos_token_id not in answer[:-1]
            assert answer[-1] == tokenizer.eos_token_id or len(answer) == 90
            every = model(torch.tensor([[*prompt, *answer]])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
            torch.testing.assert_close(logps[i][mask[i]], every.gather(-1, answer[:, None])[:, 0], atol=1e-4, rtol=1e-4)


def test_advantages_and_losses_by_the_formula(example: Any) -> None:
    """Advantages are standardized within a group, and 0 if all its rewards are equal. The loss is flat where the ratio
    has already moved beyond the clip range in the right direction."""
    advantages = example.group_advantages(torch.tensor([1.0, 0.0, 0.0, 1.0, 0.3, 0.3, 0.3, 0.3]), 4)
    torch.testing.assert_close(advantages[:4], torch.tensor([0.5, -0.5, -0.5, 0.5]) / (3**-0.5 + 1e-4))
    torch.testing.assert_close(advantages[4:], torch.zeros(4))
    logps = torch.tensor([[1.0], [1.5], [0.5], [0.5]]).log().requires_grad_()
    losses = example.token_losses(logps, torch.zeros(4, 1), torch.tensor([2.0, 2.0, 2.0, -2.0]), 0.2)
    losses.sum().backward()
    torch.testing.assert_close(losses.detach(), torch.tensor([[-2.0], [-2.4], [-1.0], [1.6]]))
    torch.testing.assert_close(logps.grad, torch.tensor([[-2.0], [0.0], [-1.0], [0.0]]))


@pytest.mark.slow
@pytest.mark.timeout(1000)
@pytest.mark.usefixtures("forks")
def test_the_tiny_policy_learns(tmp_path: Path) -> None:
    """Three steps raise the accuracy on 200 held-out questions by at least 0.3, six standard errors of the
    difference."""
    command = [*PYTHON, str(EXAMPLE), "--steps", "3"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    before, after = map(float, re.findall(r"^accuracy on 200 held-out questions: ([\d.]+)$", done.stdout, re.MULTILINE))
    print(f"accuracy {before} to {after}")
    assert after - before >= 0.3
    assert done.stdout.count("\nstep ") == 3
