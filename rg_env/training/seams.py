"""Where rg_env gets into verifiers 0.1.6 without changing it: one place, and its reason.

`vf.GRPOTrainer.__init__` imports `VLLMClient` from a module that needs vLLM, and connects to a server at once. There is
no parameter to give another client. `no_weight_client` puts one that does nothing in that place, for the constructor's
time only: weights travel by `weight_sync`, or not at all. It also loads a reference model for any `beta` above 0;
`no_reference_model` is for the KL term that needs none.

All other changes are ordinary subclasses: `trainer.GRPOTrainer`, `rollouts.RolloutGenerator`.
"""

import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_CLIENT_MODULE = "verifiers.inference.vllm_client"


class NoWeightClient:
    """In place of verifiers' `VLLMClient`: sends nothing to nobody."""

    def __init__(self, **_: Any):
        pass

    def init_communicator(self) -> None:
        pass


@contextmanager
def no_reference_model(args: Any) -> Iterator[None]:
    """Within: a trainer with `kl_reference="previous"` loads no second model, though its `beta` is above 0."""
    beta = args.beta
    if args.kl_reference == "previous":
        args.beta = 0.0
    try:
        yield
    finally:
        args.beta = beta


@contextmanager
def no_weight_client() -> Iterator[None]:
    """Within: `from verifiers.inference.vllm_client import VLLMClient` gives `NoWeightClient`."""
    stand_in = types.ModuleType(_CLIENT_MODULE)
    stand_in.VLLMClient = NoWeightClient  # type: ignore[attr-defined]
    before = sys.modules.get(_CLIENT_MODULE)
    sys.modules[_CLIENT_MODULE] = stand_in
    try:
        yield
    finally:
        if before is None:
            del sys.modules[_CLIENT_MODULE]
        else:
            sys.modules[_CLIENT_MODULE] = before
