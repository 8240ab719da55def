"""An engine that samples without a model, for programs with a sharded model, which the embedded engine cannot use."""

from typing import Any

import torch

from rg_env.inference.protocol import Completion, Engine


class Sampled(Engine):
    """Engine that samples random tokens up to an end token; the same state yields the same tokens."""

    name, max_context = "vllm", 512

    def __init__(self, end: int) -> None:
        self.end_ids, self.random = frozenset([end]), torch.Generator().manual_seed(0)

    def generate(self, prompts: Any, sampling: Any) -> list[Completion]:
        lengths = [3 + row % 7 for row in range(len(prompts))]
        rows = [[*torch.randint(10, 300, (n,), generator=self.random).tolist(), *self.end_ids] for n in lengths]
        return [Completion(row, [-1.0] * len(row), "stop") for row in rows]

    def random_state(self) -> torch.Tensor:
        return self.random.get_state()

    def set_random_state(self, state: torch.Tensor | None) -> None:
        assert state is not None
        self.random.set_state(state)
