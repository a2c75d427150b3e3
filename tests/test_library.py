"""The facade: light to import, every model by name, and refusals that name the nearest."""

import subprocess
import sys

import pytest

import interp
from interp.errors import InputError


def test_the_facade_and_the_command_line_import_no_torch():
    code = "import sys, interp, circuits, reports, interp.cli; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"


def test_every_listed_model_loads_and_names_itself():
    for record in interp.models():
        model = interp.load(record.name)
        assert model.config.name == record.name
        assert not model.training


def test_an_unknown_model_is_refused_with_the_nearest():
    with pytest.raises(InputError, match="unknown model 'wma-handwird'; did you mean 'wma-handwired'"):
        interp.load("wma-handwird")
    with pytest.raises(InputError, match=r"no checkpoint folder at 'runs/none'"):
        interp.load("runs/none")


def test_a_misspelled_attribute_is_an_error():
    with pytest.raises(AttributeError, match="no attribute 'laod'"):
        interp.laod  # noqa: B018
