"""Every public name says what it is, and every function of the packages' own lists is shown at work."""

import ast
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

ROOMS = ("interp", "probes", "circuits", "reports", "lab")
LISTS = ("interp", "interp.tasks", "probes", "circuits")
"""Packages whose ``__all__`` is what users call."""


def modules() -> Iterator[ModuleType]:
    for room in ROOMS:
        yield importlib.import_module(room)
        folders = importlib.import_module(room).__path__
        for module_info in pkgutil.walk_packages(folders, prefix=f"{room}."):
            is_private = "._" in module_info.name
            if not is_private:
                yield importlib.import_module(module_info.name)


def own(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """The public functions and classes that a module defines."""
    for name, value in vars(module).items():
        is_defined_here = getattr(value, "__module__", None) == module.__name__
        is_code = inspect.isclass(value) or inspect.isfunction(value)
        if is_defined_here and is_code and not name.startswith("_"):
            yield name, value


def test_every_public_module_function_and_class_has_a_docstring() -> None:
    counted, silent = 0, []
    for module in modules():
        if not module.__doc__:
            silent.append(module.__name__)
        for name, value in own(module):
            counted += 1
            docstring = value.__doc__ or ""
            is_by_dataclass = docstring.startswith(f"{name}(")
            if not docstring or is_by_dataclass:
                silent.append(f"{module.__name__}.{name}")
    assert silent == []
    assert counted > 900


def test_no_function_takes_two_ways_to_ask_for_less_work() -> None:
    """A record of sizes, ``budget=`` or ``effort=``, or ``quick=`` where there is no such record."""
    functions = [
        value for module in modules() for _, value in own(module) if inspect.isfunction(value)
    ]
    ways = {"budget", "effort", "quick"}
    takes = [ways & inspect.signature(function).parameters.keys() for function in functions]
    assert max(map(len, takes)) == 1
    n_of_records = takes.count({"budget"}) + takes.count({"effort"})
    assert min(n_of_records, takes.count({"quick"})) >= 3


def methods(cls: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties that a class defines, without the fields of its instances."""
    fields = getattr(cls, "__dataclass_fields__", ())
    for name, member in vars(cls).items():
        if name.startswith("_") or name in fields:
            continue
        function = getattr(
            member, "__func__", getattr(member, "fget", getattr(member, "func", member))
        )
        if inspect.isfunction(function):
            yield name, function


def test_every_public_method_has_a_docstring_of_its_own_or_of_what_it_overrides() -> None:
    counted, silent = 0, []
    for module in modules():
        for name, cls in own(module):
            if not inspect.isclass(cls):
                continue
            for method, function in methods(cls):
                counted += 1
                overridden = [vars(base).get(method) for base in cls.__mro__]
                is_described = any(getattr(member, "__doc__", "") for member in overridden)
                if not function.__doc__ and not is_described:
                    silent.append(f"{module.__name__}.{name}.{method}")
    assert silent == []
    assert counted > 500


@pytest.mark.parametrize("name", LISTS)
def test_what_users_call_is_shown_at_work(name: str) -> None:
    """In its own docstring, or in that of the package that lists it or of the module that it is in."""
    package = importlib.import_module(name)
    functions = [key for key in package.__all__ if inspect.isfunction(getattr(package, key, None))]
    assert functions
    for key in functions:
        function = getattr(package, key)
        module = importlib.import_module(function.__module__)
        shown = "\n".join(example_lines(described) for described in (function, package, module))
        calls = (f"{function.__name__}(", f"{key}(")
        assert any(call in shown for call in calls), f"{name}.{key}"


def example_lines(described: Any) -> str:
    """The lines of a docstring's examples."""
    lines = (inspect.getdoc(described) or "").splitlines()
    return "\n".join(line for line in lines if line.lstrip().startswith((">>>", "...")))


@pytest.mark.long
def test_no_word_of_a_docstring_becomes_a_link() -> None:
    """reStructuredText takes a word that ends in an underscore for the name of a link, and Sphinx fails."""
    links = []
    for module in modules():
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                without_code = re.sub("`+[^`]*`+", "", ast.get_docstring(node) or "")
                links += re.findall(r"(?<![.\w])[A-Za-z]\w*_(?=[\s\",;)])", without_code)
    assert links == []


def test_rooms_are_doors_of_their_packages() -> None:
    """``import interp; interp.tasks`` works, whatever was imported before, and both packages list models alike."""
    program = (
        "import interp, circuits\n"
        "doors = [interp.tasks.get, interp.interventions.__doc__, interp.audit.__doc__, circuits.benchmark.__doc__]\n"
        "assert all(doors) and {'tasks', 'interventions', 'audit'} <= set(dir(interp))\n"
        "assert {'compare', 'benchmark'} <= set(dir(circuits))\n"
        "assert circuits.models() == [m for m in interp.models() if m.kind == 'handwired'] != []"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
