"""Commands, given as in a shell."""

from typing import Any

from typer.testing import CliRunner, Result

from interp.cli import app


def invoked(*words: Any, **options: Any) -> Result:
    """What a command does, of the toolkit or of the lab."""
    if words[:1] == ("calibrate",):
        from lab.calibrate import app as lab

        return CliRunner().invoke(lab, [str(word) for word in words], **options)
    return CliRunner().invoke(app, [str(word) for word in words], **options)
