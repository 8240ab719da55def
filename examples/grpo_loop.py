"""GRPO in one file: sample, score, compare within groups, take a gradient step. Only the questions, prompts and scores
come from rg_env; everything else is plain torch and transformers.

    python examples/grpo_loop.py                                     # the tiny policy on a CPU, in a minute or two
    python examples/grpo_loop.py --tasks chain_sum --steps 30
    python examples/grpo_loop.py --model Qwen/Qwen2.5-0.5B-Instruct --learning-rate 1e-6 --max-tokens 512 \\
        --micro-batch 8 --steps 200                                  # one GPU

Each step samples a group of answers to each of a few questions and scores them. There is no critic: an answer's
advantage is its reward minus the mean reward of its group, divided by the group's standard deviation (Shao et al.,
2024, arXiv:2402.03300). A group whose answers all earn the same reward teaches nothing. All tokens of an answer share
its advantage, and each token has the same weight in the loss, whatever the length of its answer (DAPO: Yu et al., 2025,
arXiv:2503.14476). The loss has no KL term, so no reference model is needed.

`rg_env.training.GRPOTrainer` does the same, and adds vLLM, several GPUs, checkpoints, evaluation and monitoring.
With the tiny policy and seed 0, accuracy on the held-out questions rises from 0.31 to 0.94 in 5 steps.
"""

import random
import time

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rg_env import ReasoningGym
from rg_env.commands import Names, OptionParser, positive, run_command, seed
from rg_env.tiny import POLICY_DIR, TASKS


@torch.no_grad()
def sample(model, tokenizer, rows, max_tokens):
    """Sample one answer per row at temperature 1. Return its token ids `(B, L)`, prompts padded on the left and answers
    on the right; the attention mask `(B, L)`; the mask `(B, L - 1)` of the tokens that were sampled, including the
    end-of-sequence token, where column t belongs to token t + 1; and the texts of the answers."""
    texts = [tokenizer.apply_chat_template(row["prompt"], tokenize=False, add_generation_prompt=True) for row in rows]
    prompts = tokenizer(texts, add_special_tokens=False, padding=True, padding_side="left", return_tensors="pt")
    prompts = prompts.to(model.device)
    model.eval()
    ids = model.generate(
        input_ids=prompts["input_ids"],
        attention_mask=prompts["attention_mask"],
        do_sample=True,
        temperature=1.0,
        top_k=0,  # no truncation: the policy gradient is that of the distribution that was sampled from
        top_p=1.0,
        max_new_tokens=max_tokens,
        pad_token_id=tokenizer.pad_token_id,
    )
    start = prompts["input_ids"].shape[1]
    answers = ids[:, start:]
    ended = (answers == tokenizer.eos_token_id).cumsum(dim=1)
    sampled = (ended == 0) | ((ended == 1) & (answers == tokenizer.eos_token_id))
    attention = torch.cat([prompts["attention_mask"].bool(), sampled], dim=1)
    mask = torch.cat([torch.zeros_like(ids[:, 1:start], dtype=torch.bool), sampled], dim=1)
    return ids, attention, mask, tokenizer.batch_decode(answers, skip_special_tokens=True)


def log_probabilities(model, ids, attention):
    """Return the log-probability of each token given those before it, `(B, L - 1) float32`."""
    positions = (attention.cumsum(dim=1) - 1).clamp(min=0)  # counted without the padding on the left
    logits = model(input_ids=ids, attention_mask=attention.long(), position_ids=positions, use_cache=False).logits
    return logits[:, :-1].float().log_softmax(dim=-1).gather(-1, ids[:, 1:, None]).squeeze(-1)


def group_advantages(rewards, group):
    """Return `(r - mean) / (std + 1e-4)` within each group of consecutive rewards, `(B,)`."""
    grouped = rewards.view(-1, group)
    centered = grouped - grouped.mean(dim=1, keepdim=True)
    return (centered / (grouped.std(dim=1, keepdim=True) + 1e-4)).flatten()


