"""Count the source: ``python -m tests.census`` prints a row for each room, and ``tests/test_census.py`` holds the caps.

A line of code is a line that is neither blank, nor a comment, nor part of a docstring. A public name is a function,
class or variable that a module defines at its top level under a name without a leading underscore.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PACKAGES = ("interp", "probes", "circuits", "reports")
"""In the order of imports: a package may import itself and those before it."""


class Count(NamedTuple):
    """How much source there is."""

    code: int
    functions: int
    names: int
    modules: int

    def __add__(self, other: Count) -> Count:  # type: ignore[override]
        return Count(*(mine + its for mine, its in zip(self, other, strict=True)))


def sources(*folders: str) -> Iterator[Path]:
    """Every module of some folders."""
    for folder in folders:
        yield from sorted((ROOT / folder).rglob("*.py"))


def room_of(path: Path) -> str:
    """The room that a module belongs to: its package, or the folder below it that holds it.

    >>> room_of(ROOT / "interp" / "tasks" / "experts" / "layout.py"), room_of(ROOT / "interp" / "files.py")
    ('interp/tasks', 'interp')
    """
    return "/".join(path.relative_to(ROOT).parts[:-1][:2])


def public_names(tree: ast.Module) -> list[str]:
    """Names without a leading underscore that a module defines at its top level.

    >>> public_names(ast.parse("x: int = 1\\n_y = 2\\ndef f(): pass\\nclass C: pass"))
    ['x', 'f', 'C']
    """
    found: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.append(node.name)
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found += [
                name.id
                for target in targets
                for name in ast.walk(target)
                if isinstance(name, ast.Name)
            ]
    return [name for name in found if not name.startswith("_")]


def definitions(
    tree: ast.Module,
) -> Iterator[ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """A module and every class and function in it, at any depth: no expression holds one, so none is walked."""
    ahead: list[ast.AST] = [tree]
    for node in ahead:
        ahead += [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr)]
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def lines_of_code(text: str, tree: ast.Module) -> int:
    """Lines that are neither blank, nor a comment, nor part of a docstring.

    >>> text = '"What it is."\\n\\n# why\\nx = 1\\n'
    >>> lines_of_code(text, ast.parse(text))
    1
    """
    prose: set[int] = set()
    for node in definitions(tree):
        if ast.get_docstring(node, clean=False):
            prose.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    lines = enumerate(map(str.strip, text.splitlines()), 1)
    return sum(bool(line) and not line.startswith("#") and i not in prose for i, line in lines)


def count(path: Path) -> Count:
    """What one module holds."""
    text = path.read_text("utf-8")
    tree = ast.parse(text)
    functions = sum(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in definitions(tree)
    )
    return Count(lines_of_code(text, tree), functions, len(public_names(tree)), 1)


def census(*folders: str) -> dict[str, Count]:
    """Every room of some folders with its count, the largest first."""
    rooms: dict[str, Count] = {}
    for path in sources(*folders):
        rooms[room_of(path)] = rooms.get(room_of(path), Count(0, 0, 0, 0)) + count(path)
    return dict(sorted(rooms.items(), key=lambda room: -room[1].code))


def whole(*folders: str) -> Count:
    """What some folders hold together."""
    return sum(census(*folders).values(), Count(0, 0, 0, 0))


def main() -> None:
    """Print the table."""
    beside = {folder: whole(folder) for folder in ("lab", "tests", "examples", "docs")}
    for name, of in {**census(*PACKAGES), "the packages": whole(*PACKAGES), **beside}.items():
        print(
            f"{name:24} {of.code:7,} lines of code {of.functions:5,} functions {of.names:5,} names {of.modules:3} files"
        )


if __name__ == "__main__":
    main()
