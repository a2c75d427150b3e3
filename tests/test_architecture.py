"""The rooms: which may know a task, and which way imports go.

A neutral room that asks which task it is, or imports a task's folder, is a place to edit for every new task. These
tests read the source, so they hold for code that no other test runs.
"""

import ast
import pkgutil
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import interp.tasks
from tests.cases import cases
from tests.census import PACKAGES, ROOT, count_module, sources

LOOK_UP = ("interp/__init__.py", "interp/cli/")
"""The facade: says where the handwired models are found, and looks circuits, probes and reports up inside functions."""
TASKS = {module.name for module in pkgutil.iter_modules(interp.tasks.__path__) if module.ispkg} | {
    "wma"
}
ABOUT_A_TASK = (
    *(
        "interp/tasks/",
        *(f"interp/evaluation/{task}" for task in sorted(TASKS)),
        "interp/training/goals/",
    ),
    *(
        "interp/llm/",
        "reports/tasks/",
        "interp/choices/",
        "reports/ledger/",
        "reports/llm.py",
        "reports/choices.py",
        "circuits/",
    ),
)
"""What may know a task: its folder, what is measured of its models and what they are trained on, language models as
learners of expert advice, recorded choices, its report parts, its circuits."""
ABOVE_THE_TASKS = (
    "interp.interventions",
    "interp.training",
    "interp.evaluation",
    "interp.audit",
    "interp.machines",
)
"""Rooms that build on tasks, which a task names by what they ship and never by their modules."""
CLASSES = {"ExpertEpisodes", "MDPEpisodes", "MDPs", "ExpertRound", "QLearningRound"}


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


MODULES = {
    name_of(p).removesuffix(".py").removesuffix("/__init__").replace("/", "."): p
    for p in sources(*PACKAGES)
}


def room(module: str) -> str:
    parts = name_of(MODULES[module]).split("/")
    return "/".join(parts[:2]) if parts[0] == "interp" else parts[0]


def neutral() -> list[Path]:
    """The files that must not know any task."""
    return [
        p
        for p in sources(*PACKAGES)
        if name_of(p) == "interp/tasks/__init__.py" or not name_of(p).startswith(ABOUT_A_TASK)
    ]


@cache
def nodes(tree: ast.AST) -> list[ast.AST]:
    return list(ast.walk(tree))


