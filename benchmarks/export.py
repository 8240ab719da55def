"""Measure the memory and time that `rg-env export` needs for a ZeRO-3 checkpoint with 0.5 B parameters.

    .venv/bin/python benchmarks/export.py               # creates the checkpoint first: 6 GB of disk, 8 GB of memory
    .venv/bin/python benchmarks/export.py --check       # exit code 1 if a target is missed

Two DeepSpeed processes on the CPU create the checkpoint: a model with Qwen2.5-0.5B's shape and random float32 weights,
saved before the first step and thus without optimizer moments, which an export does not read. Each measurement then
runs in its own process: a plain copy of a file as large as the float32 weights, and exports to float32 and bfloat16
with and without verification. Export times are reported both with and without imports, which take equally long for
every export. Peak memory is the maximum of anonymous memory (RssAnon), including libraries. Mapped files, such as the
checkpoint, are excluded, because the system can drop their pages at any time.
"""

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PEAK, TIME = 2.6, 3.0
"""Upper bounds: peak memory divided by the size of the float32 weights, and the time without imports divided by the
time of the copy."""

MAKE = """
import sys
import deepspeed
import torch
from transformers import AutoModelForCausalLM, Qwen2Config

config = Qwen2Config(vocab_size=151936, hidden_size=896, intermediate_size=4864, num_hidden_layers=24,
                     num_attention_heads=14, num_key_value_heads=2, max_position_embeddings=32768,
                     rope_theta=1e6, tie_word_embeddings=True)
deepspeed.init_distributed("gloo")
torch.manual_seed(0)
settings = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3},
            "optimizer": {"type": "Adam", "params": {"lr": 1e-6, "torch_adam": True}}}
with deepspeed.zero.Init(config_dict_or_path=settings):
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
engine, *_ = deepspeed.initialize(model=model, config=settings, model_parameters=model.parameters())
engine.save_checkpoint(sys.argv[1], tag="global_step0")
if torch.distributed.get_rank() == 0:
    config.architectures, config.dtype = ["Qwen2ForCausalLM"], "float32"
    config.save_pretrained(sys.argv[1])
torch.distributed.destroy_process_group()
"""


def make(folder: Path) -> Path:
    """Create the checkpoint in the folder layout of transformers' trainer."""
    from rg_env.tiny import POLICY_DIR

    checkpoint = folder / "checkpoint-0"
    (folder / "make.py").write_text(MAKE)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "make.py"]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, str(checkpoint)], cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"DeepSpeed failed to create the checkpoint:\n{done.stderr[-3000:]}")
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"):
        shutil.copyfile(POLICY_DIR / name, checkpoint / name)
    return checkpoint


def measured(code: str, *arguments: str) -> tuple[float, float, int]:
    """Run a program that prints a time in seconds. Return this time and the time that the entire process takes, both in
    seconds, and the process's peak anonymous memory in bytes."""
    begin, peak = time.monotonic(), 0
    process = subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True)
    while process.poll() is None:
        peak = max(peak, anonymous(process.pid))
        time.sleep(0.02)
    whole = time.monotonic() - begin
    assert process.stdout
    output = process.stdout.read()
    if process.returncode:
        sys.exit(f"a process exited with code {process.returncode}: {output}")
    return float(output.split()[-1]), whole, peak


def anonymous(process: int) -> int:
    """Return the anonymous memory of a process in bytes; 0 if the process has ended."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0
    found = re.search(r"RssAnon:\s+(\d+) kB", status)
    return int(found[1]) * 1024 if found else 0


EXPORT = """
from rg_env.commands import prepare_process
prepare_process()
import json, sys, time
from pathlib import Path
from rg_env.publish.export import ExportRequest, export
path, out, asked = sys.argv[1:]
start = time.monotonic()
export(ExportRequest(Path(path), Path(out), **json.loads(asked)))
print(time.monotonic() - start)
"""
COPY = """
import shutil, sys, time
start = time.monotonic()
with open(sys.argv[1], "rb") as source, open(sys.argv[2], "wb") as target:
    shutil.copyfileobj(source, target, 16 * 2**20)
print(time.monotonic() - start)
"""


def exported(checkpoint: Path, out: Path, **asked: Any) -> tuple[float, float, int]:
    """Measure an export into `out`, which is replaced. Return the same values as `measured`."""
    shutil.rmtree(out, ignore_errors=True)
    return measured(EXPORT, str(checkpoint), str(out), json.dumps(asked))


def copied(file: Path) -> float:
    """Return the time, in seconds, that a plain copy takes in its own process."""
    target = file.with_name("copy")
    seconds, _, _ = measured(COPY, str(file), str(target))
    target.unlink()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, help="existing checkpoint; default: create a temporary one")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="create the checkpoint in this folder and keep it")
    parser.add_argument("--rounds", type=int, default=3, help="number of repetitions of each measurement; default: 3")
    parser.add_argument("--check", action="store_true", help="exit code 1 if a target is missed")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rg-env-export-") as name:
        folder = options.keep or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        checkpoint = (options.checkpoint or make(folder)).absolute()
        out = Path(name) / "out"
        exported(checkpoint, out, dtype="fp32", verify=False)  # creates the file to copy and warms the page cache
        weights = out / "model.safetensors"
        size = weights.stat().st_size
        weights = weights.rename(Path(name) / "weights")
        kinds = {
            f"{dtype}{', verified' if verify else ''}": {"dtype": dtype, "verify": verify}
            for dtype in ("fp32", "bf16")
            for verify in (False, True)
        }
        copies: list[float] = []
        runs: dict[str, list[tuple[float, float, int]]] = {kind: [] for kind in kinds}
        for _ in range(options.rounds):
            copies.append(copied(weights))
            for kind, asked in kinds.items():
                runs[kind].append(exported(checkpoint, out, **asked))
    copy = statistics.median(copies)
    results: dict[str, Any] = {"float32 weights, MB": round(size / 1e6), "copy, s": round(copy, 2)}
    missed = []
    for kind, found in runs.items():
        seconds, whole = (statistics.median(each[number] for each in found) for number in (0, 1))
        peak = max(each[2] for each in found)
        results[kind] = {
            "export, s": round(seconds, 2),
            "by the copy": round(seconds / copy, 2),
            "with imports, s": round(whole, 2),
            "peak, MB": round(peak / 1e6),
            "by the weights": round(peak / size, 2),
        }
        missed += [kind] if seconds > TIME * copy or peak > PEAK * size else []
    print(json.dumps(results, indent=1))
    if missed:
        print(f"targets missed: {', '.join(missed)}")
    sys.exit(1 if options.check and missed else 0)


if __name__ == "__main__":
    main()
