"""The facade: light to import, every model by name, and refusals that name the nearest."""

import subprocess
import sys

import pytest

import interp
from tests.refusals import refused


def test_the_facade_and_the_command_line_import_no_torch():
    code = "import sys, interp, circuits, reports, interp.cli; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"


test_an_unknown_model_is_refused_with_the_nearest = refused(
    (lambda: interp.load("wma-handwird"), "unknown model 'wma-handwird'; did you mean 'wma-handwired'"),
    (lambda: interp.load("runs/none"), r"no checkpoint folder at 'runs/none'"),
)


def test_models_are_listed_task_by_task():
    listed = [record.task for record in interp.models()]
    assert listed == sorted(listed, key=[task.key for task in interp.tasks.every()].index)
    names = {record.name for record in interp.models()}
    assert {"wma-handwired", "wma-learned", "wma-learned-wide", "qlearning-handwired", "qlearning-learned"} <= names


test_a_size_that_a_learned_model_does_not_serve_names_those_that_do = refused(
    (
        lambda: interp.load("wma-learned", n_experts=3),
        r"serves n_experts 4. Models for n_experts=3: wma-handwired, wma-learned-wide",
    ),
    (
        lambda: interp.load("qlearning-learned", n_states=9),
        r"n_actions 2 to 4, n_states 2 to 8. Models for n_states=9: qlearning-handwired",
    ),
    (lambda: interp.load("wma-learned", n_experts=4), r"so it takes no n_experts=4$"),
    (lambda: interp.load("wma-learned", gamma=0.5), r"so it takes no gamma=0.5$"),
)


def test_a_misspelled_attribute_is_an_error():
    with pytest.raises(AttributeError, match="no attribute 'laod'"):
        interp.laod  # noqa: B018
