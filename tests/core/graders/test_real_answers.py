"""Our graders on 63,000 distinct answers of real models, with the scores that were published for them.

The answers are not part of the project. `RG_ENV_REAL_ANSWERS` names their file (see `real_answers.FILE`): JSON Lines
compressed with xz, one question a line, with `task`, `config`, `entry`, `built` and `answers` (lists that begin with
answer, number of replies and published scores).
"""

import pytest
import yaml
from real_answers import FILE, KINDS, verdicts

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not FILE.is_file(), reason="the file of answers is not on this machine"),
]


def test_every_difference_from_the_published_scores_is_known() -> None:
    """No answer is ungradable or slow, each kind of difference has a reason and its recorded count, and a change of any
    verdict changes the task's hash. After a wanted change, run `tests/helpers/real_answers.py`."""
    found = verdicts()
    assert [failure for each in found.values() for failure in each.failed] == []
    recorded = yaml.safe_load(KINDS.read_text(encoding="utf-8"))
    assert {task: each.recorded() for task, each in found.items()} == recorded["tasks"]
    reasons = recorded["reasons"]
    kinds = {f"{task}: {kind.removesuffix(', left out')}" for task, each in found.items() for kind in each.kinds}
    unknown = {kind for kind in kinds if kind.partition(": ")[2] not in reasons.get(kind.partition(": ")[0], {})}
    assert unknown == set()
