"""From a run, a checkpoint or a model folder to a repository on the Hugging Face Hub, with a card that tells the truth.

    push(Asked(Path("outputs/RUN"), "me/legs"))        # rg_env.publish.hub.push

`names`       what a repository and a branch may be called
`source`      what lies in a folder: a model, adapters, something that is to be exported first; and the run that left it
`record`      what a run's files say, read with care; which run it is
`contents`    which files a repository gets, and what stands in them
`card`        the model card: `card_data` its head, `card_results`, `card_training`, `card_use` its sections
`licence`     of the base model
`marker`      what a repository says of itself, so that nothing of others is overwritten
`client`      the Hub, and its errors as one line
`push`        all of it, in order
`background`  the uploads of a run that is still going on

None of these imports torch; only an export does, where one is needed.
"""
