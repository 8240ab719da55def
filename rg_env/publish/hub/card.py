"""The model card: README.md of a repository, written from a run's files alone.

Text of others (names of tasks, options, messages) is data: it is shown to the letter, never as markup.
"""

from collections.abc import Sequence

from rg_env.publish.hub import card_results, card_training, card_use
from rg_env.publish.hub.card_data import head
from rg_env.publish.hub.markdown import code, text
from rg_env.publish.hub.subject import Subject

CARD, CURVE = "README.md", "reward_curve.png"


def card(subject: Subject, paths: Sequence[str]) -> str:
    """The text of the card. `paths`: of the other files in the repository."""
    record = subject.record
    sections = [("Results", _results(subject, paths))]
    if record is not None:
        sections += [
            ("Training", card_training.base(subject)),
            ("Tasks", card_training.tasks(record)),
            ("Data", card_training.data(record)),
            ("Settings", card_training.settings(subject)),
            ("Hardware, time, versions", card_training.machine(subject)),
        ]
    else:
        sections.append(("Training", card_training.base(subject)))
    sections += [
        ("Load", card_use.load(subject)),
        ("Evaluate, go on", card_use.evaluate(subject)),
        ("Known limits", card_use.limits(subject)),
        ("Files", card_use.files(subject, paths)),
    ]
    parts = [f"---\n{head(subject)}\n---", f"# {text(subject.name)}", _about(subject)]
    parts += [f"## {title}\n\n{body.strip()}" for title, body in sections]
    return "\n\n".join(parts) + "\n"


def _about(subject: Subject) -> str:
    record, step = subject.record, subject.source.step
    what = "LoRA adapters" if subject.adapter else "A model"
    if record is None:
        return f"{what}, published by rg\\_env. No files of the run that trained it lay beside it."
    names = [code(task.get("name")) for task in record.tasks]
    shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    on = f" on tasks of [Reasoning Gym](https://github.com/open-thought/reasoning-gym) ({shown})" if names else ""
    of = "" if subject.last_step is None else f" of {subject.last_step}"
    at = "" if step is None else f" These are the weights after step {step}{of}."
    return f"{what}, trained by GRPO{on} with rg\\_env.{at}"


def _results(subject: Subject, paths: Sequence[str]) -> str:
    body = card_results.results(subject)
    if CURVE not in paths:
        return body
    bars = "Bars of the accuracies: one standard error to each side. Reward: the mean of each training batch."
    return f"{body}\n\n![Learning curve of the run]({CURVE})\n\n{bars}"
