"""Programs that begin with `PYTHON` are forks, also after a test ran a command in its own process."""

import os
import subprocess
from collections.abc import Callable

import pytest
from forked_python import PYTHON

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forks")]
PROGRAM = """
import sys
print("rg_env.training.trainer" in sys.modules)
from huggingface_hub import HfApi, constants
print(HfApi().endpoint, constants.HF_HUB_OFFLINE)
"""


@pytest.mark.parametrize(
    ("variables", "printed"),
    [
        ({}, "True\nhttps://huggingface.co False\n"),
        ({"HF_ENDPOINT": "http://127.0.0.1:9"}, "True\nhttp://127.0.0.1:9 False\n"),
        ({"HF_HUB_OFFLINE": "1"}, "False\nhttps://huggingface.co True\n"),
    ],
)
def test_libraries_are_there_at_the_start(
    rg_env: Callable[..., object], variables: dict[str, str], printed: str
) -> None:
    """A variable that libraries read when they are imported takes effect, because the program then starts as usual."""
    rg_env("tasks")  # sets variables of this process
    environment = {**os.environ, **variables}
    done = subprocess.run([*PYTHON, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == printed
