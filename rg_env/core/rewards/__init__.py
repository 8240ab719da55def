"""Reward functions, their weights and gates, and the rubrics that combine them.

    rewards=[("correctness", 1.0), ("ends_well", 0.2), some_function,
             {"name": "length", "weight": 0.1, "when": "correct", "options": {"max_tokens": 256}}]

Rewards are weighted and summed. `registry` registers and resolves them, `builtin` defines those that rg_env provides,
and `rubric` scores rollouts with them.
"""

from rg_env.core.rewards.builtin import think_format as think_format
from rg_env.core.rewards.registry import OFFERED as OFFERED
from rg_env.core.rewards.registry import PARAMETERS as PARAMETERS
from rg_env.core.rewards.registry import WeightedReward as WeightedReward
from rg_env.core.rewards.registry import check_offered as check_offered
from rg_env.core.rewards.registry import checked_value as checked_value
from rg_env.core.rewards.registry import describe as describe
from rg_env.core.rewards.registry import get_reward as get_reward
from rg_env.core.rewards.registry import resolve_rewards as resolve_rewards
from rg_env.core.rewards.registry import reward as reward
from rg_env.core.rewards.rubric import LEVEL as LEVEL
from rg_env.core.rewards.rubric import RolloutRecord as RolloutRecord
from rg_env.core.rewards.rubric import Rubric as Rubric
from rg_env.core.rewards.rubric import Scored as Scored
from rg_env.core.rewards.rubric import offered as offered
from rg_env.core.rewards.rubric import question_of as question_of
from rg_env.core.rewards.rubric import record_of as record_of
