"""Commands, given as in a shell."""

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import typer
from typer.testing import CliRunner, Result

from interp.cli import app

typer.testing._get_command = cache(typer.main.get_command)  # type: ignore[attr-defined]  # 20 ms, the same each time


def invoked(*words: Any, **options: Any) -> Result:
    """What a command does, of the toolkit or of the lab."""
    if words[:1] == ("calibrate",):
        from lab.calibrate import app as lab

        return CliRunner().invoke(lab, [str(word) for word in words], **options)
    return CliRunner().invoke(app, [str(word) for word in words], **options)


def printed(*words: Any, **options: Any) -> str:
    """What a command prints that ends well."""
    result = invoked(*words, **options)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


def answer(*words: Any) -> Any:
    """What a command that ends well answers as JSON."""
    result = invoked(*words, "--json")
    assert result.exit_code == 0, (result.output, result.exception)
    return json.loads(result.stdout)


def refusal(*words: Any, **options: Any) -> str:
    """What a command says that is refused."""
    result = invoked(*words, **options)
    assert result.exit_code == 2, (result.output, result.exception)
    return result.output


def commands(
    group: Any = None, words: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command with the words that call it: of the toolkit, or of a group."""
    for name, command in (group or typer.main.get_command(app)).commands.items():
        yield from (
            commands(command, (*words, name))
            if hasattr(command, "commands")
            else [((*words, name), command)]
        )
