"""The weight-transfer backend `rg_env_shm`: vLLM's workers load new weights from memory shared with the trainer.

This backend is used on CPUs, and when the server and the trainer share a GPU, which NCCL does not support. Nothing is
unpickled. Requests describe tensors by dtype, shape and offset in a shared file, which must be in `/dev/shm` and
belong to the server's user.
"""

from dataclasses import dataclass
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo

from rg_env.inference.vllm.shared_weights import PackedTensor, mapped, unpack


@dataclass
class SharedMemoryInitInfo(WeightTransferInitInfo):
    """Request body for `/init_weight_transfer_engine`."""

    path: str
    """File created by the trainer. The file can be unlinked once it is mapped."""


@dataclass
class SharedMemoryUpdateInfo(WeightTransferUpdateInfo):
    """Request body for `/update_weights`: one bucket of tensors."""

    start: int
    """Offset of the bucket in the file, in bytes."""
    tensors: list[tuple[str, str, list[int]]]
    """Each tensor's name, dtype and shape, in bucket order."""


class SharedMemoryEngine(WeightTransferEngine[SharedMemoryInitInfo, SharedMemoryUpdateInfo]):
    """Worker side of the weight transfer."""

    init_info_cls = SharedMemoryInitInfo
    update_info_cls = SharedMemoryUpdateInfo

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._memory: torch.Tensor | None = None

    def init_transfer_engine(self, init_info: SharedMemoryInitInfo) -> None:
        self._memory = mapped(init_info.path)

    def start_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        if next(self.model.parameters()).device.type == "cpu":
            # vLLM 0.32 packs experts for the CPU only when it builds their kernel, and not when they are loaded again.
            for layer in self.model.modules():
                method: Any = getattr(layer, "quant_method", None)
                if hasattr(method, "moe_kernel"):
                    method.moe_kernel = None
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: SharedMemoryUpdateInfo) -> None:
        if self._memory is None:
            raise RuntimeError("shared memory is not set up: call /init_weight_transfer_engine first")
        entries = [PackedTensor(name, dtype, tuple(shape)) for name, dtype, shape in update_info.tensors]
        self.model.load_weights(unpack(entries, self._memory[update_info.start :]))
        self._copy_pending()

    def _copy_pending(self) -> None:
        """Copy the tensors that vLLM keeps until the rest of their layer arrives, because the trainer overwrites the
        shared memory before then."""
        from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

        assert self._memory is not None
        shared = self._memory.untyped_storage().data_ptr()
        for layer in self.model.modules():
            for _, bound in get_layerwise_info(layer).loaded_weights:
                for name, value in bound.arguments.items():
                    if isinstance(value, torch.Tensor) and value.untyped_storage().data_ptr() == shared:
                        bound.arguments[name] = value.clone()

    def finish_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        self._memory = None
