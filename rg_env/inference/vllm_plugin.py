"""vLLM's way in: the entry point `vllm.general_plugins`, which vLLM calls in each of its processes.

It does nothing unless `RG_ENV_WEIGHT_SYNC=1` is set, as in the commands that rg_env prints: any other vLLM in the same
environment stays as it is. Then it replaces the methods of one class, the weight-sync extension of `vf-vllm`.
"""

import os

ENV_VARIABLE = "RG_ENV_WEIGHT_SYNC"
SCHEME = "rg-env://"
"""What the host in `/init_communicator` begins with, if rg_env's trainer asks."""


def register() -> None:
    """Called by vLLM. Cheap unless asked for; safe to be called more than once."""
    if os.environ.get(ENV_VARIABLE) != "1":
        return
    try:
        from verifiers.inference.vllm_server import WeightSyncWorkerExtension
    except (ImportError, SystemExit):  # no verifiers with a server here: some other vLLM, started with the variable set
        return
    from rg_env.inference import vllm_extension

    for name in ("init_communicator", "update_named_param", "close_communicator"):
        setattr(WeightSyncWorkerExtension, name, getattr(vllm_extension, name))
