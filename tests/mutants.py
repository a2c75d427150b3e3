"""Would the tests notice? Every small mistake is planted in a file, one at a time, and the tests behind it are run.

    python -m tests.mutants                                    # every file of TARGETS
    python -m tests.mutants circuits/compare/update.py         # one of them
    python -m tests.mutants FILE --tests tests/test_x.py       # any file, with the tests that stand behind it

``FILE::name,other`` asks only for functions and classes that begin so ("module" for its constants).
A mutant is the file with one change: a comparison, ``min``, ``any``, ``+``, ``and`` or a bound of an interval swapped,
a condition negated, a filter dropped, a number or a verdict's word changed. It is *killed* where a test fails, or runs
for much longer. Survivors are printed with their lines; the command exits with 1 where fewer than 95 % are killed.

Nothing is imported twice: this process loads what the tests load, and each mutant is a fork of it in which the code of
the file's functions, their defaults and the module's constants are replaced in place, so that everybody who imported
them meets the mutant. Bodies of classes (defaults of fields), decorators and annotations are not mutated, nor numbers
to 1e-6, which stand for rounding.
"""

import argparse
import ast
import contextlib
import gc
import importlib
import json
import os
import resource
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest

KILLED = 0.95
"""The share of mutants that the tests must kill."""


@dataclass(frozen=True)
class Target:
    """What stands behind a file.

    Attributes:
        tests: files of the default suite, or tests of them (``file::test``), those that take little time first.
        equivalent: mutants that no test can tell from the file, by their names as this script prints them: the reason.
    """

    tests: tuple[str, ...]
    equivalent: Mapping[str, str] = field(default_factory=dict)


def _read_targets() -> dict[str, Target]:
    text = Path(__file__).with_name("mutants.json").read_text("utf-8")
    return {
        file: Target(tuple(record["tests"]), record.get("equivalent", {}))
        for file, record in json.loads(text).items()
    }


TARGETS = _read_targets()
"""File -> what stands behind it, as ``mutants.json`` says."""

_ORDERS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
}
_EQUALITIES: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {**_ORDERS, **_EQUALITIES}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
}
_CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}
_BOUNDS = {"low": "high", "high": "low", "estimate": "low"}
_WORDS = {"yes": "undecided", "no": "yes", "undecided": "no"}
Change = Callable[[], Any]


@dataclass(frozen=True)
class Mutant:
    """One change of a file; ``name`` says the function and what became of which expression."""

    name: str
    line: int
    tree: ast.Module


def mutants(source: str) -> Iterator[Mutant]:
    """Every mutant of a source.

    >>> [mutant.name for mutant in mutants("def best(a, b):\\n    return max(a, b)")]
    ['best: max(a, b) -> min(a, b)']
    """
    seen: Counter[str] = Counter()
    for i in range(len(list(_changes(ast.parse(source))))):
        tree = ast.parse(source)
        scope, shown, line, change = next(islice(_changes(tree), i, None))
        before = ast.unparse(shown).strip()
        change()
        ast.fix_missing_locations(shown)
        try:
            compile(ast.fix_missing_locations(tree), "mutant", "exec")
        except SyntaxError:  # a keyword that is swapped with another one of the same call
            continue
        after = ast.unparse(shown).strip()
        name = f"{scope or 'module'}: {before} -> {after}"
        seen[name] += 1
        if seen[name] > 1:
            name = f"{name} #{seen[name]}"
        yield Mutant(name, line, tree)


def _changes(
    node: ast.AST, scope: str = "", parent: ast.AST | None = None
) -> Iterator[tuple[str, ast.AST, int, Change]]:
    """(function, expression that shows the change, line, change) of everything below a node."""
    for change in _of_one(node, module_level=not scope):
        shown = _shown(node, parent)
        line = node.target.lineno if isinstance(node, ast.comprehension) else node.lineno  # type: ignore[attr-defined]
        yield scope, shown, line, change
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        scope = f"{scope}.{node.name}".lstrip(".")
    for child in _below(node):
        yield from _changes(child, scope, node)


def _shown(node: ast.AST, parent: ast.AST | None) -> ast.AST:
    """What shows a change of a node: a number with what it stands in, a default with its argument alone."""
    match node, parent:
        case ast.Constant(), ast.FunctionDef(args=arguments):
            arguments_reversed = [*arguments.posonlyargs, *arguments.args][::-1]
            defaults = [*zip(arguments.defaults[::-1], arguments_reversed, strict=False)]
            defaults += zip(arguments.kw_defaults, arguments.kwonlyargs, strict=True)
            argument = next(argument for default, argument in defaults if default is node)
            return ast.keyword(argument.arg, node)
        case ast.Constant() | ast.keyword(), ast.AST():
            return parent
    return node


