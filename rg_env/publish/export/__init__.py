"""Turn a checkpoint of any kind into a folder that `from_pretrained` and vLLM load, verified to be the trained model.

    from rg_env.publish.export.job import ExportRequest, export

    folder = export(ExportRequest(Path("outputs/RUN/checkpoint-25"), dtype="bf16"))

`locate`        the checkpoint in a folder, and what belongs to it: the run, configuration, tokenizer
`weights`       its weights by name, in any format; nothing in a checkpoint is executed
`adapters`      LoRA: on the base model, merged into it
`architecture`  the weights that the configuration wants, and which of the checkpoint's they are
`companions`    configuration, tokenizer, chat template, generation settings
`destination`   the new folder: complete, or not there
`verify`, `recorded`   whether what was written is what was trained
`job`           all of it in order
"""
