"""Exports and uploads of trained models.

    from rg_env.publish.export import ExportRequest, export
    from rg_env.publish.push import PushRequest, push

`checkpoint`   find a checkpoint: the trainer's format, run, step and base model
`weights`      read its weights by name, in any format, without executing code
`model`        read configuration and tokenizer, match weights to the architecture, merge LoRA adapters
`export`       write a folder for `from_pretrained` and vLLM: complete and verified, or nothing
`verify`       compare the exported model with the trained one
`contents`     select the files of a Hub repository; refuse secrets and links
`card`         render the model card from the template card.md.jinja
`repository`   read a Hub repository and commit to it
`push`         publish a checkpoint with the modules above

`push` imports torch only if an export is needed.
"""