def _below(node: ast.AST) -> list[ast.AST]:
    """The parts of a node that are mutated."""
    match node:
        case ast.FunctionDef():
            keyword_defaults = filter(None, node.args.kw_defaults)
            return [*node.args.defaults, *keyword_defaults, *node.body]
        case ast.ClassDef():
            return [child for child in node.body if isinstance(child, ast.FunctionDef)]
        case ast.AnnAssign():
            return [node.value] if node.value else []
        case ast.FormattedValue():
            return [node.value]
    return list(ast.iter_child_nodes(node))


def _of_one(node: ast.AST, *, module_level: bool) -> Iterator[Change]:
    """Every change of one node, made in place when it is called."""
    match node:
        case ast.Compare():
            for i, operator in enumerate(node.ops):
                for comparison in _COMPARISONS[type(operator)]:
                    yield partial(node.ops.__setitem__, i, comparison())
        case ast.Call(func=ast.Name(id=name)) if name in _CALLS:
            yield partial(setattr, node.func, "id", _CALLS[name])
        case ast.BinOp() | ast.AugAssign() if type(node.op) in _OPERATORS:
            yield partial(setattr, node, "op", _OPERATORS[type(node.op)]())
        case ast.BoolOp():
            swapped = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield partial(setattr, node, "op", swapped)
        case ast.If() | ast.IfExp() | ast.While():
            yield partial(setattr, node, "test", _negated(node.test))
        case ast.UnaryOp(op=ast.Not()):
            yield partial(setattr, node, "operand", _negated(node.operand))
        case ast.comprehension():
            for i, condition in enumerate(
                node.ifs
            ):  # its names stay, so that the code has the same closure
                dropped = ast.BoolOp(ast.Or(), [condition, ast.Constant(True)])
                yield partial(node.ifs.__setitem__, i, dropped)
        case ast.Attribute(attr=name, ctx=ast.Load()) if name in _BOUNDS:
            yield partial(setattr, node, "attr", _BOUNDS[name])
        case ast.keyword(arg=str(name)) if name in _BOUNDS:
            yield partial(setattr, node, "arg", _BOUNDS[name])
        case ast.Constant(value=str(word)) if word in _WORDS and not module_level:
            yield partial(setattr, node, "value", _WORDS[word])
        case ast.Constant(value=int() | float() as number) if (
            not isinstance(number, bool) and not 0 < number <= 1e-6
        ):
            whole = isinstance(number, int) or number == 0
            larger, smaller = (
                (number + 1, number - 1)
                if whole
                else (round(number * 1.1, 9), round(number * 0.9, 9))
            )
            for value in (larger, smaller) if module_level else (larger,):
                yield partial(setattr, node, "value", value)


def _negated(test: ast.expr) -> ast.expr:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return test.operand
    return ast.UnaryOp(ast.Not(), test)


def install(tree: ast.Module, module: ModuleType) -> None:
    """Make the module that everybody imported the one that the tree says."""
    fresh = ModuleType(module.__name__)
    for key, value in vars(module).items():
        if key.startswith("__"):
            vars(fresh)[key] = value
    code = compile(tree, str(module.__file__), "exec", dont_inherit=True)
    try:
        exec(code, vars(fresh))
    except Exception as error:
        raise ImportError(f"{module.__name__} cannot be imported") from error
    new_functions, old_functions = _functions(vars(fresh)), _functions(vars(module))
    for key in new_functions.keys() & old_functions.keys():
        new = new_functions[key][0]
        for function in old_functions[key]:
            function.__code__ = new.__code__
            function.__defaults__ = new.__defaults__
            function.__kwdefaults__ = new.__kwdefaults__
    for key, value in vars(fresh).items():
        before = vars(module).get(key)
        is_constant = isinstance(value, int | float | str | tuple | dict | frozenset)
        if is_constant and repr(before) != repr(value):
            for user in list(sys.modules.values()):
                if vars(user).get(key) is before:
                    vars(user)[key] = value


def _functions(namespace: dict[str, Any]) -> dict[Any, list[FunctionType]]:
    """The functions whose globals are a namespace, wrapped and nested ones too, by where their code stands."""
    functions: dict[Any, list[FunctionType]] = {}
    for function in gc.get_objects():
        mine = type(function) is FunctionType and function.__globals__ is namespace
        if (
            mine and function.__code__.co_filename != "<string>"
        ):  # "<string>": methods that dataclasses write
            functions.setdefault(_place(function.__code__), []).append(function)
    return functions


