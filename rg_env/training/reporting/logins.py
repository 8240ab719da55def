"""Whether there is a login for Weights & Biases. Nothing of a token is ever shown, errors of its file included."""

import netrc
import os

_WANDB_HOST = "api.wandb.ai"


def wandb_login() -> bool:
    """Whether there is a key in the environment or in netrc's file."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    for name in (os.environ.get("NETRC") or "~/.netrc", "~/_netrc"):
        try:
            if netrc.netrc(os.path.expanduser(name)).authenticators(_WANDB_HOST):
                return True
        except (OSError, ValueError, netrc.NetrcParseError):  # the error's text may hold a part of the file
            continue
    return False
