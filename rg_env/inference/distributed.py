"""The processes that train together, as accelerate counts them."""

from datetime import timedelta

import torch
from accelerate import PartialState

TIMEOUT = timedelta(hours=12)
"""Of collective operations: all processes wait while the main one samples, grades or evaluates. A process that ends is
noticed by the launcher, not by this."""


def processes(*, cpu: bool | None = None) -> PartialState:
    """Their state; `cpu`: on the CPU (default: if there is no GPU).

    accelerate keeps what its first caller said, and without `cpu` counts each process of a CPU run as alone: no other
    module makes a `PartialState`.
    """
    return PartialState(cpu=not torch.cuda.is_available() if cpu is None else cpu, timeout=TIMEOUT)
