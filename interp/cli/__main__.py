"""``python -m interp.cli`` is ``interp``: what torchrun starts."""

from interp.cli import app

if __name__ == "__main__":
    app()
