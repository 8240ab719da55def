"""Evaluation of models on tasks: answers, scores, comparisons, tables, plots and reports.

results, folder = evaluate(["tiny", "outputs/RUN/checkpoint-25"], ["leg_counting"], num_examples=50)
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rg_env.evaluation.results import Results


def evaluate(
    models: Sequence[str] | Mapping[str, Any], tasks: Sequence[str] | Mapping[str, Any], **sections: Any
) -> "tuple[Results, Path]":
    """Evaluate models on tasks, like `rg-env eval`, and return the results and the output folder.

    Args:
        models, tasks: lists of names, or mappings keyed by name, as in an evaluation config.
        sections: other config keys and their values, such as `num_examples=50` or `sampling={"max_tokens": 512}`.

    Raises:
        ConfigError: keys or values are invalid. All errors are reported at once. Other errors are the same as in
            `runner.run_evaluation`.
    """
    from rg_env.core.config.files import Document
    from rg_env.evaluation.load import checked_eval_config
    from rg_env.evaluation.runner import run_evaluation

    given = {"models": models, "tasks": tasks}
    own = {name: dict(each) if isinstance(each, Mapping) else list(each) for name, each in given.items()}
    return run_evaluation(checked_eval_config(Document({**own, **sections}, Path("arguments"))))
