"""The four packages of this distribution, and how one that belongs to another distribution is noticed."""

from __future__ import annotations

from importlib.machinery import PathFinder
from pathlib import Path

ROOMS = ("circuits", "probes", "reports")
"""Installed beside ``interp``, under names that another distribution could use, too."""


def strangers(home: Path | None = None) -> list[str]:
    """A sentence for each room whose name leads to a package of somebody else; ``home`` holds ``interp``."""
    home = Path(__file__).resolve().parents[1] if home is None else home
    sentences = []
    for name in ROOMS:
        spec = PathFinder.find_spec(name)
        found = None if spec is None or spec.origin is None else Path(spec.origin).resolve().parent
        if found != home / name:
            where = f"leads to {found}" if found else "leads nowhere"
            sentences.append(
                f"`import {name}` {where}, not to the package {name!r} of latent-context-interp in {home}: another "
                "distribution or folder owns the name; install latent-context-interp in an environment of its own"
            )
    return sentences