def _place(code: CodeType) -> tuple[Any, ...]:
    """A function's name, its line and, since a line may hold several lambdas, its first column."""
    columns = [
        column
        for line, _, column, _ in code.co_positions()
        if line == code.co_firstlineno and column
    ]
    return (
        code.co_qualname,
        code.co_firstlineno,
        min(columns, default=0) if "<lambda>" in code.co_qualname else 0,
    )


def _in_a_fork(tests: Sequence[str], log: Path, limit: float, prepare: Change) -> tuple[int, float]:
    """Run the tests in a copy of this process after ``prepare()``: their exit status, and CPU seconds."""
    sys.stdout.flush()
    child = os.fork()
    if not child:
        status = 99
        try:
            with log.open("w") as out:
                os.dup2(out.fileno(), 1)
                os.dup2(out.fileno(), 2)
                resource.setrlimit(resource.RLIMIT_CPU, (int(limit), int(limit)))
                try:
                    prepare()
                except ImportError:  # every test that imports the file would fail
                    status = 1
                    raise
                # The parent has imported plugins, such as jaxtyping's, before pytest could rewrite them.
                plugins = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
                status = int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *plugins, *tests]))
                loaded = json.dumps(sorted(sys.modules))
                log.with_suffix(".json").write_text(loaded)
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(status)
    _, waited, used = os.wait4(child, 0)
    return waited, used.ru_utime + used.ru_stime


def survivors(file: Path, scopes: str, tests: Sequence[str]) -> tuple[list[Mutant], int]:
    """The mutants in the named functions of a file that its tests do not kill, and how many mutants there are."""
    module = importlib.import_module(".".join(file.with_suffix("").parts))
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        unchanged = ast.parse(file.read_text("utf-8"))
        status, seconds = _in_a_fork(tests, log, 3600, partial(install, unchanged, module))
        if status:
            raise SystemExit(f"{file}: its tests fail without any mutant:\n{log.read_text()}")
        for name in json.loads(log.with_suffix(".json").read_text()):
            if not name.rpartition(".")[2].startswith(("test_", "conftest", "__main__")):
                with contextlib.suppress(Exception):
                    importlib.import_module(name)
        scopes_named = tuple(scopes.split(","))
        in_file = mutants(file.read_text("utf-8"))
        every = [mutant for mutant in in_file if mutant.name.startswith(scopes_named)]
        alive = []
        for mutant in every:
            status, _ = _in_a_fork(
                tests, log, 3 * seconds + 5, partial(install, mutant.tree, module)
            )
            if os.waitstatus_to_exitcode(status) == 99:
                place = f"{file}:{mutant.line}"
                output = log.read_text()
                raise SystemExit(f"{place} cannot be installed: {mutant.name}\n{output}")
            if not status:
                alive.append(mutant)
    return alive, len(every)


def judge(where: str, target: Target) -> bool:
    """Print what became of the mutants of a file; whether enough of them were killed."""
    file, _, scopes = where.partition("::")
    alive, n = survivors(Path(file), scopes, target.tests)
    excused = [mutant for mutant in alive if mutant.name in target.equivalent]
    stale = set(target.equivalent) - {mutant.name for mutant in excused}
    unexcused = [mutant for mutant in alive if mutant not in excused]
    n_equivalent = len(excused)
    n_others = n - n_equivalent
    n_killed = n_others - len(unexcused)
    share = 1 - len(unexcused) / max(n_others, 1)
    counts = f"{n} mutants, {n_equivalent} equivalent, {n_killed} of {n_others} killed"
    print(f"{where}: {counts} ({share:.1%})")
    for mutant in unexcused:
        print(f"  {file}:{mutant.line}  {mutant.name}")
    for name in sorted(stale):
        print(f"  listed as equivalent, but killed or gone: {name}")
    sys.stdout.flush()
    return share >= KILLED and not stale


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; its exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "files", nargs="*", help=f"one of {', '.join(TARGETS)}, or any file with --tests"
    )
    parser.add_argument("--tests", nargs="+", help="test files that stand behind the files")
    options = parser.parse_args(arguments)
    results = []
    for file in options.files or TARGETS:
        target = Target(tuple(options.tests)) if options.tests else TARGETS[file]
        results.append(judge(file, target))
    return int(not all(results))


if __name__ == "__main__":
    raise SystemExit(main())
