"""GRPO with nothing hidden: your own dataset, your own reward functions, every training argument on the page.

    python examples/train_minimal.py                                     # tiny policy, questions made by hand below
    python examples/train_minimal.py --data problems.jsonl --model Qwen/Qwen2.5-1.5B-Instruct --max-steps 200
    python examples/train_minimal.py --data openai/gsm8k --data-config main --answer-after "####" --model ...

--data takes a .csv, .json, .jsonl or .parquet file, or a dataset on the hub, with columns `question` and `answer`.

Two terminals, on a GPU node:

    CUDA_VISIBLE_DEVICES=0 RG_ENV_WEIGHT_SYNC=1 vf-vllm --model Qwen/Qwen2.5-7B-Instruct --host 127.0.0.1 --port 8000 \\
        --logprobs-mode processed_logprobs
    CUDA_VISIBLE_DEVICES=1,2,3 accelerate launch --config-file configs/zero3.yaml --num-processes 3 \\
        examples/train_minimal.py --data problems.jsonl --model Qwen/Qwen2.5-7B-Instruct --engine vllm
"""

import argparse
import random

from rg_env.commands import positive, run_command, seed
from rg_env.core.extraction import extract
from rg_env.core.prompts import SYSTEM_PROMPT
from rg_env.errors import InputError


def sums(count, seed):
    """The dataset when none is given: sums that the tiny policy can learn. Any list of such dicts will do."""
    rng = random.Random(seed)
    terms = [[rng.randint(1, 99) for _ in range(rng.randint(2, 4))] for _ in range(count)]
    wording = "State the final answer to the following arithmetic problem: {} ="
    return [{"question": wording.format(" + ".join(map(str, t))), "answer": str(sum(t))} for t in terms]


# Rewards ask for prompt, completion, answer, state, info or parser by name; the model's text is data, never run it.
def correct(completion, answer):
    return float(extract(completion).answer == answer)  # the text within the last <answer>...</answer>


def answers_once(completion):
    return float(completion[-1]["content"].count("<answer>") == 1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="file or hub dataset with the columns question and answer")
    parser.add_argument("--data-config", help="configuration of a hub dataset")
    parser.add_argument("--answer-after", help="the gold answer is what follows this text in the answer column")
    parser.add_argument("--num-eval", type=positive, default=200)
    parser.add_argument("--model", help="folder, name on the hub, or 'tiny' (default: by machine)")
    parser.add_argument("--attention", choices=["auto", "flash_attention_2", "sdpa", "eager"], default="auto")
    parser.add_argument("--engine", choices=["embedded", "vllm"], default="embedded")
    parser.add_argument("--output-dir")
    parser.add_argument("--resume", metavar="auto|PATH", help="go on from a checkpoint, or the newest of --output-dir")
    parser.add_argument("--max-steps", type=positive, default=25)
    parser.add_argument("--batch-size", type=positive, default=64, help="rollouts a device and micro-batch")
    parser.add_argument("--accumulation", type=positive, default=2, help="micro-batches a step")
    parser.add_argument("--num-generations", type=positive, default=8, help="rollouts a prompt")
    parser.add_argument("--learning-rate", type=float, default=1e-4, help="1e-6 is usual from 1B parameters on")
    parser.add_argument("--max-prompt-length", type=positive, default=160)
    parser.add_argument("--max-tokens", type=positive, default=90, help="new tokens at most")
    parser.add_argument("--seed", type=seed, default=0)
    parser.add_argument("--vllm-host", default="127.0.0.1")
    parser.add_argument("--vllm-port", type=int, default=8000)
    options = parser.parse_args()

    import torch
    import verifiers as vf

    # The subclass, not vf.GRPOTrainer: that one trains without seeing the prompt (docs in rg_env/training/trainer.py).
    from rg_env.training import GRPOConfig, GRPOTrainer, load_policy, run_folder, train
    from rg_env.training.data import load_rows

    # A `datasets.Dataset` with the columns question and answer (text), each question once.
    rows = sums(2200, options.seed) if options.data is None else options.data
    data = load_rows(rows, options.data_config, answer_after=options.answer_after)
    if options.num_eval >= len(data):
        raise InputError(f"--num-eval {options.num_eval} leaves nothing to train on: there are {len(data)} questions")
    run_folder(options.output_dir, "minimal", options.resume)  # told before the model is loaded
    policy = load_policy(options.model, attention=options.attention)
    data = data.train_test_split(test_size=options.num_eval, seed=options.seed)
    env = vf.SingleTurnEnv(
        dataset=data["train"],
        eval_dataset=data["test"],
        system_prompt=SYSTEM_PROMPT,
        rubric=vf.Rubric(funcs=[correct, answers_once], weights=[1.0, 0.1]),
    )
    args = GRPOConfig(
        output_dir=str(run_folder(options.output_dir, f"minimal-{policy.label}", options.resume)),
        seed=options.seed,
        max_steps=options.max_steps,
        # rollouts: batch x accumulation x processes a step, in groups of num_generations
        per_device_train_batch_size=options.batch_size,
        gradient_accumulation_steps=options.accumulation,
        num_generations=options.num_generations,
        temperature=1.0,
        max_prompt_length=options.max_prompt_length,
        max_tokens=options.max_tokens,
        max_seq_len=options.max_prompt_length + options.max_tokens,
        num_batches_ahead=0,  # the embedded engine is synchronous; 1 overlaps generation and training with vLLM
        # loss
        loss_type="bnpo",  # token-level mean; also "grpo" and "dr_grpo"
        scale_rewards="group",  # advantages divided by the group's standard deviation
        beta=0.0,  # weight of the KL term; above 0 a reference model is loaded
        sync_ref_model=False,
        num_iterations=1,  # updates a batch
        epsilon=0.2,  # clipping, which matters from the second update on
        # optimizer
        learning_rate=options.learning_rate,
        lr_scheduler_type="constant",
        adam_beta2=0.95,
        max_grad_norm=1.0,
        # machine
        bf16=torch.cuda.is_available(),
        use_cpu=not torch.cuda.is_available(),
        gradient_checkpointing=False,
        dataloader_pin_memory=torch.cuda.is_available(),
        vllm_server_host=options.vllm_host,
        vllm_server_port=options.vllm_port,
        vllm_server_timeout=5.0,
        # records
        logging_steps=1,
        report_to="none",  # "wandb", "tensorboard"
        save_strategy="no",  # the end is saved in any case
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(
        model=policy.model, env=env, args=args, processing_class=policy.tokenizer, engine=options.engine
    )
    results = train(trainer, settings=vars(options), resume=options.resume)
    return 130 if results.get("interrupted") else 0


if __name__ == "__main__":
    run_command(main)
