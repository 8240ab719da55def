"""Whether logins are there. Nothing of a token is ever shown, its length and the errors of its file included."""

import importlib.util
import os
from collections.abc import Mapping
from typing import Any

from rg_env.jobs.doctor.asked_run import Check
from rg_env.training.reporting.logins import wandb_login


def check_hub(uploads: str | None = None) -> Check:
    """Hugging Face: needed for gated models, and for `uploads`, to that repository."""
    if importlib.util.find_spec("huggingface_hub") is None:
        return Check("hugging face", "skipped", "huggingface_hub is not installed")
    from huggingface_hub import get_token

    if get_token():
        return Check("hugging face", "ok", "a token is there")
    if uploads is not None:
        fix = "HF_TOKEN in .env, or `hf auth login`; or hub.enabled=false"
        return Check("hugging face", "failed", f"no token, and the run is to be uploaded to {uploads}", fix)
    return Check(
        "hugging face", "ok", "no token: public models only, no uploads (HF_TOKEN in .env, or `hf auth login`)"
    )


def check_wandb(settings: Mapping[str, Any]) -> Check:
    """Weights & Biases: needed where `report_to` names it."""
    report_to = settings.get("report_to") or []
    wanted = bool({"wandb", "all"} & set([report_to] if isinstance(report_to, str) else report_to))
    if os.environ.get("WANDB_MODE") in ("offline", "disabled"):
        return Check("wandb", "ok", f"WANDB_MODE={os.environ['WANDB_MODE']}: no login needed")
    if wandb_login():
        return Check("wandb", "ok", "a login is there" + ("" if wanted else "; report_to does not ask for it"))
    if not wanted:
        return Check("wandb", "ok", "no login, and report_to does not ask for one")
    fix = "WANDB_API_KEY in .env, or `wandb login`; or WANDB_MODE=offline"
    return Check("wandb", "failed", "no login, and report_to asks for it", fix)
