"""vLLM plugin (entry point group `vllm.general_plugins`), which vLLM calls in each process.

The plugin only registers the weight-transfer backend `rg_env_shm`. Servers without `--weight-transfer-config` and vLLM
releases without weight transfer are not affected.
"""

BACKEND = "rg_env_shm"
EXTENSION = "rg_env.inference.vllm.read_back.WeightReader"
"""Worker extension of servers that accept weights (vLLM's option `--worker-extension-cls`)."""


def register() -> None:
    """Register the backend. vLLM calls this function more than once in some processes."""
    try:
        from vllm.distributed.weight_transfer import WeightTransferEngineFactory
    except ImportError:  # this vLLM is older than 0.32
        return
    try:
        WeightTransferEngineFactory.register_engine(BACKEND, "rg_env.inference.vllm.backend", "SharedMemoryEngine")
    except ValueError:
        """Already registered."""
