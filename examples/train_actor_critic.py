"""Train with PPO and a value head, using the same environment and engine as GRPO. The entire training loop is in this
file.

    python examples/train_actor_critic.py                          # without a GPU: the tiny policy, in about a minute
    python examples/train_actor_critic.py --value-learning-rate 0                                  # without a critic
    python examples/train_actor_critic.py --model Qwen/Qwen2.5-0.5B-Instruct --max-steps 200           # one GPU

GRPO compares each rollout with the other rollouts for the same prompt. Here, each prompt has one rollout, and a critic
(a linear layer on the LM head's input) predicts the return at every token. A token's advantage is the return minus the
critic's prediction, smoothed by GAE (Schulman et al., 2016, arXiv:1506.02438). The policy is trained on these
advantages for a few epochs with the clipped loss of PPO (Schulman et al., 2017, arXiv:1707.06347).

The critic's loss is not backpropagated into the rest of the model, because that would change the policy's features and
require weighting the critic's loss against the policy's loss. The features are therefore constant while the critic is
fitted, and a hundred critic updates cost less than one policy update.

With the tiny policy and seeds 0, 1 and 2, sampled accuracy on the 200 frozen questions was 0.33-0.36 before training,
0.79-0.85 after 3 steps, and 0.94-0.96 after 15 steps. Without a critic, sampled accuracy was 0.51-0.56 after 3 steps
and 0.69-0.88 after 15 steps.
"""

import argparse
import random
import time
from contextlib import nullcontext

import torch
from safetensors.torch import save_file

from rg_env import ReasoningGym
from rg_env.commands import Names, OptionParser, positive, run_command, seed
from rg_env.errors import InputError
from rg_env.training import GRPOTrainer, choose_folder, default_config, load_policy, run_name, token_logps, train


def gae(rewards, values, mask, gamma, lam):
    """Return the advantages `(B, T)`: `A_t = d_t + gamma lam A_{t+1}`, where `d_t = r_t + gamma V_{t+1} - V_t`.

    Args:
        rewards, values: `(B, T) float32`; `values[:, t]` is the prediction before token t. V is 0 after the last token.
        mask: `(B, T) bool`, True for the completion's tokens, which are contiguous in each row. Advantages are 0
            elsewhere.
    """
    advantages = values.new_zeros(values.shape)
    value_after = advantage_after = values.new_zeros(len(values))
    for t in reversed(range(values.shape[1])):
        surprise = rewards[:, t] + gamma * value_after - values[:, t]
        advantages[:, t] = advantage_after = (surprise + gamma * lam * advantage_after) * mask[:, t]
        value_after = values[:, t] * mask[:, t]
    return advantages


def ppo_loss(logps, old_logps, advantages, clip):
    """Return each token's loss and whether its ratio was clipped, both with shape `(N,)`."""
    ratio = (logps - old_logps).exp()
    plain, bounded = ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages
    return -plain.minimum(bounded), bounded < plain


def forward(model, ids, mask):
    """Run one forward pass over rollouts. Return the log-probabilities `(N,)` of the N tokens in `mask`, row by row,
    and the hidden states `(N, H)` from which those tokens are predicted. Each hidden state is detached and divided by
    its root mean square. Both results are float32.

    Args:
        ids: `(B, L) int64`, prompt and completion, padded on the right. Attention is causal, so the
            completion never attends to the padding.
        mask: `(B, L - 1) bool`, where `mask[:, t]` indicates whether `ids[:, t + 1]` was sampled.
    """
    end = int(mask.any(dim=0).nonzero().max()) + 1  # length of the longest row in this pass
    ids, mask = ids[:, : end + 1], mask[:, :end]
    seen = []
    with model.get_output_embeddings().register_forward_pre_hook(lambda head, inputs: seen.append(inputs[0])):
        # `token_logps` computes logits in chunks: with a vocabulary of 150,000, all logits together
        # could exceed a GPU's memory.
        logps = token_logps(model, {"input_ids": ids[:, :-1], "use_cache": False}, mask, ids[:, 1:][mask])
    hidden = seen[-1].detach()[mask].float()
    return logps, hidden / (hidden.square().mean(dim=-1, keepdim=True).sqrt() + 1e-6)


