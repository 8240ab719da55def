"""A pretended GPU for tests on machines without one.

    with PretendedCuda() as cuda:
        model = cuda.moved(model)
        model(input_ids=torch.tensor([[1, 2]], device="cuda"))   # a tensor that was left on the CPU is an error

torch's FakeTensorMode computes devices, shapes and data types, and refuses operations that mix devices. The values are
computed on the CPU, so the code can branch on them. Backward passes are not possible, because the autograd engine looks
for a real device.
"""

from typing import Any, Self

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")


class PretendedCuda(TorchDispatchMode):
    """Within this context, tensors can be created on the device "cuda"."""

    def __init__(self) -> None:
        super().__init__()
        self._fake = FakeTensorMode()
        self.waits = 0
        """Number of operations for which a program on a real GPU would wait, because their result's value or shape is
        needed on the CPU."""
        self.operations: list[tuple[str, Any]] = []
        """Name of each operation, and its result."""

    def __enter__(self) -> Self:
        self._fake.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._fake.__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = (args, kwargs or {})
        fakes = [each for each in tree_leaves(given) if isinstance(each, FakeTensor)]
        needs_values = False
        try:
            result = func(*given[0], **{name: None if name == "generator" else each for name, each in given[1].items()})
        except (DataDependentOutputException, DynamicOutputShapeException):
            needs_values = True
            self.waits += fakes[0].device == CUDA
        with _disable_current_modes():
            real_args, real_kwargs = tree_map(_real, given)
            real = func(*real_args, **real_kwargs)
            if needs_values:
                return tree_map(lambda each: self._on(fakes[0].device, each), real)
        for fake, value in zip(tree_leaves(result), tree_leaves(real), strict=True):
            if isinstance(fake, FakeTensor):
                fake.real_tensor, fake.constant = value, None
        self.operations.append((func.overloadpacket.__name__, result))
        return result

    def _on(self, device: torch.device, real: Any) -> Any:
        """Return a fake tensor with the values of `real`, or `real` itself if it is not a tensor."""
        if not isinstance(real, torch.Tensor):
            return real
        return FakeTensor(self._fake, real.to("meta"), device, real_tensor=real)

    def moved(self, model: Any) -> Any:
        """Move `model` to the device in place, and return it."""
        with _disable_current_modes():
            new: dict[int, Any] = {}
            replaced = []  # kept, so that no new tensor has the same id
            for module in model.modules():
                for store in (module._parameters, module._buffers):
                    for name, tensor in store.items():
                        if tensor is not None and id(tensor) not in new:
                            real = _real(tensor).detach()
                            fake = self._on(CUDA, real)
                            if isinstance(tensor, torch.nn.Parameter):
                                fake = torch.nn.Parameter(fake, tensor.requires_grad)
                                fake.real_tensor = real
                            new[id(tensor)] = fake
                            replaced.append(tensor)
                        store[name] = None if tensor is None else new[id(tensor)]
        return model


def _real(argument: Any) -> Any:
    if isinstance(argument, FakeTensor):
        return argument.real_tensor
    return CPU if isinstance(argument, torch.device) else argument
