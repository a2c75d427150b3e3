"""The rooms: which may know a task, and which way imports go.

A neutral room that asks which task it is, or imports a task's folder, is a place to edit for every new task. These
tests read the source, so they hold for code that no other test runs.
"""

from __future__ import annotations

import ast
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import interp.tasks

ROOT = Path(__file__).parents[1]
PACKAGES = ("interp", "probes", "circuits", "reports")
"""In the order of imports: a package may import itself and those before it."""
LOOK_UP = ("interp/library.py", "interp/cli/")
"""The facade: looks circuits, probes and reports up inside functions."""
ABOUT_A_TASK = ("interp/tasks/", "interp/llm/", "reports/tasks/", "reports/llm.py", "circuits/")
"""What may know a task: its folder, language models as learners of expert advice, its report parts, its circuits."""
TASKS = {module.name for module in pkgutil.iter_modules(interp.tasks.__path__) if module.ispkg} | {"wma"}
CLASSES = {"ExpertEpisodes", "MDPEpisodes", "MDPs", "ExpertRound", "QLearningRound"}


def sources() -> Iterator[Path]:
    for package in PACKAGES:
        yield from sorted((ROOT / package).rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def neutral() -> list[Path]:
    """The files that must not know any task."""
    return [p for p in sources() if name_of(p) == "interp/tasks/__init__.py" or not name_of(p).startswith(ABOUT_A_TASK)]


def imports(tree: ast.AST) -> Iterator[tuple[str, bool]]:
    """Every module that a file imports, and whether that happens inside a function or only for type checkers."""
    inside: set[ast.AST] = set()
    for node in ast.walk(tree):
        guarded = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        if isinstance(node, ast.FunctionDef | ast.Lambda) or guarded:
            inside.update(ast.walk(node))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node in inside) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module, node in inside
            yield from ((f"{node.module}.{alias.name}", node in inside) for alias in node.names)


def switches(tree: ast.AST) -> list[str]:
    """Where a file asks which task it is: a task's key as a string, or a check for one of its classes."""
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    asked = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node.value in TASKS and id(node) not in docstrings:
            asked.append(f"line {node.lineno}: {node.value!r}")
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance":
            names = {name.id for name in ast.walk(node.args[1]) if isinstance(name, ast.Name)}
            asked += [f"line {node.lineno}: isinstance of {name}" for name in sorted(names & CLASSES)]
    return asked


def test_a_switch_is_seen() -> None:
    code = (
        'def f(x):\n    """experts"""\n    if x.task == "experts" or isinstance(x, MDPEpisodes | int):\n        pass\n'
    )
    assert len(switches(ast.parse(code))) == 2


def test_no_neutral_room_asks_which_task_it_is() -> None:
    asked = {name_of(p): found for p in neutral() if (found := switches(ast.parse(p.read_text())))}
    assert asked == {}


def test_no_neutral_room_imports_a_task() -> None:
    folders = tuple(f"interp.tasks.{task}" for task in (*TASKS, "mdp"))
    guilty = {
        name_of(path): sorted(
            {module for module, _ in imports(ast.parse(path.read_text())) if module.startswith(folders)}
        )
        for path in neutral()
    }
    assert {path: modules for path, modules in guilty.items() if modules} == {}


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_import_only_those_before_them(package: str) -> None:
    later = PACKAGES[PACKAGES.index(package) + 1 :]
    upward = []
    for path in sources():
        if name_of(path).startswith(f"{package}/"):
            for module, looked_up in imports(ast.parse(path.read_text())):
                if module.split(".")[0] in later and not (looked_up and name_of(path).startswith(LOOK_UP)):
                    upward.append(f"{name_of(path)} imports {module}")
    assert upward == []


def test_no_two_modules_import_each_other() -> None:
    modules = {name_of(p).removesuffix(".py").removesuffix("/__init__").replace("/", "."): p for p in sources()}
    graph = {
        name: {m for m, looked_up in imports(ast.parse(p.read_text())) if m in modules and m != name and not looked_up}
        for name, p in modules.items()
    }
    # A package's __init__ that re-exports its modules is no circle: what a module imports from its own package is.
    done: set[str] = set()

    def visit(name: str, above: tuple[str, ...]) -> None:
        assert name not in above, " -> ".join((*above[above.index(name) :], name))
        if name not in done:
            for other in graph[name]:
                if not name.startswith(f"{other}."):
                    visit(other, (*above, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def test_every_benchmark_can_be_run():
    """``make bench`` runs the ``main`` of every file here but those that begin with an underscore."""
    trees = {path.name: ast.parse(path.read_text()) for path in (ROOT / "tests" / "benchmarks").glob("[!_]*.py")}
    defined = {name: {node.name for node in t.body if isinstance(node, ast.FunctionDef)} for name, t in trees.items()}
    assert len(defined) > 5
    assert [name for name, functions in defined.items() if "main" not in functions] == []
