"""Tables of a task: the long one in which the field records trials, and the one that says where variables could be.

:func:`trials` reads what was recorded, a row a trial, and :func:`places` where a task's variables could be in a model,
and where they cannot.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interp.core import catalog
from interp.core.display import lacks
from interp.core.machine import Machine
from interp.support.checks import file_path, number
from interp.support.errors import InputError, require, require_known
from interp.support.files import read_rows, read_tables, reading

_GUESSED = read_tables(Path(__file__).with_suffix(".toml"))["guessed"]
"""What a column is called where the user does not say, in small letters: patterns."""


def trials(
    path: str | Path,
    roles: Sequence[str],
    named: Mapping[str, Any],
    kinds: Mapping[str, str],
    scale: float | None = None,
    several: str = "",
) -> tuple[dict[str, list[NDArray[Any]]], list[str], dict[str, tuple[str, ...]], float]:
    """What a table of recorded trials says, a row a trial (commas, tabs or semicolons between its columns).

    That is for each episode that was played, by role, an array ``[trial]``, ``[trial, column]`` where there are several
    columns, and NaN where nothing is said, which is a missed trial; whose each episode is; by kind, what 0, 1, ... are
    called; and what 1 of a reward is. Trials are in the order of ``trial``, or of the rows without it.

    Args:
        roles: what a row of the task says, beside "participant", "block" and "trial"; these last two may be absent.
        named: role to the column that the user names.
        kinds: role to the kind of its labels, which become 0, 1, ... in sorted order; the other roles hold numbers.
        scale: what rewards are divided by; the largest magnitude if None.
        several: the role that takes every column of its name, or a list of columns.
    """
    import pandas as pd

    path = Path(file_path(path))
    with reading(path, "give a table with a header and a row a trial"):
        how: Any = {
            "sep": None,
            "engine": "python",
            "encoding": "utf-8-sig",
            "skipinitialspace": True,
        }
        table = pd.read_csv(path, **how).replace(r"^\s+|\s+$", "", regex=True).replace("", np.nan)
        head, *lines = [
            (i, line)
            for i, line in enumerate(path.read_text("utf-8-sig").splitlines(), 1)
            if line.strip()
        ]
    file, straight = (
        repr(str(path)),
        isinstance(table.index, pd.RangeIndex),
    )  # else its first columns became an index
    require(
        straight,
        f"{file}: every row has more fields than the header has names; give each column a name",
    )
    table.index = pd.Index([i for i, _ in lines[: len(table)]])
    columns, listed = dict[str, list[str]](), ", ".join(map(str, table.columns))
    every = ("participant", *roles, "block", "trial")
    for role in named:
        require_known("column", role, every, limit=12)
    for role, given in ((role, named.get(role)) for role in every):
        found = [
            one
            for word in _GUESSED[role]
            for one in table.columns
            if re.fullmatch(word, str(one).lower())
        ]
        wanted = (
            [given]
            if isinstance(given, str)
            else list(given or found[: None if role == several else 1])
        )
        for name in wanted:
            require(name in table, f"{file} has no column {name!r} ({role}); it has {listed}")
            require(
                all(name not in of for of in columns.values()),
                f"{file}: {name!r} cannot be the {role}, too",
            )
            twice = (
                f"{name}.1" in table and f"{name}.1" not in head[1]
            )  # which is what pandas calls the second one
            require(
                not twice, f"{file} has two columns {name!r} ({role}); give them names of their own"
            )
        if wanted:
            columns[role] = wanted
        elif role not in ("block", "trial"):
            raise InputError(
                f"which column of {file} is the {role}? Give {role}=NAME, one of {listed}"
            )

    def refuse(rows: Any, name: str, what: str) -> None:
        """Refuse the first of some rows, with its line and what stands in it."""
        for line in table.index[rows][:1]:
            raise InputError(f"line {line} of {file}: {name!r} {what}, got {table[name][line]}")

    groups = [columns[role][0] for role in ("participant", "block") if role in columns]
    for name in [*groups, *columns.get("trial", ())]:
        refuse(table[name].isna(), name, "must not be empty")
    if "trial" in columns:
        (order,) = columns["trial"]
        numbers = pd.to_numeric(table[order], errors="coerce")
        refuse(~np.isfinite(numbers), order, "must be a number, by which trials are ordered")
        table[order] = numbers
        hint = "comes a second time; name the column of blocks, or leave the column of trials out"
        refuse(table.duplicated([*groups, order]), order, hint)
    own = {role: columns[role] for role in roles}
    held, labels = dict[str, Any](), dict[str, tuple[str, ...]]()
    for role, names in own.items():
        if role not in kinds:
            held[role] = table[names].apply(pd.to_numeric, errors="coerce")
            for name in names:
                refuse(held[role][name].isna() & table[name].notna(), name, "must be a number")
    for kind in dict.fromkeys(kinds.values()):
        alike = [role for role in roles if kinds.get(role) == kind]
        names = [name for role in alike for name in own[role]]
        said = {label for name in names for label in table[name].dropna()}
        seen = sorted(said, key=lambda label: (isinstance(label, str), label))
        require(
            len(seen) > 1,
            f"{' and '.join(names)} of {file} must hold two {kind}s or more, got {seen}",
        )
        held |= {
            role: table[own[role]].map({one: i for i, one in enumerate(seen)}.get) for role in alike
        }
        labels[kind] = tuple(_named(one) for one in seen)
    if "reward" in held:
        scale = float(held["reward"].abs().max(axis=None)) or 1.0 if scale is None else scale
        require(number("scale", scale) > 0, f"scale must be above 0, got {scale}")
        held["reward"] = held["reward"] / scale
    whole = pd.concat(held.values(), axis=1).notna().all(axis=1)
    ordered = table.sort_values(columns["trial"], kind="stable") if "trial" in columns else table
    episodes = [(key[0], one.index) for key, one in ordered.groupby(groups, sort=False)]
    played = [(who, rows) for who, rows in episodes if whole[rows].any()]
    if absent := len(episodes) - len(played):
        told = (
            f"{absent} of {len(episodes)} episodes of {file} have no trial with {' and '.join(own)}"
        )
        warnings.warn(f"{told}; they are left out", stacklevel=4)
    values = {
        role: [
            of.loc[rows].to_numpy(float)[..., 0 if role != several else slice(None)]
            for _, rows in played
        ]
        for role, of in held.items()
    }
    return values, [_named(who) for who, _ in played], labels, 1.0 if scale is None else scale


def _named(label: Any) -> str:
    """What a label is called: whole numbers by all of their digits."""
    return str(int(label) if not isinstance(label, str) and label == int(label) else label)


_table = cache(read_rows)
_Rows = Callable[[Machine], tuple[tuple[Any, ...], ...]]


def places(path: Path) -> tuple[_Rows, _Rows]:
    """``claims`` and ``aligned`` of a task's :class:`~interp.core.task.Analysis`, from a CSV file with a row for each.

    Of the variables "a|b" the first that the algorithm carries is meant, or the last. Sites are those of a transformer,
    and of any other machine where ``where`` is "else" (all that it carries without any). A row with ``{layer}`` stands
    for one for each layer but the last, and a label that ends in ``*`` for all that begin so. ``where`` is "replaced"
    for what is written only if an update replaces its slot, and "draws" for rounds that say when to explore.
    """
    return partial(_rows, path, "claim"), partial(_rows, path, "aligned")


def _rows(path: Path, kind: str, model: Machine) -> tuple[tuple[Any, ...], ...]:
    algorithm, layered, found = (
        catalog.of(model).explains(model),
        not lacks(model, "embed", "resid_post"),
        [],
    )
    last = model.points["resid_post"].n_layers - 1 if layered else 0
    replaced = getattr(getattr(model, "config", None), "latent_update", "replace") != "add"
    where = {"": True, "else": True, "replaced": replaced, "draws": bool(model.layout.draws)}
    for row in _table(path):
        if row["of"] != kind or (row["where"] == "else") == layered or not where[row["where"]]:
            continue
        names = (
            row["variable"].format(memory=algorithm.memory, written=algorithm.written).split("|")
        )
        key = next((name for name in names if name in algorithm.state), names[-1])
        for layer in range(last) if "{layer}" in row["sites"] else [last]:
            sites: list[str] = []
            for text in (
                row["sites"].format(layer=layer, last=last, before=max(last - 1, 0)).split()
            ):
                at, _, start = text.removesuffix("*").rpartition("@")
                several = (
                    f"{at}@{label}" for label in model.layout.labels if label.startswith(start)
                )
                sites += several if text.endswith("*") else [text]
            claim = (
                key,
                sites or None,
                row["outcome"] or "prediction",
                *[True] * bool(row["control"]),
            )
            found.append((key, *sites) if kind == "aligned" else claim)
    return tuple(found)
