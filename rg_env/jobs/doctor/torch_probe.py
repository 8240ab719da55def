"""Print torch's view of the devices as one line of JSON. Runs in a subprocess, because a broken driver may hang."""

import json
import warnings
from typing import Any


def probe() -> dict[str, Any]:
    """Return versions and, per CUDA device, whether it computes, its free memory, and the devices it cannot access."""
    import torch

    found: dict[str, Any] = {"version": torch.__version__, "cuda": torch.version.cuda, "devices": [], "apart": []}
    found["mps"] = torch.backends.mps.is_available()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        available = torch.cuda.is_available()
    found["problem"] = str(caught[-1].message).strip() if caught and not available else ""
    count = torch.cuda.device_count() if available else 0
    for index in range(count):
        device: dict[str, Any] = {"index": index, "problem": ""}
        try:
            device["capability"] = list(torch.cuda.get_device_capability(index))
            device["free"], _ = torch.cuda.mem_get_info(index)
            (torch.ones(2, device=f"cuda:{index}") + 1).sum().item()  # fails if this build has no kernels for it
        except Exception as error:  # CUDA can raise any exception
            device["problem"] = (str(error).strip().splitlines() or [type(error).__name__])[0]
        found["devices"].append(device)
    for one in range(count):
        for other in range(one + 1, count):
            if not torch.cuda.can_device_access_peer(one, other):
                found["apart"].append([one, other])
    return found


if __name__ == "__main__":
    print(json.dumps(probe()))
