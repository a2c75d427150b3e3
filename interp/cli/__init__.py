"""The command line: one file a command or a group of commands, one vocabulary of options.

``command`` makes a command from a function and gives it what it tells its result with; ``options`` is the vocabulary.
Every other file holds commands, thin ones: what they do is in the rooms. Bad input prints one sentence on standard
error and exits with 2; a check that fails exits with 1. A command is imported without torch.
"""

from interp.cli import (  # noqa: F401
    benchmark,
    compare,
    evaluate,
    llm,
    patch,
    probe,
    report,
    train,
    verify,
)
from interp.cli.command import app, llm_app

__all__ = ["app"]

app.add_typer(llm_app, name="llm")
