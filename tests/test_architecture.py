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
FOLDERS_OF_TASKS = {
    module.name for module in pkgutil.iter_modules(interp.tasks.__path__) if module.ispkg
}
TASKS = FOLDERS_OF_TASKS | {"wma"}
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


def module_of(path: Path) -> str:
    """Return the dotted name by which a file is imported."""
    without_suffix = name_of(path).removesuffix(".py")
    return without_suffix.removesuffix("/__init__").replace("/", ".")


MODULES = {module_of(path): path for path in sources(*PACKAGES)}


def room(module: str) -> str:
    parts = name_of(MODULES[module]).split("/")
    if parts[0] == "interp":
        return "/".join(parts[:2])
    return parts[0]


def is_neutral(path: Path) -> bool:
    """True if a file must not know any task."""
    name = name_of(path)
    return name == "interp/tasks/__init__.py" or not name.startswith(ABOUT_A_TASK)


def neutral() -> list[Path]:
    """The files that must not know any task."""
    return [path for path in sources(*PACKAGES) if is_neutral(path)]


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
        if isinstance(node, ast.JoinedStr) and _begins_with_its_own_name(node):
            yield from (name for name in MODULES if name.startswith(f"{module}."))


def _begins_with_its_own_name(text: ast.JoinedStr) -> bool:
    """True for f"{__name__}...", which names modules below the file's own."""
    if not text.values or not isinstance(text.values[0], ast.FormattedValue):
        return False
    return ast.unparse(text.values[0].value) == "__name__"


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
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr):
                docstrings.add(first.value)
    places = []
    for node in nodes(tree):
        if isinstance(node, ast.Constant) and node not in docstrings and node.value in TASKS:
            places.append(f"line {node.lineno}: {node.value!r}")
        if isinstance(node, ast.Call):
            for name in _task_classes_asked_for(node):
                places.append(f"line {node.lineno}: isinstance of {name}")
    return places


def _task_classes_asked_for(call: ast.Call) -> list[str]:
    """The tasks' classes in the second argument of ``isinstance(...)``."""
    if ast.unparse(call.func) != "isinstance":
        return []
    in_classes = ast.walk(call.args[1])
    names = {name.id for name in in_classes if isinstance(name, ast.Name)}
    return sorted(names & CLASSES)


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
    groups = set()
    for node in graph:
        if node in below[node]:
            both_ways = [n for n in below[node] if node in below.get(n, ())]
            groups.add(tuple(sorted(both_ways)))
    return sorted(list(group) for group in groups if len(group) > 1)


def test_a_switch_is_seen() -> None:
    condition = 'x.task == "experts" or isinstance(x, MDPEpisodes | int)'
    code = f'def f(x):\n    """experts"""\n    if {condition}:\n        pass\n'
    assert len(switches(ast.parse(code))) == 2


@pytest.mark.long
def test_no_neutral_room_asks_which_task_it_is() -> None:
    rooms_asking = {
        name_of(p): tasks_named for p in neutral() if (tasks_named := switches(parsed(p)))
    }
    assert rooms_asking == {}


@pytest.mark.long
def test_tasks_stand_below_what_trains_evaluates_and_intervenes() -> None:
    """A task's record names its goal and its evaluation by kind (``interp.support.lazy.lazy_registered``),
    its claims as texts."""
    upward = []
    for module, named in arrows().items():
        if module.startswith("interp.tasks"):
            upward += [(module, name) for name in named if name.startswith(ABOVE_THE_TASKS)]
    assert upward == []
    for task in interp.tasks.list_tasks():
        assert task.training() is not None
        assert task.key == "bandit" or task.evaluation() is not None


def test_no_neutral_room_imports_a_task() -> None:
    folders = tuple(f"interp.tasks.{task}" for task in (*TASKS, "mdp"))
    guilty = []
    for path in neutral():
        modules = {module for module, _ in imports(parsed(path))}
        guilty += [(name_of(path), module) for module in modules if module.startswith(folders)]
    assert guilty == []


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_import_only_those_before_them(package: str) -> None:
    later = PACKAGES[PACKAGES.index(package) + 1 :]
    upward = []
    for path in sources(*PACKAGES):
        if name_of(path).startswith(f"{package}/"):
            may_look_up = name_of(path).startswith(LOOK_UP)
            for module, inside in imports(parsed(path)):
                is_looked_up = inside and may_look_up
                if module.split(".")[0] in later and not is_looked_up:
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
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}
    assert circles(graph) == [["b", "c"]]
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
    between: dict[tuple[str, str], tuple[str, str]] = {}
    graph: dict[str, set[str]] = {}
    for module, named in arrows().items():
        for imported in named:
            above, below = room(module), room(imported)
            if above != below:
                between[above, below] = (module, imported)
                graph.setdefault(above, set()).add(below)
    up = []
    for group in circles(graph):
        up += [files for pair, files in between.items() if set(pair) <= set(group)]
    assert up == []