def token_losses(logps, old_logps, advantages, clip):
    """Return the loss of each token, `(B, L - 1)`: `-min(ratio A, clip(ratio) A)`.

    `ratio` is the token's probability relative to when it was sampled. It is 1 in the first update on a batch; in later
    ones, clipping removes the incentive to move it further from 1 than `clip`.
    """
    ratio, advantages = (logps - old_logps).exp(), advantages[:, None]
    return -torch.minimum(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)


def accuracy(model, tokenizer, env, options):
    """Return the accuracy of one sampled answer to each held-out question."""
    right = []
    for start in range(0, len(env.eval_rows), options.prompts * options.group):
        rows = env.eval_rows[start : start + options.prompts * options.group]
        *_, texts = sample(model, tokenizer, rows, options.max_tokens)
        scores = env.score([env.rollout(row, text) for row, text in zip(rows, texts, strict=True)])
        right += [scored.metrics["accuracy"] for scored in scores]
    return sum(right) / len(right)


def main() -> None:
    parser = OptionParser(description=__doc__)
    parser.add_argument("--tasks", action=Names, nargs="+", default=["leg_counting"], help="see `rg-env tasks`")
    parser.add_argument("--model", default="tiny", help="folder, name on the Hub, or 'tiny' (default)")
    parser.add_argument("--steps", type=positive, default=25, help="batches of answers; default: 25")
    parser.add_argument("--prompts", type=positive, default=16, help="questions per step; default: 16")
    parser.add_argument("--group", type=positive, default=8, help="answers per question; default: 8")
    parser.add_argument("--updates", type=positive, default=2, help="optimizer steps per batch; default: 2")
    parser.add_argument("--micro-batch", type=positive, default=64, help="answers per pass; default: 64")
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--clip", type=float, default=0.2, help="clip range of the ratio; default: 0.2")
    parser.add_argument("--max-tokens", type=positive, default=90, help="maximum new tokens; default: 90")
    parser.add_argument("--seed", type=seed, default=0)
    options = parser.parse_args()

    torch.manual_seed(options.seed)
    rng = random.Random(options.seed)
    is_tiny = options.model == "tiny"  # the tiny policy was trained on one problem size per task
    env = ReasoningGym([{"name": name, "config": TASKS.get(name, {}) if is_tiny else {}} for name in options.tasks])
    name, device = POLICY_DIR if is_tiny else options.model, "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer = AutoTokenizer.from_pretrained(name)
    model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), options.learning_rate, betas=(0.9, 0.95), weight_decay=0.0)
    print(f"accuracy on {len(env.eval_rows)} held-out questions: {accuracy(model, tokenizer, env, options):.3f}")

    for step in range(1, options.steps + 1):
        start = time.monotonic()
        rows = [row for row in rng.sample(env.train_rows, options.prompts) for _ in range(options.group)]
        ids, attention, mask, texts = sample(model, tokenizer, rows, options.max_tokens)
        scores = env.score([env.rollout(row, text) for row, text in zip(rows, texts, strict=True)])
        rewards = torch.tensor([scored.reward for scored in scores], device=device)
        advantages = group_advantages(rewards, options.group)

        passes = torch.arange(len(rows), device=device).split(options.micro_batch)
        with torch.no_grad():
            old_logps = torch.cat([log_probabilities(model, ids[part], attention[part]) for part in passes])
        for _ in range(options.updates):
            for part in passes:
                logps = log_probabilities(model, ids[part], attention[part])
                losses = token_losses(logps, old_logps[part], advantages[part], options.clip)
                (losses[mask[part]].sum() / mask.sum()).backward()  # the passes add up to the mean over all tokens
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

        right = sum(scored.metrics["accuracy"] for scored in scores) / len(scores)
        tokens, seconds = mask.sum().item() / len(rows), time.monotonic() - start
        print(f"step {step}: reward {rewards.mean():.2f}, accuracy {right:.2f}, {tokens:.0f} tokens, {seconds:.1f} s")

    print(f"accuracy on {len(env.eval_rows)} held-out questions: {accuracy(model, tokenizer, env, options):.3f}")


if __name__ == "__main__":
    run_command(main)
