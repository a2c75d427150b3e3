"""What a comparison found: its parts, four verdicts, and where the two models differ most."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from circuits.compare.algorithm import AlgorithmPart
from circuits.compare.circuit import CircuitPart
from circuits.compare.effects import EffectsPart
from circuits.compare.state import StatePart
from circuits.compare.update import UpdatePart
from circuits.compare.verdicts import Verdict
from circuits.compare.where import WherePart
from interp.display import Tabled
from interp.files import json_values, write_atomic, write_json

FORMAT = 1
"""Version of the JSON."""


@dataclass(frozen=True)
class Failure:
    """A round at which the two models differ most.

    Attributes:
        set, seed, episode, round: where: ``task.sets_for`` with this seed gives the set (the second of its pair).
        nats: Jensen-Shannon divergence of the two predictions.
        model, reference: the predicted distributions.
    """

    set: str
    seed: int
    episode: int
    round: int
    nats: float
    model: tuple[float, ...]
    reference: tuple[float, ...]


@dataclass(frozen=True)
class Comparison(Tabled):
    """A model held against a reference, or against algorithms alone.

    Attributes:
        model, reference: names; the reference is "" where there is none.
        algorithm: which algorithm explains the model's predictions.
        update, effects: of the candidates' states in the model.
        state, circuit, where: None without a reference.
        verdicts: by question: "behaviour", "state", "update", "circuit".
        failures: where the two differ most, worst first.
        settings: seeds, sizes, versions, times.
    """

    model: str
    reference: str
    algorithm: AlgorithmPart
    update: UpdatePart
    effects: EffectsPart
    state: StatePart | None
    circuit: CircuitPart | None
    where: WherePart | None
    verdicts: dict[str, Verdict]
    failures: tuple[Failure, ...]
    settings: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        against = f" against {self.reference}" if self.reference else ""
        lines = [f"{self.model}{against}", f"algorithm: {self.algorithm}", *map(str, self.verdicts.values())]
        return "\n".join(lines)

    @cached_property
    def frames(self) -> dict[str, pd.DataFrame]:
        """The table of each part that there is, by the part's name; their intervals are drawn once."""
        named = {name: getattr(self, name) for name in ("algorithm", "state", "update", "effects", "circuit", "where")}
        return {name: part.to_frame() for name, part in named.items() if part is not None}

    def table(self) -> pd.DataFrame:
        """The verdicts, one row each."""
        rows = []
        for v in self.verdicts.values():
            row: dict[str, Any] = {
                "question": v.question,
                "verdict": v.word,
                "note": v.note,
                "decided by": v.decided_by,
            }
            bound = {"value": v.bound.estimate, "low": v.bound.low, "high": v.bound.high}
            rows.append({**row, **bound, "threshold": v.threshold, "untrained": v.control})
        return pd.DataFrame(rows)

    def summary(self) -> pd.DataFrame:
        """The verdicts as text, for a terminal."""
        rows = [
            {
                "same": v.question,
                "verdict": v.word + (f" ({v.note})" if v.note else ""),
                "decided by": v.decided_by,
                "value": str(v.bound),
                "threshold": str(v.threshold),
                "untrained": "" if np.isnan(v.control) else f"{v.control:.3g}",
            }
            for v in self.verdicts.values()
        ]
        return pd.DataFrame(rows)

    def to_frame(self) -> pd.DataFrame:
        """Every measurement of every part, one row each."""
        return pd.concat([frame.assign(part=name) for name, frame in self.frames.items()], ignore_index=True)

    def to_dict(self) -> dict[str, Any]:
        """JSON values; numbers that do not exist are None."""
        return {
            "format": FORMAT,
            "model": self.model,
            "reference": self.reference,
            "verdicts": json_values(self.table().to_dict("records")),
            "algorithm": self.algorithm.to_dict(),
            "parts": {name: json_values(frame.to_dict("records")) for name, frame in self.frames.items()},
            "failures": json_values(self.failures),
            "settings": json_values(self.settings),
        }

    def to_json(self) -> str:
        """:meth:`to_dict` as text."""
        return json.dumps(self.to_dict(), indent=2)

    def save(self, folder: str | Path) -> list[Path]:
        """Write ``comparison.json``, ``verdicts.csv`` and a CSV for each part.

        Raises:
            InputError: the folder cannot be written.
        """
        tables = {"verdicts": self.table(), **self.frames}
        paths = [write_json(Path(folder) / "comparison.json", self.to_dict())]
        for name, frame in tables.items():
            paths.append(write_atomic(Path(folder) / f"{name}.csv", lambda path, f=frame: f.to_csv(path, index=False)))  # type: ignore[misc]
        return paths