def test_every_benchmark_can_be_run():
    """``make bench`` runs the ``main`` of every file here but those that begin with an underscore."""
    paths = list((ROOT / "tests" / "benchmarks").glob("[!_]*.py"))
    assert len(paths) > 5
    for path in paths:
        functions = [node for node in parsed(path).body if isinstance(node, ast.FunctionDef)]
        assert "main" in {function.name for function in functions}, path.name


ABOUT_TRANSFORMERS = cases(__file__, "architecture ABOUT_TRANSFORMERS")
"""Files outside the model, its training and circuits that name the class of transformers, and why."""


def test_neutral_rooms_take_machines_and_do_not_name_the_class_of_transformers() -> None:
    importing = {
        name_of(path) for path in sources(*PACKAGES) if _imports_the_transformer(parsed(path))
    }
    within = ("interp/model/", "interp/training/", "circuits/")
    elsewhere = {name for name in importing if not name.startswith(within)}
    assert elsewhere <= set(ABOUT_TRANSFORMERS)
    assert len(importing) <= 25


def _imports_the_transformer(tree: ast.AST) -> bool:
    """True if some ``from ... import`` of a file names the class of transformers."""
    names: set[str] = set()
    for node in nodes(tree):
        if isinstance(node, ast.ImportFrom):
            names |= {alias.name for alias in node.names}
    return "HookedLatentTransformer" in names


def test_the_contract_of_a_machine_is_one_short_file() -> None:
    assert count_module(ROOT / "interp" / "core" / "machine.py").operations <= 125


STEPPERS = cases(__file__, "architecture STEPPERS")
"""Who runs rounds of a machine, and why."""


def rounds_run(tree: ast.AST) -> list[str]:
    """Where a file runs a round of a machine: ``run_round(...)``, or ``step`` of what is called a model or machine."""
    places = []
    for node in nodes(tree):
        if isinstance(node, ast.Call):
            function_name = ast.unparse(node.func)
            parts = function_name.split(".")
            is_step = parts[-2:] in (["model", "step"], ["machine", "step"])
            if is_step or parts[-1] == "run_round":
                places.append(f"line {node.lineno}: {function_name}")
    return places


def test_rounds_are_run_in_few_places() -> None:
    code = "for t in at: run_round(m, x)\nself.model.step(a)\noptimizer.step()\nalgorithm.step(s)"
    assert len(rounds_run(ast.parse(code))) == 2
    running = {}
    for path in sources(*PACKAGES):
        places = rounds_run(parsed(path))
        if places:
            running[name_of(path)] = places
    assert {name: places for name, places in running.items() if name not in STEPPERS} == {}
    assert set(STEPPERS) <= set(running)


def test_interventions_take_at_most_eight_arguments_and_look_nothing_up() -> None:
    """What is shared is passed as rollouts; what belongs together is passed as a record."""
    long, lookups = [], []
    for path in (ROOT / "interp" / "interventions").rglob("*.py"):
        tree = parsed(path)
        lookups += [name for name, _ in imports(tree) if name.startswith("interp.support.session")]
        for node in nodes(tree):
            if isinstance(node, ast.FunctionDef):
                parameters = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
                names = {parameter.arg for parameter in parameters}
                if len(names - {"self", "cls"}) > 8:
                    long.append(node.name)
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
            end = ".".join(parts[i:])
            ends.setdefault(end, set()).add(name)
    commands = [name for name in MODULES if name.startswith("interp.cli")]
    unseen = set(MODULES)
    ahead = [*PACKAGES, *commands]
    while ahead:
        module = ahead.pop()
        if module not in unseen:
            continue
        unseen.remove(module)
        files = [MODULES[module]]
        stub = MODULES[module].with_suffix(".pyi")
        if stub.is_file():  # of a package whose names are imported when first used
            files.append(stub)
        for path in files:
            tree = parsed(path)
            ahead += [name for name, _ in imports(tree) if name in MODULES]
            for node in nodes(tree):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    ahead += ends.get(node.value.partition(":")[0], ())
        ahead.append(module.rpartition(".")[0] or module)
    assert unseen == set(BY_ITS_OWN_NAME)
