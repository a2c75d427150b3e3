"""What a report opens and ends with: the summary, the check against the algorithm, and how to reproduce it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from interp.model.transformer import HookedLatentTransformer
from reports.blocks import Code, Prose, Summary, Verdict, number
from reports.page import Section


def summary(items: Mapping[str, Any], text: str = "") -> Section:
    """The facts and verdicts that a reader in a hurry needs."""
    return Section("Summary", [Summary(items), *([Prose(text)] if text else [])])


def verdict_within(error: float, bound: float) -> Verdict:
    """A badge for an error that should not exceed a bound."""
    if error == 0:
        return Verdict(True, "exact: the difference is 0")
    relation = "≤" if error <= bound else ">"
    return Verdict(error <= bound, f"largest error {number(error)} {relation} {number(bound)}")


def describe(model: HookedLatentTransformer) -> str:
    """A model in a line: layers, heads, sizes, precision."""
    config = model.config
    parameters = sum(int((p != 0).sum()) for p in model.parameters())
    parts = [f"{config.n_layers} layers", f"d_model {config.d_model}", f"{number(parameters)} non-zero weights"]
    return ", ".join([*parts, str(model.cfg.dtype).removeprefix("torch.")])


def reproduce(command: str, python: str, record: Mapping[str, Any]) -> Section:
    """The command that writes this page again, and the same numbers from Python."""
    text = "The same command with the same versions writes the same numbers; seeds and versions are at the end of this page."
    return Section(
        "How to reproduce",
        [
            Prose(text),
            Code(command, "From a shell, in a checkout"),
            Code(python, "From Python"),
            *([Summary(record)] if record else []),
        ],
    )
