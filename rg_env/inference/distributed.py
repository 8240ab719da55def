"""The processes that train together, as accelerate counts them."""

import torch
from accelerate import PartialState


def processes(*, cpu: bool | None = None) -> PartialState:
    """Their state; `cpu`: on the CPU (default: if there is no GPU).

    accelerate keeps what its first caller said, and without `cpu` counts each process of a CPU run as alone: no other
    module makes a `PartialState`.
    """
    return PartialState(cpu=not torch.cuda.is_available() if cpu is None else cpu)
