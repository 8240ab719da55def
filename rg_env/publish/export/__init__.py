"""From a checkpoint of any kind to a folder that `from_pretrained` and vLLM load, proven to be the trained model.

    from rg_env.publish.export.job import Asked, export

    folder = export(Asked(Path("outputs/RUN/checkpoint-25"), dtype="bf16"))

`locate`      what lies in a folder, and what belongs to it: the run, configuration, tokenizer
`pickles`     torch's files, read without executing anything in them
`readers`     weights by name, one module a format: `readers` itself (safetensors, .bin), `zero` (DeepSpeed), `dtensor`
              (a file a process, as verl writes), `distcp` (torch.distributed.checkpoint), `adapters` (LoRA)
`formats`     which of them a checkpoint has
`architecture`  which weights the configuration wants, and which of the checkpoint's they are
`writer`      safetensors files, written tensor by tensor
`destination`   the folder they go to: whole, or not there
`companions`  configuration, tokenizer, chat template, generation settings
`verify`, `recorded`   whether what was written is what was trained
`job`         all of it, in order

Tensors go through memory one at a time.
"""
