"""``interp status``: list which parts are done of work that several commands divide."""

from __future__ import annotations

from pathlib import Path

from interp.cli.command import Say, command
from interp.support import shares


@command(example="interp status output/evaluation/wma-learned/parts")
def _status(say: Say, folder: Path) -> None:
    """List the parts of work that --shard divided: whether a part is done, on which host, and at which commit.

    Args:
        folder: Folder in which commands with --shard stored their parts, such as OUT or OUT/parts.
    """
    parts = shares.status(folder)
    counts = parts["state"].value_counts()
    say.line(", ".join(f"{n} {state}" for state, n in counts.items()))
    say.table(parts, f"Parts in {folder}", "parts")
