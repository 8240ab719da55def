"""A trained model, published: its card first, to be read, then the upload.

    python examples/publish.py outputs/RUN me/legs --dry-run                 # the files and the card; sends nothing
    python examples/publish.py outputs/RUN me/legs --private
    python examples/publish.py outputs/RUN me/legs --optimizer-state full    # with all that training goes on from

The same as `rg-env push`. The token comes from HF_TOKEN (also in .env), or `hf auth login`. What broke off goes on by
the same command. A run publishes itself where its config says `hub: {enabled: true, repo_id: me/legs}`.
"""

import argparse
from pathlib import Path

from rg_env.commands import run_command


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="a run (its last checkpoint), a checkpoint, or a model folder")
    parser.add_argument("repo_id", help="USER/NAME; made where it is not there")
    parser.add_argument("--private", action="store_true")
    parser.add_argument("--optimizer-state", choices=["none", "full"], default="none")
    parser.add_argument("--revision", metavar="BRANCH", help="a branch, made where it is not there")
    parser.add_argument("--dry-run", action="store_true", help="send nothing")
    options = parser.parse_args()

    from rg_env.publish.hub.push import preview, push
    from rg_env.training.hub_uploads import PushRequest

    asked = PushRequest(options.run, options.repo_id, options.private, options.optimizer_state, options.revision)
    if options.dry_run:
        print(preview(asked).rstrip())
        return
    print(push(asked))  # says what it does, and returns the address


if __name__ == "__main__":
    run_command(main)
