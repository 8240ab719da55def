"""Measure the time to build 2,000 + 200 rows of a 20-task mixture in one process and in one process per core, and to
load them from the cache.

    .venv/bin/python benchmarks/generation.py

Builds in one process and builds in one process per core alternate for `--rounds` rounds; each build has its own
interpreter. Each figure is the minimum over the rounds, or over three loads from the cache, because a busy machine can
only add time. Absolute times depend on the machine; only the ratio is meaningful.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

TASKS = [
    # Slow tasks, which take 2 to 60 ms per item.
    "advanced_geometry", "codeio", "countdown", "game_of_life", "polynomial_equations",
    "puzzle24", "rubiks_cube", "simple_equations", "sokoban", "sudoku",
    # Fast tasks.
    "arc_1d", "basic_arithmetic", "chain_sum", "family_relationships", "leg_counting",
    "maze", "n_queens", "number_sequence", "spell_backward", "syllogism",
]  # fmt: skip

BUILD = """
import json, sys, time
from rg_env.core.data.dataset import build_splits
tasks, train, cache, processes = json.loads(sys.argv[1])
start = time.perf_counter()
_, _, manifest = build_splits(tasks, train, train // 10, seed=0, cache=cache, processes=processes)
seconds = time.perf_counter() - start
print(json.dumps([seconds, [split["sha256"] for split in manifest["splits"].values()], "reasoning_gym" in sys.modules]))
"""


def build(train: int, cache: bool, processes: int | None) -> tuple[float, list[str], bool]:
    """Build the rows in a new process. Return the time in seconds, the hashes of the splits, and whether the process
    imported the library."""
    command = [sys.executable, "-W", "ignore", "-c", BUILD, json.dumps([TASKS, train, cache, processes])]
    seconds, hashes, imported = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return seconds, hashes, imported


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=int, default=2000, help="training rows; a tenth as many for evaluation")
    parser.add_argument("--rounds", type=int, default=1, help="number of timings of each build (default: 1)")
    options = parser.parse_args()
    one, every, hashes = [], [], set()
    for _ in range(options.rounds):
        for times, processes in ((one, 1), (every, None)):
            seconds, found, _ = build(options.train, False, processes)
            times.append(seconds)
            hashes.add(tuple(found))
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["RG_ENV_CACHE"] = scratch
        build(options.train, True, None)
        again = [build(options.train, True, None) for _ in range(3)]
    hashes |= {tuple(found) for _, found, _ in again}
    assert len(hashes) == 1, "the builds differ"
    assert not any(imported for _, _, imported in again)
    print(f"one process      {min(one):6.1f} s")
    print(f"one per core     {min(every):6.1f} s   {min(one) / min(every):.2f} times as fast, {os.cpu_count()} cores")
    print(f"second build     {min(seconds for seconds, _, _ in again):6.2f} s   from disk, library not imported")


if __name__ == "__main__":
    main()
