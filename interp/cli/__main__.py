"""``python -m interp.cli`` is ``interp``: what torchrun starts."""

from interp.cli import app

app()
