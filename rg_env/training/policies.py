"""A model made ready for training (adapters, gradient checkpointing, no dropout), and the initial model for KL."""

import copy
import importlib
from typing import Any

from transformers import AutoModelForCausalLM

from rg_env.errors import InputError
from rg_env.training.grpo_config import GRPOConfig


def prepare_policy(model: Any, args: GRPOConfig, peft_config: Any, *, training: bool) -> Any:
    """`model`, with fresh adapters if a `peft_config` is given.

    Dropout is turned off: the log-probabilities of the policy must be those that it sampled with.
    """
    if peft_config is not None:
        from peft import PeftModel, get_peft_model

        if isinstance(model, PeftModel):
            raise InputError("the model has adapters already: leave out peft_config to train those")
        model = get_peft_model(model, peft_config)
    if args.use_liger_kernel:
        # What transformers' own trainer calls: liger's public functions patch classes, for all models of the process.
        liger: Any = importlib.import_module("liger_kernel.transformers")
        liger._apply_liger_kernel_to_instance(model=model)
    if args.gradient_checkpointing and training:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if hasattr(model, "peft_config"):
            model.enable_input_require_grads()
    for module in model.modules():
        if type(module).__name__ == "Dropout":
            module.p = 0.0
    return model


def reference_of(model: Any, args: GRPOConfig) -> Any:
    """The initial model as it is now, for a KL term; None if there is none, or if turning adapters off gives it.

    Raises:
        InputError: the model is sharded already, and cannot be loaded a second time.
    """
    if args.beta == 0.0 or args.kl_reference != "initial" or hasattr(model, "peft_config"):
        return None
    if any(hasattr(parameter, "ds_id") for parameter in model.parameters()):
        name = model.config._name_or_path
        try:
            options = {"dtype": model.dtype, "attn_implementation": model.config._attn_implementation}
            reference = AutoModelForCausalLM.from_pretrained(name, **options)
        except OSError as error:
            raise InputError(f"beta={args.beta:g} needs the initial model a second time: {error}") from error
    else:
        reference = copy.deepcopy(model)
    reference.eval()
    for parameter in reference.parameters():
        parameter.requires_grad_(False)
    return reference
