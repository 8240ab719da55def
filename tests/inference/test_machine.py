"""Resources on this machine: memory."""

import sys

import pytest
from run_code import run_code

FREES = """
import resource, sys
from rg_env.inference import machine

def resident_mb():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 1e6

machine._TRIM_ABOVE_KB = int(sys.argv[1])
before = resident_mb()
blocks = [bytearray(100_000) for _ in range(2000)]  # small enough for the heap
del blocks[:-1]  # the last block keeps the heap from shrinking by itself
freed = resident_mb()
machine.return_freed_memory()
print(freed - before > 150, resident_mb() - before < 50)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's memory; also reads /proc")
def test_freed_memory_is_returned_by_large_processes_only() -> None:
    assert run_code(FREES, 1000).stdout == "True True\n"
    assert run_code(FREES, 10**9).stdout == "True False\n"
