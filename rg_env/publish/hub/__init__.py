"""Publish a run, a checkpoint or a model folder on the Hugging Face Hub, with a card made from the run's files.

    push(PushRequest(Path("outputs/RUN"), "me/legs"))        # rg_env.publish.hub.push

`source`      what a folder contains: a model, adapters or shards to export; the run and the base model behind them
`files`       the files that a repository gets; secrets and links that are refused
`card`        the model card, from the template card.md.jinja
`repository`  a repository on the Hub: what it holds, one commit to it, errors as one line
`push`        all of it in order

None of these imports torch, except through an export where one is needed.
"""
