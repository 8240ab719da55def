"""Measure the overhead of `rg-env eval` with a local endpoint that has a fixed latency.

    .venv/bin/python benchmarks/evaluate.py                # throughput and CPU time per request
    .venv/bin/python benchmarks/evaluate.py --memory       # memory over 100,000 rollouts instead (takes minutes)
    .venv/bin/python benchmarks/evaluate.py --check        # exit code 1 if a target is missed

The endpoint runs in its own process and answers every request after the same delay. The ideal throughput is therefore
`concurrency / latency` requests per second.
"""

import argparse
import asyncio
import json
import multiprocessing
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rg_env.evaluation.config import EvalConfig
from rg_env.evaluation.load import load_eval_config
from rg_env.evaluation.questions import draw
from rg_env.evaluation.runner import answer_sets_of, ask_all

LEAST_SHARE, MOST_CPU_MS = 0.95, 3.0
ANSWER = json.dumps(
    {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "finish_reason": "stop",
                "message": {"role": "assistant", "content": "Let me see. " * 50 + "<answer>12</answer>"},
            }
        ],
        "usage": {"prompt_tokens": 60, "completion_tokens": 160, "total_tokens": 220},
    }
).encode()


def serve(port: Any, latency_s: float) -> None:
    """Run the endpoint, which implements only as much HTTP as the client needs."""
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(ANSWER)}\r\n\r\n".encode()

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                request = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = request.partition(b"content-length:")[2].split(b"\r\n")[0]
                await reader.readexactly(int(length or 0))
                await asyncio.sleep(latency_s)
                writer.write(head + ANSWER)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def run() -> None:
        server = await asyncio.start_server(connection, "127.0.0.1", 0)
        port.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


def config_of(folder: Path, port: int, questions: int, times: int, concurrency: int) -> EvalConfig:
    return load_eval_config(
        None,
        [
            f"models.m={{model: m, url: 'http://127.0.0.1:{port}/v1'}}", "tasks=leg_counting",
            f"num_examples={questions}", f"rollouts_per_example={times}", f"requests.concurrency={concurrency}",
            f"output.dir={folder}",
        ]
    )  # fmt: skip


def measured(config: EvalConfig, folder: Path) -> tuple[float, float, list[tuple[int, float]]]:
    """Evaluate. Return the elapsed time and the CPU time in seconds, and pairs (rollouts so far, peak memory in MB)."""
    answer_sets = answer_sets_of(config, [draw(config, name) for name in config.names])
    memory: list[tuple[int, float]] = []

    def watch() -> None:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
        memory.append((sum(len(each.by_key) for each in answer_sets), peak))

    start, cpu = time.perf_counter(), time.process_time()
    asyncio.run(ask_all(config, folder, answer_sets, watch))
    return time.perf_counter() - start, time.process_time() - cpu, memory


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--latency", type=float, default=0.4, help="latency of the endpoint in seconds; default: 0.4")
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--requests", type=int, default=6400, help="a multiple of 16")
    parser.add_argument("--memory", action="store_true", help="measure memory, with an endpoint without latency")
    parser.add_argument("--check", action="store_true", help="exit code 1 if a target is missed")
    options = parser.parse_args()
    here, there = multiprocessing.Pipe(duplex=False)
    latency = 0.0 if options.memory else options.latency
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(there, latency), daemon=True)
    server.start()
    port = here.recv()
    try:
        with tempfile.TemporaryDirectory() as scratch:
            if options.memory:
                return report_memory(Path(scratch), port, options)
            return report_throughput(Path(scratch), port, options)
    finally:
        server.terminate()
        server.join()


def report_throughput(folder: Path, port: int, options: argparse.Namespace) -> int:
    config = config_of(folder, port, options.requests // 16, 16, options.concurrency)
    seconds, cpu, _ = measured(config, folder)
    ideal = options.requests / options.concurrency * options.latency
    share, each = ideal / seconds, 1000 * cpu / options.requests
    print(
        f"{options.requests} requests in {seconds:.2f} s (ideal: {ideal:.2f} s): {share:.3f} of the ideal "
        f"throughput (target {LEAST_SHARE}); {each:.2f} ms of CPU time per request (target {MOST_CPU_MS:g})"
    )
    return int(options.check and (share < LEAST_SHARE or each > MOST_CPU_MS))


def report_memory(folder: Path, port: int, options: argparse.Namespace) -> int:
    seconds, cpu, memory = measured(config_of(folder, port, 1000, 100, options.concurrency), folder)
    size = (folder / "rollouts.jsonl").stat().st_size / 1e6
    for share in (0.01, 0.1, 0.5, 1.0):
        made, peak = next(each for each in memory if each[0] >= share * 99_000)
        print(f"{made:>7} rollouts: {peak:.0f} MB")
    print(f"in {seconds:.0f} s, {1000 * cpu / 1e5:.2f} ms of CPU time per rollout; rollouts.jsonl: {size:.0f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