def judge(model, critic, ids, mask, rewards, options):
    """Evaluate rollouts with the policy that sampled them and the current critic. Return the log-probabilities,
    advantages and returns, all `(B, L - 1) float32`, and the hidden states `(N, H)`.

    Args:
        ids, mask: the same as in `forward`.
        rewards: `(B,) float32`, assigned to the last token, even if `max_tokens` cut the completion off.
    """
    logps, values = torch.zeros(2, *mask.shape, device=ids.device)
    with torch.no_grad():
        parts = zip(ids.split(options.rows_per_pass), mask.split(options.rows_per_pass), strict=True)
        passes = [forward(model, *part) for part in parts]
        hidden = torch.cat([states for _, states in passes])
        logps[mask], values[mask] = torch.cat([each for each, _ in passes]), critic(hidden).squeeze(-1)
    last = mask & (mask.cumsum(dim=1) == mask.sum(dim=1, keepdim=True))
    advantages = gae(last * rewards[:, None], values, mask, options.gamma, options.lam)
    return logps, advantages, advantages + values, hidden


def fit_critic(critic, optimizer, hidden, returns, updates):
    """Fit the critic so that its predictions from `hidden (N, H)` approach `returns (N,)`. Return metrics that
    describe the critic before the fit.

    Explained variance is 1 for perfect predictions, 0 for constant predictions, negative for predictions worse than a
    constant, and NaN if all returns are equal. A non-finite loss ends the fit early, without an update.
    """
    errors = []
    for _ in range(updates):
        errors.append(critic(hidden).squeeze(-1) - returns)
        loss = errors[-1].square().mean()
        if not loss.isfinite():
            break
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    unexplained, variance = errors[0].var(correction=0).item(), returns.var(correction=0).item()
    explained = 1 - unexplained / variance if variance > 1e-6 else float("nan")
    return {"value_loss": errors[0].square().mean().item(), "explained_variance": explained}


class ActorCritic(GRPOTrainer):
    """PPO trainer. The engine, optimizer and checkpoints come from `GRPOTrainer`. `rg_env.training.train` adds
    evaluations, output files and Ctrl-C handling."""

    def __init__(self, policy, env, args, options):
        super().__init__(policy.model, env, args, policy.tokenizer)
        size, self.options = policy.model.config.get_text_config().hidden_size, options
        self.critic = torch.nn.Linear(size, 1, device=self.accelerator.device)
        for parameter in self.critic.parameters():
            torch.nn.init.zeros_(parameter)  # the critic initially predicts 0
        # The default learning rate moves values by at most about 1 per update.
        rate = 1 / size if options.value_learning_rate is None else options.value_learning_rate
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters(), rate, betas=(0.9, 0.95))

    def train(self, resume_from_checkpoint=None):
        state, options, rng = self.state, self.options, random.Random(self.args.seed)
        state.max_steps = self.args.max_steps
        self.notify("on_train_begin")
        while state.global_step < self.args.max_steps and not self.control.should_training_stop:
            self.guard.end_if_hopeless(self.model, state.global_step)  # fails after three non-finite updates in a row
            self.notify("on_step_begin")
            start = time.monotonic()
            rollouts = self.rollouts = self.sampler.sample(
                rng.sample(self.env.train_rows, options.batch_size), self.sampling
            )
            batch = rollouts.tensors(pad_token=0)
            ids, mask, rewards = (
                batch[name].to(self.accelerator.device) for name in ("input_ids", "loss_mask", "rewards")
            )
            logps, advantages, returns, hidden = judge(self.model, self.critic, ids, mask, rewards, options)
            self.updating, self.consistent = True, False  # Ctrl-C takes effect at the end of the step
            metrics = {
                "reward": rewards.mean().item(),
                "accuracy": sum(rollouts.accuracies) / len(rollouts),
                "completions/mean_length": mask.sum().item() / len(mask),
                **self.improve_policy(ids, mask, logps, advantages),
                **fit_critic(self.critic, self.critic_optimizer, hidden, returns[mask], options.value_updates),
            }
            state.global_step += 1
            self.checkpoints.take_snapshot()
            self.consistent = True
            self.notify("on_step_end")
            self.report({**metrics, "skipped_updates": self.guard.skipped, "step_time": time.monotonic() - start})
            self.updating = False
        self.guard.end_if_hopeless(self.model, state.global_step)
        self.notify("on_train_end")

    def improve_policy(self, ids, mask, old_logps, advantages):
        """Run the PPO epochs on a batch, with one update per minibatch, and return the metrics."""
        advantages = (advantages - advantages[mask].mean()) / (advantages[mask].std(correction=0) + 1e-8)  # whitened
        losses, beyond = [], []

        def loss_of(part):
            rows, share = part
            kept = mask[rows]
            logps, _ = forward(self.model, ids[rows], kept)
            loss, clipped = ppo_loss(logps, old_logps[rows][kept], advantages[rows][kept], self.options.clip)
            beyond.append(clipped)
            return loss.sum() * share

        self.model.train()
        for _ in range(self.options.epochs):
            for minibatch in torch.randperm(len(ids)).split(self.args.rollouts_per_step):
                parts = minibatch.split(self.args.per_device_train_batch_size)
                share = len(parts) / mask[minibatch].sum()  # so that the parts' losses add up to the mean over tokens
                rates = [self.args.learning_rate] * len(self.optimizer.param_groups)
                result = self.strategy.step(loss_of, [(rows, share) for rows in parts], rates, nullcontext)
                self.guard.count(result, self.state.global_step + 1)  # non-finite updates are skipped
                losses.append(result.loss)
        return {
            "loss": sum(losses) / len(losses),
            "clip_ratio/region_mean": torch.cat(beyond).float().mean().item(),
        }

    def save_checkpoint(self):
        folder = super().save_checkpoint()
        save_file(self.critic.state_dict(), folder / "value_head.safetensors")
        return folder


