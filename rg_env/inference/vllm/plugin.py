"""vLLM's way in: the entry point `vllm.general_plugins`, which vLLM calls in each process.

It adds the weight-transfer backend `rg_env_shm` to those of vLLM, and nothing else: a server that is not started with
`--weight-transfer-config` stays as it is, and so does a vLLM from before there was weight transfer.
"""

BACKEND = "rg_env_shm"


def register() -> None:
    """Called by vLLM, in some processes more than once."""
    try:
        from vllm.distributed.weight_transfer import WeightTransferEngineFactory
    except ImportError:  # a vLLM older than 0.32
        return
    try:
        WeightTransferEngineFactory.register_engine(BACKEND, "rg_env.inference.vllm.backend", "SharedMemoryEngine")
    except ValueError:
        """It is there already."""