@cache
def imports(tree: ast.AST) -> list[tuple[str, bool]]:
    """Every module that a file imports, and whether that happens inside a function or only for type checkers."""
    modules: list[tuple[str, bool]] = []
    ahead: list[tuple[ast.AST, bool]] = [(tree, False)]
    while ahead:
        node, inside = ahead.pop()
        guarded = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        inside = inside or guarded or isinstance(node, ast.FunctionDef | ast.Lambda)
        ahead += [(child, inside) for child in ast.iter_child_nodes(node)]
        if isinstance(node, ast.Import):
            modules += [(alias.name, inside) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                modules.append((submodule if submodule in MODULES else node.module, inside))
    return modules


def strings(tree: ast.AST, module: str) -> Iterator[str]:
    """Every module that a string of a file names: "module:name", "a.module", or f"{__name__}..." for all below it."""
    for node in nodes(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            name, colon, _ = node.value.partition(":")
            if name in MODULES and (colon or "." in name):
                yield name
        first = node.values[0] if isinstance(node, ast.JoinedStr) and node.values else None
        if isinstance(first, ast.FormattedValue) and ast.unparse(first.value) == "__name__":
            yield from (name for name in MODULES if name.startswith(f"{module}."))


@cache
def arrows() -> dict[str, set[str]]:
    """Every module with those that it imports, anywhere in its file, or names in a string.

    A package that names its own modules in strings hands them on when they are asked for; that is no arrow.
    """
    edges: dict[str, set[str]] = {}
    for module, path in MODULES.items():
        tree = parsed(path)
        imported = {name for name, _ in imports(tree) if name in MODULES}
        named = {name for name in strings(tree, module) if not name.startswith(f"{module}.")}
        edges[module] = (imported | named) - {module}
    return edges


def switches(tree: ast.AST) -> list[str]:
    """Where a file asks which task it is: a task's key as a string, or a check for one of its classes."""
    docstrings = set()
    for node in nodes(tree):
        is_documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        if is_documented and node.body and isinstance(node.body[0], ast.Expr):
            docstrings.add(id(node.body[0].value))
    places = []
    for node in nodes(tree):
        if isinstance(node, ast.Constant) and node.value in TASKS and id(node) not in docstrings:
            places.append(f"line {node.lineno}: {node.value!r}")
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance":
            names = {name.id for name in ast.walk(node.args[1]) if isinstance(name, ast.Name)}
            places += [
                f"line {node.lineno}: isinstance of {name}" for name in sorted(names & CLASSES)
            ]
    return places


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Sets of two or more nodes that all reach each other."""

    def reached(node: str) -> set[str]:
        seen: set[str] = set()
        ahead = [node]
        while ahead:
            new = graph.get(ahead.pop(), set()) - seen
            seen |= new
            ahead += new
        return seen

    below = {node: reached(node) for node in graph}
    groups = {
        tuple(sorted(n for n in below[node] if node in below.get(n, ())))
        for node in graph
        if node in below[node]
    }
    return sorted(list(group) for group in groups if len(group) > 1)


def test_a_switch_is_seen() -> None:
    condition = 'x.task == "experts" or isinstance(x, MDPEpisodes | int)'
    code = f'def f(x):\n    """experts"""\n    if {condition}:\n        pass\n'
    assert len(switches(ast.parse(code))) == 2


def test_no_neutral_room_asks_which_task_it_is() -> None:
    rooms_asking = {
        name_of(p): tasks_named for p in neutral() if (tasks_named := switches(parsed(p)))
    }
    assert rooms_asking == {}


def test_tasks_stand_below_what_trains_evaluates_and_intervenes() -> None:
    """A task's record names its goal and its evaluation by kind (``interp.support.lazy.above``),
    its claims as texts."""
    upward = {
        module: named for module, named in arrows().items() if module.startswith("interp.tasks")
    }
    assert {
        m: up
        for m, named in upward.items()
        if (up := {n for n in named if n.startswith(ABOVE_THE_TASKS)})
    } == {}
    for task in interp.tasks.every():
        assert task.training() is not None
        assert task.key == "bandit" or task.evaluation() is not None


def test_no_neutral_room_imports_a_task() -> None:
    folders = tuple(f"interp.tasks.{task}" for task in (*TASKS, "mdp"))
    guilty = {
        name_of(path): sorted(
            {module for module, _ in imports(parsed(path)) if module.startswith(folders)}
        )
        for path in neutral()
    }
    assert {path: modules for path, modules in guilty.items() if modules} == {}


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_import_only_those_before_them(package: str) -> None:
    later = PACKAGES[PACKAGES.index(package) + 1 :]
    upward = []
    for path in sources(*PACKAGES):
        if name_of(path).startswith(f"{package}/"):
            for module, looked_up in imports(parsed(path)):
                if module.split(".")[0] in later and not (
                    looked_up and name_of(path).startswith(LOOK_UP)
                ):
                    upward.append(f"{name_of(path)} imports {module}")
    assert upward == []


def test_no_package_imports_the_lab() -> None:
    """It is not installed: neither code nor a string that names a module may need it."""
    trees = {name_of(path): parsed(path) for path in sources(*PACKAGES)}
    named = []
    for path, tree in trees.items():
        for module, _ in imports(tree):
            if module.split(".")[0] == "lab":
                named.append(f"{path} imports {module}")
        for node in nodes(tree):
            if isinstance(node, ast.Constant) and _names_the_lab(node.value):
                named.append(f"{path} names {node.value}")
    assert named == []
    assert _names_the_lab("lab.known:gallery")
    assert not _names_the_lab("label")
    assert not _names_the_lab("lab/known says")


def _names_the_lab(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(r"lab(\.[\w.]+)?(:\w+)?", value) is not None


def test_circles_are_seen() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [["b", "c"]]
    code = "import a\nif TYPE_CHECKING:\n    from x import y\ndef f():\n    from z import w"
    assert {name for name, _ in imports(ast.parse(code))} == {"a", "x", "z"}
    named = 'lazy("interp.support.files:read_json"); {"interp.support.checks"}; "interp"'
    named += '; import_module(f"{__name__}.{x}")'
    below = {name for name in MODULES if name.startswith("interp.llm.")}
    assert set(strings(ast.parse(named), "interp.llm")) == {
        "interp.support.files",
        "interp.support.checks",
        *below,
    }


def test_no_files_import_each_other_in_a_circle() -> None:
    """Imports for type checkers alone, imports inside functions and strings that name modules count, too."""
    assert circles(arrows()) == []


def test_no_arrow_between_rooms_runs_back_up() -> None:
    """Rooms stand on floors: what a room imports stands below it, so no two rooms reach each other.

    A room is a file or a folder of ``interp``, or one of the other packages.
    """
    between = {
        (room(a), room(b)): (a, b)
        for a, named in arrows().items()
        for b in named
        if room(a) != room(b)
    }
    graph: dict[str, set[str]] = {}
    for above, below in between:
        graph.setdefault(above, set()).add(below)
    entangled = [set(group) for group in circles(graph)]
    up = {
        pair: files
        for pair, files in between.items()
        if any(set(pair) <= group for group in entangled)
    }
    assert up == {}


def test_every_benchmark_can_be_run():
    """``make bench`` runs the ``main`` of every file here but those that begin with an underscore."""
    trees = {path.name: parsed(path) for path in (ROOT / "tests" / "benchmarks").glob("[!_]*.py")}
    defined = {
        name: {node.name for node in t.body if isinstance(node, ast.FunctionDef)}
        for name, t in trees.items()
    }
    assert len(defined) > 5
    assert [name for name, functions in defined.items() if "main" not in functions] == []


ABOUT_TRANSFORMERS = cases(__file__, "architecture ABOUT_TRANSFORMERS")
"""Files outside the model, its training and circuits that name the class of transformers, and why."""


def test_neutral_rooms_take_machines_and_do_not_name_the_class_of_transformers() -> None:
    named = {
        name_of(path)
        for path in sources(*PACKAGES)
        for node in nodes(parsed(path))
        if isinstance(node, ast.ImportFrom)
        and any(alias.name == "HookedLatentTransformer" for alias in node.names)
    }
    within = ("interp/model/", "interp/training/", "circuits/")
    assert {name for name in named if not name.startswith(within)} <= set(ABOUT_TRANSFORMERS)
    assert len(named) <= 25


def test_the_contract_of_a_machine_is_one_short_file() -> None:
    assert count_module(ROOT / "interp" / "core" / "machine.py").operations <= 125


STEPPERS = cases(__file__, "architecture STEPPERS")
"""Who runs rounds of a machine, and why."""


def rounds_run(tree: ast.AST) -> list[str]:
    """Where a file runs a round of a machine: ``run_round(...)``, or ``step`` of what is called a model or machine."""
    calls_found = []
    for node in nodes(tree):
        if isinstance(node, ast.Call):
            function_name = ast.unparse(node.func)
            is_step = function_name.endswith(".step") and function_name.split(".")[-2] in (
                "model",
                "machine",
            )
            calls_found += (
                [f"line {node.lineno}: {function_name}"]
                if is_step or function_name.split(".")[-1] == "run_round"
                else []
            )
    return calls_found


def test_rounds_are_run_in_few_places() -> None:
    seen = rounds_run(
        ast.parse(
            "for t in at: run_round(m, x)\nself.model.step(a)\noptimizer.step()\nalgorithm.step(s)"
        )
    )
    assert len(seen) == 2
    running = {name_of(p): n_runs for p in sources(*PACKAGES) if (n_runs := rounds_run(parsed(p)))}
    assert {name: n_runs for name, n_runs in running.items() if name not in STEPPERS} == {}
    assert set(STEPPERS) <= set(running)


def test_interventions_take_at_most_eight_arguments_and_look_nothing_up() -> None:
    """What is shared is passed as rollouts; what belongs together is passed as a record."""
    long, lookups = [], []
    for path in (ROOT / "interp" / "interventions").rglob("*.py"):
        tree = parsed(path)
        lookups += [name for name, _ in imports(tree) if name.startswith("interp.support.session")]
        for node in nodes(tree):
            if isinstance(node, ast.FunctionDef):
                named = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                long += (
                    [node.name]
                    if len([function for function in named if function.arg not in ("self", "cls")])
                    > 8
                    else []
                )
    assert long == []
    assert lookups == []


BY_ITS_OWN_NAME = {
    "interp.interventions.mediation": "a method that users call: docs/method/mediation.md",
    "interp.machines.presets": "registers the presets of machines for training when a user imports it",
}
"""Modules that a user imports by their own names, and why."""


def test_every_module_is_reached_from_a_public_name_or_a_command() -> None:
    """From the packages' faces and the commands, by imports, by the names of modules in strings, or by their ends."""
    ends: dict[str, set[str]] = {}
    for name in MODULES:
        parts = name.split(".")
        for i in range(len(parts)):
            ends.setdefault(".".join(parts[i:]), set()).add(name)
    unseen, ahead = (
        set(MODULES),
        [*PACKAGES, *(name for name in MODULES if name.startswith("interp.cli"))],
    )
    while ahead:
        if (module := ahead.pop()) in unseen:
            unseen.remove(module)
            stub = MODULES[module].with_suffix(
                ".pyi"
            )  # of a package whose names are imported when first used
            for tree in map(parsed, [MODULES[module], *([stub] if stub.is_file() else [])]):
                ahead += [name for name, _ in imports(tree) if name in MODULES]
                for node in nodes(tree):
                    if isinstance(node, ast.Constant) and isinstance(node.value, str):
                        ahead += ends.get(node.value.partition(":")[0], ())
            ahead.append(module.rpartition(".")[0] or module)
    assert unseen == set(BY_ITS_OWN_NAME)
