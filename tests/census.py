"""Count what the source does: ``python -m tests.census`` prints a table, ``tests/test_census.py`` holds its caps.

An *operation* is a call, an operator, a comparison, a subscript, an attribute, a branch, a loop, a literal of several
items, a definition or a parameter. Layout, names and annotations cost nothing, so packing steps on a line gains
nothing. A *full* statement holds eight operations or more; of compound statements only the head counts.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("interp", "probes", "circuits", "reports")
"""In the order of imports: a package may import itself and those before it."""
BESIDE = ("lab", "examples", "tests")
"""Code that does not ship."""

FULL = 8
OVERFULL = 20
MANY_DECISIONS = 10
TABLES = {".csv", ".toml", ".json", ".j2", ".js", ".css"}

FUNCTION_WORDS = frozenset(
    """
    of one told said found own held given made several asked alike about at whose kept apart each
    other more least most by on both left moved
    """.split()  # noqa: SIM905
)
"""Names of locals that say nothing of what they hold."""

_COUNTED_ONCE = frozenset(
    getattr(ast, name)
    for name in """
    Attribute AugAssign Await BinOp Call ClassDef Dict ExceptHandler
    For FormattedValue FunctionDef AsyncFor AsyncFunctionDef If IfExp Lambda
    List Raise Return Set Starred Subscript Try UnaryOp
    While With Yield YieldFrom arg
    """.split()  # noqa: SIM905
)
_SIMPLE = (
    ast.AnnAssign,
    ast.Assert,
    ast.Assign,
    ast.AugAssign,
    ast.Delete,
    ast.Expr,
    ast.Raise,
    ast.Return,
)
_FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
_BRANCHES = (ast.Assert, ast.AsyncFor, ast.ExceptHandler, ast.For, ast.If, ast.IfExp, ast.While)


@dataclass
class Count:
    """What some source does.

    Attributes:
        operations: how many operations it holds.
        table_bytes: bytes of tables and templates beside it.
        statements: operations of each statement.
        decisions: decisions of each function.
        function_words: locals that are named by a function word.
    """

    operations: int = 0
    table_bytes: int = 0
    statements: list[int] = field(default_factory=list)
    decisions: list[int] = field(default_factory=list)
    function_words: int = 0

    def __add__(self, other: Count) -> Count:
        return Count(
            operations=self.operations + other.operations,
            table_bytes=self.table_bytes + other.table_bytes,
            statements=self.statements + other.statements,
            decisions=self.decisions + other.decisions,
            function_words=self.function_words + other.function_words,
        )

    @property
    def full_share(self) -> float:
        """Share of statements with eight operations or more, in percent."""
        return _share_above(self.statements, FULL - 1)

    @property
    def overfull(self) -> int:
        """Number of statements with twenty operations or more."""
        return sum(count >= OVERFULL for count in self.statements)

    @property
    def branching_share(self) -> float:
        """Share of functions with more than ten decisions, in percent."""
        return _share_above(self.decisions, MANY_DECISIONS)


def sources(*folders: str) -> Iterator[Path]:
    """Yield every module of some folders."""
    for folder in folders:
        yield from sorted((ROOT / folder).rglob("*.py"))


def tables(*folders: str) -> Iterator[Path]:
    """Yield every table and template of some folders; what models are stored in is data and not counted."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in TABLES and "checkpoints" not in path.parts:
                yield path


_LEFT_OUT = frozenset({"ctx", "annotation", "returns"})
"""Parts that cost nothing: whether a name is read or set, which is a third of all parts, and annotations."""


