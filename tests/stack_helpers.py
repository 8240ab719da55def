"""What tests against a real server share."""

from typing import Any

import torch


def perturb(model: Any, only: str = "") -> None:
    """Change the weights whose name has `only` in it, visibly but not beyond reason."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if only in name:
                parameter.add_(0.05 * torch.randn_like(parameter))
