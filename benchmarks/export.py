"""Memory and time of `rg-env export`, on a ZeRO-3 checkpoint of 0.5 B parameters, beside a plain copy of the bytes.

    .venv/bin/python benchmarks/export.py               # makes the checkpoint first: 6 GB of disk, 8 GB of memory
    .venv/bin/python benchmarks/export.py --check       # exit code 1 if a target is missed

Two processes of DeepSpeed on the CPU make the checkpoint: a model of Qwen2.5-0.5B's shape with random weights, in
float32, before the first step (so without moments, which an export does not read). Then, each in a process of its own:
a plain copy of a file with as many bytes as the float32 weights have; exports to float32 and to bfloat16, with and
without verification.
The peak is the process's maximum resident set, libraries and mapped files included.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PEAK, TIME = 1.3, 3.0
"""At most: peak memory by the bytes of the float32 weights; seconds by those of the copy."""

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
    """The checkpoint, in a folder as transformers' trainer leaves it."""
    from rg_env.tiny import POLICY_DIR

    checkpoint = folder / "checkpoint-0"
    (folder / "make.py").write_text(MAKE)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "make.py"]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, str(checkpoint)], cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"DeepSpeed made no checkpoint:\n{done.stderr[-3000:]}")
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"):
        shutil.copyfile(POLICY_DIR / name, checkpoint / name)
    return checkpoint


def measured(command: list[str]) -> tuple[float, int]:
    """Seconds that the command took, and its peak memory in bytes."""
    start = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.monotonic() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(command)} ended with {process.returncode}: {output}")
    return seconds, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def exported(checkpoint: Path, out: Path, *options: str) -> tuple[float, int]:
    shutil.rmtree(out, ignore_errors=True)
    return measured([sys.executable, "-m", "rg_env.cli", "export", str(checkpoint), "--out", str(out), *options])


def copied(file: Path) -> float:
    """Seconds of a plain copy, bytes read and written by one process."""
    target = file.with_name("copy")
    code = "import shutil, sys; shutil.copyfileobj(open(sys.argv[1], 'rb'), open(sys.argv[2], 'wb'), 16 * 2**20)"
    seconds, _ = measured([sys.executable, "-c", code, str(file), str(target)])
    target.unlink()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, help="one that was made before; default: made anew, and removed")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="make it there, and leave it")
    parser.add_argument("--rounds", type=int, default=3, help="default: 3")
    parser.add_argument("--check", action="store_true", help="exit code 1 if a target is missed")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rg-env-export-") as name:
        folder = options.keep or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        checkpoint = (options.checkpoint or make(folder)).absolute()
        out = Path(name) / "out"
        exported(checkpoint, out, "--dtype", "fp32", "--no-verify")  # the file to copy; and the disk's cache is warm
        weights = out / "model.safetensors"
        size = weights.stat().st_size
        weights = weights.rename(Path(name) / "weights")
        kinds = {f"{dtype}{extra}": ["--dtype", dtype, *([extra] if extra else [])]
                 for dtype in ("fp32", "bf16") for extra in ("--no-verify", "")}  # fmt: skip
        seconds: dict[str, list[float]] = {"copy": [], **{kind: [] for kind in kinds}}
        peaks: dict[str, int] = dict.fromkeys(kinds, 0)
        for _ in range(options.rounds):
            seconds["copy"].append(copied(weights))
            for kind, arguments in kinds.items():
                took, peak = exported(checkpoint, out, *arguments)
                seconds[kind].append(took)
                peaks[kind] = max(peaks[kind], peak)
        start = measured([sys.executable, "-c", "import rg_env.training.export.job"])
    copy = statistics.median(seconds["copy"])
    results: dict[str, Any] = {
        "float32 weights, MB": round(size / 1e6),
        "copy, s": round(copy, 2),
        "imports alone": {"s": round(start[0], 2), "peak, MB": round(start[1] / 1e6)},
    }
    for kind in kinds:
        took = statistics.median(seconds[kind])
        results[kind] = {
            "s": round(took, 2),
            "by the copy": round(took / copy, 2),
            "peak, MB": round(peaks[kind] / 1e6),
            "by the weights": round(peaks[kind] / size, 2),
        }
    print(json.dumps(results, indent=1))
    missed = [kind for kind in kinds if peaks[kind] > PEAK * size or statistics.median(seconds[kind]) > TIME * copy]
    if missed:
        print(f"missed a target: {', '.join(missed)}")
    sys.exit(1 if options.check and missed else 0)


if __name__ == "__main__":
    main()