def children(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of a piece of code that count."""
    for name in node._fields:
        if name in _LEFT_OUT:
            continue
        part = getattr(node, name, None)
        if isinstance(part, list):
            yield from (item for item in part if isinstance(item, ast.AST))
        elif isinstance(part, ast.AST):
            yield part


def walk(tree: ast.AST) -> list[ast.AST]:
    """List a piece of code and all of its parts."""
    nodes = [tree]
    for node in nodes:
        nodes += children(node)
    return nodes


def count_operations(node: ast.AST) -> int:
    """Count the operations of a piece of code.

    >>> count_operations(ast.parse("total = f(x[0]) + 1"))
    3
    >>> count_operations(ast.parse("[a.b for a in c if a and d < 2 < e]"))
    6
    """
    total = 0
    for inner in walk(node):
        if type(inner) in _COUNTED_ONCE:
            total += 1
        elif isinstance(inner, ast.BoolOp):
            total += len(inner.values) - 1
        elif isinstance(inner, ast.Compare):
            total += len(inner.ops)
        elif isinstance(inner, ast.comprehension):
            total += 1 + len(inner.ifs)
    return total


def statement_operations(tree: ast.AST) -> Iterator[int]:
    """Yield the operations of each statement as a reader meets it: simple ones whole, of others the head.

    >>> list(statement_operations(ast.parse("for i in range(3):\\n    x = i + 1")))
    [2, 1]
    """
    for node in walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue  # a docstring
        if isinstance(node, _SIMPLE):
            yield count_operations(node)
        elif isinstance(node, ast.For | ast.AsyncFor):
            yield 1 + count_operations(node.target) + count_operations(node.iter)
        elif isinstance(node, ast.If | ast.While):
            yield 1 + count_operations(node.test)
        elif isinstance(node, ast.With):
            yield 1 + sum(count_operations(item) for item in node.items)


def count_decisions(function: ast.AST) -> int:
    """Count the decisions of a function, those in comprehensions and conditional expressions included.

    >>> code = "def f(x):\\n    if x and x.y:\\n        return [i for i in x if i]\\n    return 0"
    >>> count_decisions(ast.parse(code).body[0])
    5
    """
    total = 1
    ahead = list(children(function))
    while ahead:
        node = ahead.pop()
        if isinstance(node, _FUNCTION | ast.ClassDef):
            continue  # its decisions are its own
        if isinstance(node, _BRANCHES):
            total += 1
        elif isinstance(node, ast.BoolOp):
            total += len(node.values) - 1
        elif isinstance(node, ast.comprehension):
            total += 1 + len(node.ifs)
        ahead += children(node)
    return total


def count_function_words(tree: ast.AST) -> int:
    """Count assignments to names such as ``told`` or ``one``.

    >>> count_function_words(ast.parse("one, total = 1, 2\\nfor each in x: pass"))
    2
    """
    names = [node for node in walk(tree) if isinstance(node, ast.Name)]
    stored = [node.id for node in names if isinstance(node.ctx, ast.Store)]
    return sum(name in FUNCTION_WORDS for name in stored)


@cache
def count_module(path: Path) -> Count:
    """Count what one module does."""
    tree = ast.parse(path.read_text("utf-8"))
    functions = [node for node in walk(tree) if isinstance(node, _FUNCTION)]
    return Count(
        operations=count_operations(tree),
        statements=list(statement_operations(tree)),
        decisions=[count_decisions(function) for function in functions],
        function_words=count_function_words(tree),
    )


def count_folders(*folders: str) -> Count:
    """Count what some folders hold together, with their tables and templates."""
    total = Count()
    for path in sources(*folders):
        total += count_module(path)
    total.table_bytes = sum(path.stat().st_size for path in tables(*folders))
    return total


def room_of(path: Path) -> str:
    """Return the room of a file: its package, or a folder in one."""
    folders = path.relative_to(ROOT).parent.parts
    return "/".join(folders[:2])


def rooms(*packages: str) -> dict[str, Count]:
    """Count every room, the largest first."""
    counts: dict[str, Count] = defaultdict(Count)
    for path in sources(*packages):
        counts[room_of(path)] += count_module(path)
    for path in tables(*packages):
        counts[room_of(path)].table_bytes += path.stat().st_size
    largest_first = sorted(counts, key=lambda room: -counts[room].operations)
    return {room: counts[room] for room in largest_first}


def main() -> None:
    """Print the table: rooms, packages, what ships, and what does not."""
    rows = rooms(*PACKAGES)
    rows |= {package: count_folders(package) for package in PACKAGES}
    rows["what ships"] = count_folders(*PACKAGES)
    rows |= {folder: count_folders(folder) for folder in BESIDE}
    print(f"{'':24} operations  tables kB  full %  >=20  >10 decisions %  function words")
    for name, count in rows.items():
        size = f"{count.operations:10,} {count.table_bytes / 1000:10.0f}"
        packing = f"{count.full_share:7.1f} {count.overfull:5}"
        naming = f"{count.branching_share:16.1f} {count.function_words:15}"
        print(f"{name:24} {size} {packing} {naming}")


def _share_above(values: list[int], bound: int) -> float:
    """Return the percentage of values above a bound."""
    n_above = sum(value > bound for value in values)
    return 100 * n_above / max(len(values), 1)


if __name__ == "__main__":
    main()
