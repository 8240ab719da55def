"""Export trained models, and publish them on the Hugging Face Hub.

    from rg_env.publish.export import ExportRequest, export
    from rg_env.publish.push import PushRequest, push

`checkpoint`   find a checkpoint, with its format, run, step and base model
`weights`      read a checkpoint's weights by name, without executing code
`model`        read the configuration and tokenizer, match weights to the architecture, load LoRA adapters
`export`       write a verified model folder for `from_pretrained` and vLLM
`contents`     select the files to publish; refuse secrets and links to other folders
`card`         render the model card from the template card.md.jinja
`push`         publish a run's model: check the repository, and commit

`push` does not import torch.
"""
