"""The mutation runner kills what tests notice and reports what they do not, and the judge's tests notice."""

import ast
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.mutants import TARGETS, install, mutants

ROOT = Path(__file__).parents[1]
NAPKIN = """
LIMIT = 3

def best(numbers):
    return max(number for number in numbers if number < LIMIT)
"""
CASE = "from napkin import best\n\ndef test_best():\n    assert best([1, 2, 9]) == 2\n"


def run(folder, *arguments):
    env = {"PYTHONPATH": f"{ROOT}:{folder}", "PATH": "", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.mutants", *arguments]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)


@pytest.mark.long
def test_planted_mistakes_are_killed_where_a_case_tells_and_reported_where_none_does(tmp_path):
    """The largest number below 3, of 1, 2, 9: the two of six mutants that are at the limit are missed."""
    (tmp_path / "napkin.py").write_text(NAPKIN)
    (tmp_path / "test_napkin.py").write_text(CASE)
    done = run(tmp_path, "napkin.py", "--tests", "test_napkin.py")
    assert "6 mutants, 0 equivalent, 4 of 6 killed" in done.stdout, done.stderr
    assert all(line in done.stdout for line in ("3 -> LIMIT = 4", "< LIMIT -> number <= L"))
    assert len(done.stdout.splitlines()) == 3
    assert done.returncode == 1


def test_every_operator_makes_its_mutant():
    source = (
        "def f(a, b):\n"
        "    if not a.low < b + 1:\n"
        "        return 'yes' if any(a) else min(a, b)\n"
        "    return [x for x in a if x and b]\n"
    )
    assert {mutant.name.partition(" -> ")[2] for mutant in mutants(source)} >= {
        "a.low <= b + 1", "a.low >= b + 1", "b - 1", "b + 2", "a.high", "not not a.low < b + 1", "all(a)", "max(a, b)",
        "x or b", "for x in a if x and b or True", "'undecided' if any(a) else min(a, b)",
    }  # fmt: skip


def test_a_default_is_shown_as_its_argument_alone():
    names = [
        mutant.name for mutant in mutants("def f(a, b=3, *, c, d=0.5):\n    return a, b, c, d")
    ]
    assert names == ["f: b=3 -> b=4", "f: d=0.5 -> d=0.55"]


def test_a_mutant_that_stops_the_import_of_its_file_raises_an_import_error():
    """Such a mutant is killed, since every test imports the file; other errors of `install` are its own."""
    module = ModuleType("napkin")
    module.__file__ = "napkin.py"
    with pytest.raises(ImportError, match="napkin cannot be imported"):
        install(ast.parse("LIMIT = 1 / 0"), module)


def test_targets_exist():
    for file, target in TARGETS.items():
        assert all((ROOT / path.partition("::")[0]).is_file() for path in (file, *target.tests)), (
            file
        )
        path, _, names = file.partition("::")
        source = ast.parse((ROOT / path).read_text("utf-8"))
        named = ["module", *(part.name for part in source.body if hasattr(part, "name"))]
        for name in filter(None, names.split(",")):
            start = name.partition(".")[0]
            assert any(part.startswith(start) for part in named), f"{path} has no {name}"


def read_definitions(path, scopes):
    """Return the source of those parts of a file, at its top level, in which changes have one of the scopes."""
    source = ast.parse((ROOT / path).read_text("utf-8"))
    wanted = {scope.partition(".")[0] for scope in scopes}
    parts = [part for part in source.body if getattr(part, "name", "module") in wanted]
    return ast.unparse(ast.Module(parts, type_ignores=[]))


@pytest.mark.parametrize("file", [file for file, target in TARGETS.items() if target.equivalent])
def test_what_is_listed_as_equivalent_is_a_mutant_of_its_file(file):
    """A function or a name in it that changed leaves an entry behind, which only the slow test would notice."""
    path, _, names = file.partition("::")
    listed = set(TARGETS[file].equivalent)
    scopes = {name.partition(":")[0] for name in listed}
    possible = {mutant.name for mutant in mutants(read_definitions(path, scopes))}
    assert listed <= possible
    assert all(name.startswith(tuple(names.split(","))) for name in listed)


@pytest.mark.slow(reason="a run of the tests for each of some hundred mutants a file: minutes")
@pytest.mark.parametrize("file", TARGETS)
def test_the_default_tests_notice_mistakes_in_what_judges(file):
    done = run(ROOT, file)
    assert done.returncode == 0, done.stdout + done.stderr
