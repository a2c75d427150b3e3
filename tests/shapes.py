"""A pytest plugin: while tests run, functions and dataclasses whose annotations say shapes are checked.

jaxtyping's own plugin wraps every function of a package, whatever its annotations say, and costs more than the work of
the packages: a small report took 18 CPU seconds with it, 9 with this one and 8 unchecked. Plain types are mypy's work.
"""

import ast
import re
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import pytest

import tests

PACKAGES = ("interp", "circuits", "probes", "reports", "lab")
ROOT = Path(__file__).parents[1]
_KINDS = (
    "Float",
    "Int",
    "Bool",
    "Shaped",
    "Num",
    "Complex",
    "Integer",
    "Float32",
    "Float64",
    "Int64",
)
_ALIAS = re.compile(rf"^(\w+) = (?:{'|'.join(_KINDS)})\[", re.MULTILINE)


def shape_names() -> frozenset[str]:
    """Names that stand for arrays in annotations: jaxtyping's, and the packages' own names for some of them."""
    sources = (
        path.read_text("utf-8") for package in PACKAGES for path in (ROOT / package).rglob("*.py")
    )
    return frozenset(_KINDS).union(*(_ALIAS.findall(source) for source in sources))


class Shaped(ast.NodeTransformer):
    """Decorates what says shapes with :func:`tests.shaped`, and leaves the rest as it is."""

    def __init__(self, names: frozenset[str]) -> None:
        self.names = names

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """No expression holds a definition: they are most of a module, and are not looked at."""
        return node if isinstance(node, ast.expr) else super().generic_visit(node)

    def visit_Module(self, node: ast.Module) -> ast.Module:
        self.generic_visit(node)
        after = sum(_opens(child) for child in node.body)
        node.body[after:after] = ast.parse("import tests as _tests").body
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self.generic_visit(node)
        arguments = [
            *node.args.posonlyargs,
            *node.args.args,
            *node.args.kwonlyargs,
            node.args.vararg,
            node.args.kwarg,
        ]
        if self._says(node.returns, *(argument.annotation for argument in arguments if argument)):
            node.decorator_list.append(_decorator())
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        self.generic_visit(node)
        if self._says(
            *(child.annotation for child in node.body if isinstance(child, ast.AnnAssign))
        ):
            node.decorator_list.insert(0, _decorator())
        return node

    def _says(self, *annotations: ast.expr | None) -> bool:
        inside = (part for annotation in annotations if annotation for part in ast.walk(annotation))
        return any(isinstance(part, ast.Name) and part.id in self.names for part in inside)


def _opens(statement: ast.stmt) -> bool:
    """Whether it must stay at the top of a module: the docstring, or an import from the future."""
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)
    return isinstance(statement, ast.ImportFrom) and statement.module == "__future__"


def _decorator() -> ast.expr:
    return ast.parse("_tests.shaped", mode="eval").body


class Loader(SourceFileLoader):
    """Loads a module so that its shapes are checked; it caches no bytecode, because other programs read that cache."""

    names: frozenset[str]

    def source_to_code(self, data: Any, path: Any, *args: Any, _optimize: int = -1) -> CodeType:  # type: ignore[override]
        return compile(
            Shaped(self.names).visit(ast.parse(data, path)), path, "exec", dont_inherit=True
        )

    def path_stats(self, path: str) -> Any:
        raise OSError("no bytecode is read or written")


class Finder(PathFinder):
    """Finds the packages' modules for :class:`Loader`."""

    names: frozenset[str]

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in PACKAGES:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = Loader(spec.loader.name, spec.loader.path)
            spec.loader.names = cls.names
        return spec


def pytest_runtest_setup() -> None:
    """Every test checks the first calls of what it calls."""
    tests.calls.clear()


def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Before any conftest imports the packages."""
    Finder.names = shape_names()
    sys.meta_path.insert(0, Finder)
