"""The command line ``interp``: one file per command or group of commands.

``command`` makes a command from a function, and prints its results; ``options`` defines the options
that several commands share. The functions in the other files are commands; they call other
packages, which do the work. Bad input prints one sentence on standard error and exits with code 2.
A check that fails exits with code 1. Commands can be imported without torch.
"""

from importlib import import_module
from pkgutil import iter_modules

from interp.cli.command import app, llm_app

__all__ = ["app"]

for _module in iter_modules(__path__):
    if not _module.name.startswith("_"):
        import_module(f"{__name__}.{_module.name}")
app.add_typer(llm_app, name="llm")
