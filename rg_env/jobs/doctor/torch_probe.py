"""What torch sees, as one line of JSON. The doctor runs this file in another process: a broken driver may hang it."""

import json
import warnings
from typing import Any


def probe() -> dict[str, Any]:
    """Versions, and for each CUDA device its name, whether it computes, and which others it cannot reach."""
    import torch

    found: dict[str, Any] = {"version": torch.__version__, "cuda": torch.version.cuda, "devices": [], "apart": []}
    found["mps"] = torch.backends.mps.is_available()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        available = torch.cuda.is_available()
    found["problem"] = str(caught[-1].message).strip() if caught and not available else ""
    found["architectures"] = torch.cuda.get_arch_list()  # empty without a device
    count = torch.cuda.device_count() if available else 0
    for index in range(count):
        device: dict[str, Any] = {"index": index, "problem": ""}
        try:
            device["name"] = torch.cuda.get_device_name(index)
            device["capability"] = list(torch.cuda.get_device_capability(index))
            device["free"], device["total"] = torch.cuda.mem_get_info(index)
            (torch.ones(2, device=f"cuda:{index}") + 1).sum().item()
        except Exception as error:  # CUDA raises anything
            device["problem"] = (str(error).strip().splitlines() or [type(error).__name__])[0]
        found["devices"].append(device)
    for one in range(count):
        for other in range(count):
            if one < other and not torch.cuda.can_device_access_peer(one, other):
                found["apart"].append([one, other])
    return found


if __name__ == "__main__":
    print(json.dumps(probe()))
