"""What a command tells: lines and tables for people, the files that it wrote, and one JSON object for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

import interp
from interp.files import json_values

if TYPE_CHECKING:
    from rich.console import Console


class Say:
    """What one run of a command tells, and how: as text, as one JSON object (``--json``), or nearly nothing.

    Args:
        command: its name, for the JSON object.
        as_json: print one JSON object at the end, and nothing else on standard output.
        quiet: print nothing but the paths of the files written.
    """

    def __init__(self, command: str, as_json: bool = False, quiet: bool = False) -> None:
        self.as_json, self.quiet = as_json, quiet
        self._told: dict[str, Any] = {"command": command, "version": interp.__version__}
        self._files: list[str] = []

    def line(self, text: object) -> None:
        """A line for people."""
        if not (self.as_json or self.quiet):
            typer.echo(text)

    def aside(self, text: object) -> None:
        """A line on standard error: told however the result is told."""
        typer.echo(text, err=True)

    def facts(self, **values: Any) -> None:
        """Fields of the JSON object; people read them in lines and tables."""
        self._told |= values

    def table(self, frame: Any, title: str, name: str, drawn: Sequence[Any] | None = None) -> None:
        """A data frame: a table for people, a list of records called ``name`` in the JSON object.

        Args:
            drawn: what people see instead.
        """
        self._told[name] = frame.to_dict("records")
        if not (self.as_json or self.quiet):
            for table in [_table(frame, title)] if drawn is None else drawn:
                console().print(table)

    def wrote(self, paths: Iterable[Path]) -> None:
        """Files that were written: a line each, the list ``files`` in the JSON object."""
        for path in paths:
            self._files.append(str(path))
            if not self.as_json:
                typer.echo(path)

    def close(self) -> None:
        """Print the JSON object, where it was asked for."""
        if self.as_json:
            told = {**self._told, "files": self._files}
            typer.echo(json.dumps(json_values(told), indent=2, default=str))


def console() -> Console:
    """The terminal; where there is none, wide enough that no table wraps."""
    from rich.console import Console

    found = Console()
    return found if found.is_terminal else Console(width=240)


def _table(frame: Any, title: str) -> Any:
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for column in frame.columns:
        table.add_column(str(column), overflow="fold")  # a narrow terminal cuts no name
    for row in frame.itertuples(index=False):
        table.add_row(*(f"{value:.3g}" if isinstance(value, float) else str(value) for value in row))
    return table
