"""The command line: one file a command or a group of commands, one vocabulary of options.

``command`` makes a command from a function and gives it what it tells its result with; ``options`` is the vocabulary.
Every other file holds commands, thin ones: what they do is in the rooms. Bad input prints one sentence on standard
error and exits with 2; a check that fails exits with 1. A command is imported without torch.
"""

from importlib import import_module
from pkgutil import iter_modules

from interp.cli.command import app, llm_app

__all__ = ["app"]

for _module in iter_modules(__path__):
    if not _module.name.startswith("_"):
        import_module(f"{__name__}.{_module.name}")
app.add_typer(llm_app, name="llm")
