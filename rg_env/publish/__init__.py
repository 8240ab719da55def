"""Exports and uploads of trained models.

    from rg_env.publish.export import ExportRequest, export
    from rg_env.publish.push import PushRequest, push

`checkpoint`   what a folder holds: weights of which trainer, of which run, step and base model
`weights`      its weights by name, in any format; nothing in a checkpoint is executed
`model`        configuration, tokenizer, and the weights that the configuration wants
`adapters`     LoRA: on the base model, merged into it
`export`       a folder that `from_pretrained` and vLLM load: complete and verified, or not there
`verify`       whether what was written is what was trained
`files`        what a repository on the Hub gets; secrets and links that are refused
`card`         the model card, from the template card.md.jinja
`repository`   a repository on the Hub: what it holds, one commit to it, errors as one line
`push`         all of it in order

`push` imports torch only where an export is needed.
"""
