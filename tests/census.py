"""Count the source: lines, modules and public names of every room. ``python -m tests.census`` prints the table.

A line is a line of a file, blank or not. A public name is a function, class or variable that a module defines at its
top level under a name without a leading underscore.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PACKAGES = ("interp", "probes", "circuits", "reports")


class Count(NamedTuple):
    """How much source a room holds."""

    lines: int
    modules: int
    names: int

    def __add__(self, other: Count) -> Count:  # type: ignore[override]
        return Count(*(mine + its for mine, its in zip(self, other, strict=True)))


def sources() -> Iterator[Path]:
    """Every module of the packages."""
    for package in PACKAGES:
        yield from sorted((ROOT / package).rglob("*.py"))


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
            found += [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
    return [name for name in found if not name.startswith("_")]


def census() -> dict[str, Count]:
    """Every room with its count, the largest first."""
    rooms: dict[str, Count] = {}
    for path in sources():
        text = path.read_text("utf-8")
        count = Count(len(text.splitlines()), 1, len(public_names(ast.parse(text))))
        rooms[room_of(path)] = rooms.get(room_of(path), Count(0, 0, 0)) + count
    return dict(sorted(rooms.items(), key=lambda room: -room[1].lines))


def main() -> None:
    """Print the table."""
    rooms = census()
    whole = Count(0, 0, 0)
    for count in rooms.values():
        whole += count
    for name, count in {**rooms, "all": whole}.items():
        print(f"{name:24} {count.lines:7,} lines {count.modules:5} modules {count.names:6,} public names")


if __name__ == "__main__":
    main()
