"""Measure the seconds per GRPO step in TRL 1.16's own trainer, for comparison in `benchmarks/train_step.py`.

    .venv/bin/python benchmarks/trl_step.py --model DIR --rows ROWS.jsonl --steps 25 --seed 0 --out RESULT.json

Training runs on the CPU even if the machine has a GPU.

ROWS.jsonl has one object per line, with `prompt` (a list of messages) and `answer` (a string). Every step takes the
next `--prompts` rows, in file order. The result is one JSON object, written to `--out` and printed as the last line. It
contains `step_seconds` (from the end of one optimizer step to the end of the next; the median and the mean exclude the
first step), `rewards` and `completion_tokens` (means over a step's rollouts), `equal_groups` (the fraction of groups
with equal rewards), and `peak_rss_mb`.
"""

import argparse
import itertools
import json
import os
import re
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

# All files are local. These variables must be set before the libraries are imported.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ["CUDA_VISIBLE_DEVICES"] = ""

ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def correct(completions: list, answer: list[str], **_: object) -> list[float]:
    """Return 1.0 for each completion whose last <answer>…</answer> equals the row's answer, and 0.0 for the others."""
    found = [ANSWER.findall(completion[0]["content"]) for completion in completions]
    return [float(bool(texts) and texts[-1].strip() == gold) for texts, gold in zip(found, answer, strict=True)]


def peak_rss_mb() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10  # bytes on macOS, KiB elsewhere


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="folder with weights, tokenizer and chat template")
    parser.add_argument("--rows", type=Path, required=True, help="JSONL with the columns prompt and answer")
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help="file for the JSON result")
    parser.add_argument("--prompts", type=int, default=16, help="prompts per step (default 16)")
    parser.add_argument("--rollouts", type=int, default=8, help="rollouts per prompt (default 8)")
    parser.add_argument("--max-new-tokens", type=int, default=90)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--micro-batches", type=int, default=2, help="backward passes per step (default 2)")
    parser.add_argument("--threads", type=int, help="number of torch threads (default: chosen by torch)")
    return parser.parse_args()


def train(options: argparse.Namespace, scratch: str) -> dict:
    import torch
    import transformers
    import trl
    from datasets import load_dataset

    if options.threads:
        torch.set_num_threads(options.threads)
    step_ends = []

    class Clock(transformers.TrainerCallback):
        def on_train_begin(self, *_: object, **__: object) -> None:
            step_ends.append((time.perf_counter(), time.process_time()))

        on_step_end = on_train_begin

    # The same settings as in rg_env's trainer: group-normalized advantages, no KL term, temperature 1, constant
    # learning rate.
    config = trl.GRPOConfig(
        output_dir=scratch,
        seed=options.seed,
        max_steps=options.steps,
        learning_rate=options.learning_rate,
        lr_scheduler_type="constant",
        per_device_train_batch_size=options.prompts * options.rollouts // options.micro_batches,
        gradient_accumulation_steps=options.micro_batches,
        num_generations=options.rollouts,
        max_completion_length=options.max_new_tokens,
        temperature=1.0,
        beta=0.0,
        scale_rewards="group",
        loss_type="dapo",
        shuffle_dataset=False,
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=True,
        dataloader_pin_memory=False,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    rows = load_dataset("json", data_files=str(options.rows), split="train", cache_dir=f"{scratch}/datasets")
    trainer = trl.GRPOTrainer(
        model=str(options.model),
        # PreTrainedTokenizerFast reads tokenizer.json. AutoTokenizer in transformers 5 ignores this file for qwen2
        # models and applies Qwen2Tokenizer's splitting rules; the tokens would differ, and the policy would fail.
        processing_class=transformers.PreTrainedTokenizerFast.from_pretrained(options.model, padding_side="left"),
        args=config,
        reward_funcs=correct,
        train_dataset=rows,
        callbacks=[Clock()],
    )
    trainer.remove_callback(transformers.PrinterCallback)  # its log lines would mix with the result on stdout
    trainer.train()

    seconds = [end[0] - start[0] for start, end in itertools.pairwise(step_ends)]
    cpu_seconds = [end[1] - start[1] for start, end in itertools.pairwise(step_ends)]
    log = [entry for entry in trainer.state.log_history if "reward" in entry]
    return {
        "system": f"TRL {trl.__version__}",
        "versions": {"transformers": transformers.__version__, "torch": torch.__version__},
        "threads": torch.get_num_threads(),
        "seconds_per_step_median": statistics.median(seconds[1:]),
        "seconds_per_step_mean": statistics.fmean(seconds[1:]),
        "cpu_seconds_per_step_median": statistics.median(cpu_seconds[1:]),
        "rollouts": options.prompts * options.rollouts,
        "step_seconds": seconds,
        "rewards": [entry["reward"] for entry in log],
        "completion_tokens": [entry["completions/mean_length"] for entry in log],
        "equal_groups": [entry["frac_reward_zero_std"] for entry in log],
        "peak_rss_mb": peak_rss_mb(),
        "options": {name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()},
    }


def main() -> int:
    options = parse_arguments()
    if options.steps < 2:
        print("--steps must be at least 2, because the first step is warm-up and is not measured", file=sys.stderr)
        return 2
    if (options.prompts * options.rollouts) % options.micro_batches:
        print("--prompts x --rollouts must be divisible by --micro-batches", file=sys.stderr)
        return 2
    for path in (options.model / "config.json", options.rows):
        if not path.is_file():
            print(f"{path} does not exist", file=sys.stderr)
            return 2
    with tempfile.TemporaryDirectory() as scratch:
        result = json.dumps(train(options, scratch))
    options.out.write_text(result + "\n")
    print(result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
