"""`rg-env serve` prompts a checkpoint as in training, here with a real run of one step."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import openai
import pytest
from transformers import AutoTokenizer

from rg_env.core.prompts import build_messages
from rg_env.tiny import POLICY_DIR
from rg_env.training.config.load import load_train_config
from rg_env.training.from_config import run_config

TINY = Path(__file__).parents[2] / "configs" / "train" / "tiny.yaml"
PROMPT, QUESTION = "Answer as <answer>N</answer>.", "How many legs have 2 dogs?"
pytestmark = pytest.mark.slow


@contextmanager
def served(*arguments: str) -> Iterator[openai.OpenAI]:
    """Run `rg-env serve` in a separate process and yield a client for it."""
    command = [sys.executable, "-m", "rg_env.cli.main", "serve", "--port", "0", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            address = next(found for line in process.stdout if (found := re.search(r"http://\S+", line)))
            with openai.OpenAI(base_url=address[0], api_key="EMPTY") as client:
                yield client
        finally:
            process.terminate()


def test_a_run_is_served_with_its_training_prompt(tmp_path: Path) -> None:
    """The run's prompt is added unless a chat already has it or a system message, or `--system-prompt` overrides it."""
    run = tmp_path / "run"
    own = [
        *("training.max_steps=1", "training.rollouts_per_step=8", "training.per_device_train_batch_size=8"),
        *("splits.num_train_examples=64", "splits.num_eval_examples=4"),
        f"prompt={{system_prompt: {json.dumps(PROMPT)}, placement: user}}",
        f"output.dir={run}",
    ]
    run_config(load_train_config(TINY, own))
    tokenizer = AutoTokenizer.from_pretrained(POLICY_DIR)

    def tokens(client: openai.OpenAI, messages: list[dict[str, str]]) -> int:
        answer = client.chat.completions.create(model=str(run), messages=messages, max_tokens=1)  # type: ignore[arg-type]
        assert answer.usage
        return answer.usage.prompt_tokens

    def expected(messages: list[dict[str, str]]) -> int:
        return len(tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False))

    bare, trained = build_messages(QUESTION, None), build_messages(QUESTION, PROMPT, "user")
    system = build_messages(QUESTION, "Guess.")
    with served("--model", str(run)) as client:
        assert tokens(client, bare) == tokens(client, trained) == expected(trained)
        assert tokens(client, system) == expected(system)
        with pytest.raises(openai.NotFoundError, match=f"this engine serves '{run}'"):
            client.chat.completions.create(model="another", messages=bare, max_tokens=1)  # type: ignore[arg-type]
    with served("--model", str(run), "--system-prompt", "") as client:
        assert tokens(client, bare) == expected(bare)
