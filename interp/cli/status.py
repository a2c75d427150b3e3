"""``interp status``: how far work is that several commands divide."""

from __future__ import annotations

from pathlib import Path

from interp.cli.command import Say, command
from interp.support import shares


@command(example="interp status output/evaluation/wma-learned/parts")
def _status(say: Say, folder: Path) -> None:
    """Say which parts of divided work are done, partial or absent; on which host and by which commit they were made.

    Args:
        folder: The folder that a command with --shard named.
    """
    parts = shares.status(folder)
    counts = parts["state"].value_counts()
    say.line(", ".join(f"{n} {state}" for state, n in counts.items()))
    say.table(parts, f"Parts in {folder}", "parts")
