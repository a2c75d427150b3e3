"""The audit of every machine that ships and of one of every kind of adapter: the tables of docs/results/audit.md.

``python -m tests.audit.shipped [NAME ...] [--full]`` adds rows to ``docs/results/audit/shipped.csv``, replacing
those of the same machine and size; without names all that have no row yet are run, so that a run that was stopped goes
on.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pandas as pd

import interp
import lab
from interp.audit import AuditResult, Budget, audit
from interp.support.files import write_csv
from tests.audit.planted import cached
from tests.machines_of_others.kinds import KINDS, make

TABLE = Path(__file__).parents[2] / "docs" / "results" / "audit" / "shipped.csv"
PLAIN = "adapt, two channels"
"""A module of which ``interp.adapt`` makes a machine, with a channel that it reads and one that it does not."""


def names() -> list[str]:
    """Every model that ships or lies in ``lab``, every kind of adapter (untrained), and a module that was adapted."""
    shipped = [record.name for record in interp.models()]
    return [*shipped, *lab.names(), *KINDS, PLAIN]


def built(name: str, folder: Path) -> Any:
    """The machine of a name."""
    if name == PLAIN:
        return cached()
    return make(name, folder) if name in KINDS else lab.load(name)


def row(name: str, found: AuditResult, full: bool, seconds: float) -> dict[str, Any]:
    """The words of an audit: one column a claim, the channels apart from all that is carried."""
    words = {claim.key: claim.verdict for claim in found if not claim.about}
    of_channels = [claim for claim in found if claim.about]
    words["by channel"] = "; ".join(f"{claim.about}: {claim.verdict}" for claim in of_channels)
    shipped = name not in KINDS and name != PLAIN
    size = "full" if full else "quick"
    return {
        "machine": name,
        "shipped": shipped,
        "size": size,
        **words,
        "CPU seconds": round(seconds, 1),
    }


def main(asked: list[str], full: bool) -> None:
    """Run what is asked, or what is missing; a row is written as soon as there is one."""
    size = "full" if full else "quick"
    table = pd.DataFrame(columns=["machine", "size"])
    if TABLE.exists():
        table = pd.read_csv(TABLE, keep_default_na=False)
    done = set(table["machine"][table["size"] == size])
    for name in asked or [name for name in names() if name not in done]:
        with tempfile.TemporaryDirectory() as folder:
            machine = built(name, Path(folder))
        start = time.process_time()
        verdicts = audit(machine, budget=Budget() if full else Budget.quick())
        new = row(name, verdicts, full, time.process_time() - start)
        sys.stdout.write(f"{new}\n" + f"{verdicts!r}\n")
        sys.stdout.flush()
        table = table[(table["machine"] != name) | (table["size"] != size)]
        table = pd.concat([table, pd.DataFrame([new])], ignore_index=True)
        place = pd.Categorical(table["machine"], names())
        placed = table.assign(place=place)
        in_order = placed.sort_values(["place", "size"], ascending=[True, False])
        table = in_order.drop(columns="place")
        TABLE.parent.mkdir(exist_ok=True)
        write_csv(TABLE, table)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--full", action="store_true")
    arguments = parser.parse_args()
    main(arguments.names, arguments.full)