def share(text: str) -> float:
    if not 0 <= float(text) <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return float(text)


def main() -> int:
    parser = OptionParser(description=__doc__)
    parser.add_argument("--tasks", action=Names, nargs="+", default=["leg_counting"], help="see `rg-env tasks`")
    parser.add_argument("--model", help="folder, name on the Hub, or 'tiny' (default depends on the machine)")
    parser.add_argument("--max-steps", type=positive, default=15, help="training steps, one batch of rollouts each")
    parser.add_argument("--batch-size", type=positive, default=64, help="prompts per step, with one rollout each")
    parser.add_argument("--rows-per-pass", type=positive, help="rollouts per pass (default depends on the model)")
    parser.add_argument("--epochs", type=positive, default=2, help="PPO epochs per batch")
    parser.add_argument("--minibatches", type=positive, default=2, help="policy updates per epoch")
    parser.add_argument("--value-updates", type=positive, default=100, help="critic updates per step")
    parser.add_argument("--gamma", type=share, default=1.0, help="discount per token")
    parser.add_argument("--lambda", type=share, default=0.95, dest="lam", metavar="LAMBDA", help="GAE lambda")
    parser.add_argument("--clip", type=share, default=0.2, help="PPO clip range")
    parser.add_argument("--learning-rate", type=share, help="policy learning rate (default depends on the model)")
    parser.add_argument("--value-learning-rate", type=share, help="critic learning rate (default: 1 / hidden size)")
    parser.add_argument("--max-tokens", type=positive, help="maximum new tokens (default depends on the model)")
    parser.add_argument("--output-dir", help="new output folder (default: created under outputs/)")
    parser.add_argument("--seed", type=seed, default=0)
    options = parser.parse_args()

    if options.batch_size % (2 * options.minibatches):
        raise InputError(f"--batch-size {options.batch_size}: not divisible by 2 x {options.minibatches} minibatches")
    folder = choose_folder(options.output_dir, f"actor-critic-{run_name(options.tasks, options.model or 'default')}")
    policy = load_policy(options.model)
    env = ReasoningGym(gym=policy.mixture(options.tasks), seed=options.seed)
    if options.batch_size > len(env.train_rows):
        raise InputError(f"--batch-size {options.batch_size}: only {len(env.train_rows)} training questions")
    update = options.batch_size // options.minibatches
    fields = {"max_steps": options.max_steps, "learning_rate": options.learning_rate, "max_tokens": options.max_tokens}
    fields |= {"max_grad_norm": 1.0, "adam_beta2": 0.95, "seed": options.seed, "rollouts_per_step": update}
    usual = default_config(policy, folder).per_device_train_batch_size
    options.rows_per_pass = options.rows_per_pass or min(usual, update)
    args = default_config(
        policy, folder, **fields, num_generations=2, per_device_train_batch_size=options.rows_per_pass
    )
    trainer = ActorCritic(policy, env, args, options)
    if trainer.accelerator.num_processes > 1:
        raise InputError("this example trains in one process, but a launcher started several; run it with python")
    return 130 if train(trainer, settings=vars(options)).get("interrupted") else 0


if __name__ == "__main__":
    run_command(main)
