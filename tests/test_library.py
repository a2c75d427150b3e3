"""The facade: light to import, every model by name, and refusals that name the nearest."""

import pickle
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import interp
from interp.support.lazy import defer_import
from tests.refusals import refuses


@pytest.mark.long
def test_facades_the_command_line_and_sampling_are_light():
    """Reports are imported before a command knows what is asked; models are listed, MDPs drawn without torch; plays of
    language models are planned and scored without it and without httpx."""
    code = """
import sys, reports
print({"torch", "matplotlib", "jinja2", "pandas"} & set(sys.modules))
import interp, circuits, interp.cli, interp.tasks.mdp
circuits.models(), interp.tasks.mdp.sample(2, 2, 2, 2)
print("torch" in sys.modules)
import interp.llm.runner, interp.llm.scores
print({"torch", "httpx", "transformers"} & set(sys.modules))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split("\n") == ["set()", "False", "set()", ""]


@pytest.mark.long
def test_models_run_without_tokenizers_compiler_or_type_checker_and_transformer_lens_is_as_ever_when_more_is_wanted():
    code = """
import sys, interp.model.transformer, interp.interventions.alignment, transformer_lens as tl
from transformer_lens import ActivationCache, HookedRootModule
from transformer_lens.utilities import Slice
model = interp.load("wma-gru")
model.untrained()  # a mode of torch's dispatch watches it, which must not load the compiler
interp.rollout(model, interp.tasks.experts.sample(2, 3, 4, seed=0))
# beartype cannot be imported after nnsight or pyvene, which put methods on `object`
print({"transformers", "datasets", "pytest", "torch._dynamo", "beartype"} & set(sys.modules))
try:
    tl.HookedTransformer
except ImportError as error:
    print("was removed" in str(error))
from huggingface_hub import dataclasses
print(type(tl).__name__, dataclasses._validate_simple_type.__name__)  # what __init__ puts in its place
print(ActivationCache is tl.ActivationCache, Slice is tl.utilities.Slice, HookedRootModule is tl.HookedRootModule)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split("\n") == ["set()", "True", "module tolerant", "True True True", ""]


@pytest.mark.parametrize(
    "wanted", ["dir(put_off)", "put_off.Other", "import_module('put_off.model_bridge')"]
)
def test_a_deferred_package_is_the_real_one_and_runs_when_it_must(
    wanted: str, tmp_path: Path
) -> None:
    fails = "import os\nif 'FAILS' in os.environ: raise RuntimeError('not now')"
    init = f'"""What it is."""\nfrom .Thing import Thing\n{fails}\nfrom .Thing import Thing as Other\nran = object()'
    (tmp_path / "put_off").mkdir()
    for name, content in {
        "__init__": init,
        "Thing": "class Thing: pass",
        "model_bridge": "",
    }.items():
        (tmp_path / "put_off" / f"{name}.py").write_text(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        defer_import("put_off")
        put_off, thing = import_module("put_off"), import_module("put_off.Thing").Thing
        assert put_off.__doc__ == "What it is."
        assert put_off.Thing is thing
        assert "ran" not in vars(put_off)
        assert pickle.loads(pickle.dumps([thing, put_off])) == [thing, put_off]
        patch.setenv("FAILS", "1")
        with pytest.raises(RuntimeError, match="not now"):
            dir(put_off)
        patch.delenv("FAILS")
        eval(wanted)
        ran = put_off.ran
        assert type(put_off) is ModuleType
        assert put_off.Other is thing
        defer_import("put_off")  # imported before
        assert import_module("put_off").ran is ran
        assert not hasattr(put_off, "nothing")
    for name in [name for name in sys.modules if name.partition(".")[0] == "put_off"]:
        del sys.modules[name]


def test_an_unknown_model_is_refused_with_the_nearest():
    message = "unknown model 'wma-handwird'; did you mean 'wma-handwired'"
    refuses(message, interp.load, "wma-handwird")
    refuses(r"no checkpoint folder at 'runs/none'", interp.load, "runs/none")


def test_models_are_listed_task_by_task():
    listed = [record.task for record in interp.models()]
    in_order = [task.key for task in interp.tasks.list_tasks()]
    assert listed == sorted(listed, key=in_order.index)
    names = {record.name for record in interp.models()}
    assert {
        "wma-handwired",
        "wma-learned-additive",
        "wma-learned-wide",
        "qlearning-handwired",
        "qlearning-learned",
    } <= names


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        (
            "wma-learned-additive",
            {"n_experts": 3},
            r"serves n_experts 4. Models for n_experts=3: wma-handwired, wma-learned-wide",
        ),
        (
            "qlearning-learned",
            {"n_states": 9},
            r"n_actions 2 to 4, n_states 2 to 8. Models for n_states=9: qlearning-handwired",
        ),
        ("wma-learned-additive", {"n_experts": 4}, r"so it takes no n_experts=4$"),
        ("wma-learned-additive", {"gamma": 0.5}, r"so it takes no gamma=0.5$"),
    ],
    ids=["fewer experts", "more states", "its own size", "no size"],
)
def test_a_size_that_a_learned_model_does_not_serve_names_those_that_do(name, arguments, message):
    refuses(message, interp.load, name, **arguments)


def test_a_misspelled_attribute_is_an_error():
    with pytest.raises(AttributeError, match="no attribute 'laod'"):
        interp.laod  # noqa: B018
