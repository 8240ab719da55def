"""`transformers serve`, which serves checkpoints to OpenAI's clients and to Verifiers."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from rg_env.core.prompts import SYSTEM_PROMPT
from rg_env.inference.embedded.engine import EmbeddedEngine
from rg_env.inference.protocol import PromptEncoder, Sampling
from rg_env.tiny import POLICY_DIR

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
START_S = 240
OFFLINE = {**os.environ, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "NO_KEY": "EMPTY"}
PROGRAMS = Path(sys.executable).parent


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a checkpoint of the tiny policy, as a trainer does."""
    folder = tmp_path_factory.mktemp("run") / "checkpoint-25"
    AutoModelForCausalLM.from_pretrained(POLICY_DIR).save_pretrained(folder)
    AutoTokenizer.from_pretrained(POLICY_DIR).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def url(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run the server and yield its address once it is healthy."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("server") / "log"
    command = [PROGRAMS / "transformers", "serve", checkpoint, "--host", "127.0.0.1", "--port", str(port)]
    with log.open("wb") as output, subprocess.Popen(command, env=OFFLINE, stdout=output, stderr=output) as server:
        try:
            deadline = time.monotonic() + START_S
            while not _healthy(port):
                assert server.poll() is None, log.read_text()[-3000:]
                assert time.monotonic() < deadline, log.read_text()[-3000:]
                time.sleep(0.5)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            server.terminate()


def _healthy(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health", timeout=5, trust_env=False).is_success
    except httpx.HTTPError:
        return False


def test_the_openai_client_gets_the_checkpoints_answers(url: str, checkpoint: Path) -> None:
    """With greedy decoding, the answer is the embedded engine's."""
    messages = [
        {"role": "system", "content": SYSTEM_PROMPT},
        {"role": "user", "content": "Now, how many legs if you have 2 dogs?"},
    ]
    with openai.OpenAI(base_url=url, api_key="EMPTY", timeout=120) as client:
        answer = client.chat.completions.create(
            model=str(checkpoint),
            messages=messages,  # type: ignore[arg-type]
            max_tokens=60,
            temperature=0,
        )
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    encoder = PromptEncoder(tokenizer)
    engine = EmbeddedEngine(AutoModelForCausalLM.from_pretrained(checkpoint), tokenizer)
    (expected,) = engine.generate([encoder(messages)], Sampling(temperature=0, max_tokens=60))
    assert answer.choices[0].message.content == encoder.decode([expected.token_ids], engine.end_ids)[0]
    assert answer.usage
    assert answer.usage.prompt_tokens == len(encoder(messages))


def test_vf_eval_scores_the_checkpoint(url: str, checkpoint: Path, tmp_path: Path) -> None:
    """`vf-eval rg-env` sends each question with the environment's system prompt and scores the answers."""
    command = [
        PROGRAMS / "vf-eval", "rg-env", "-m", checkpoint, "--client.base-url", url, "--client.api-key-var", "NO_KEY",
        "-n", "3", "-r", "2", "--no-push", "--env.taskset.gym", "leg_counting", "--output-dir", tmp_path / "out",
    ]  # fmt: skip
    done = subprocess.run(command, env=OFFLINE, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    (traces,) = (tmp_path / "out").rglob("traces.jsonl")
    records = [json.loads(line) for line in traces.read_text().splitlines()]
    assert [record["errors"] for record in records] == 6 * [[]]
    for record in records:
        (trace,) = record["traces"]
        system, user, assistant = (node["message"] for node in trace["nodes"])
        assert (system["role"], system["content"], user["role"]) == ("system", SYSTEM_PROMPT, "user")
        assert assistant["content"]
        assert trace["metrics"]["accuracy"] == trace["rewards"]["correctness"]["score"]
