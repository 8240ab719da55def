"""Small environments and trainers on the tiny policy."""

from training_fixtures import *  # noqa: F403  fixtures
