"""Publish a trained model, or preview its files and model card.

    python examples/publish.py outputs/RUN me/legs --dry-run                 # shows the files and the card
    python examples/publish.py outputs/RUN me/legs --private
    python examples/publish.py outputs/RUN me/legs --optimizer-state full    # so that training can resume

This script does the same as `rg-env push`. The token comes from HF_TOKEN (which .env can also set) or from `hf auth
login`. To resume an interrupted upload, repeat the command. A run is published automatically if its config has
`hub: {enabled: true, repo_id: me/legs}`.
"""

from pathlib import Path

from rg_env.commands import OptionParser, run_command


def main() -> None:
    parser = OptionParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="a run (its last checkpoint is used), or one of its checkpoints")
    parser.add_argument("repo_id", help="USER/NAME, created if missing")
    parser.add_argument("--private", action="store_true")
    parser.add_argument("--optimizer-state", choices=["none", "full"], default="none")
    parser.add_argument("--revision", metavar="BRANCH", help="branch, created if missing")
    parser.add_argument("--dry-run", action="store_true", help="prepare the files and the card, but upload nothing")
    options = parser.parse_args()

    from rg_env.publish.push import PushRequest, preview, push

    request = PushRequest(
        path=options.run,
        repo_id=options.repo_id,
        private=options.private,
        optimizer_state=options.optimizer_state,
        revision=options.revision,
    )
    if options.dry_run:
        print(preview(request).rstrip())
        return
    print(push(request))  # reports its progress and returns the URL


if __name__ == "__main__":
    run_command(main)
