"""The audit of a machine: every question that critics of latent reasoning ask, in their order.

from interp.audit import audit
found = audit("reachability-learned", quick=True)
found.verdicts                              # a line each, with number, interval, control and threshold
found.tables["used"]                        # and what they rest on
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from interp.audit import content, decoded, dynamics, groups, shortcuts, timing, used
from interp.audit.subject import FULL, QUICK, Effort, Subject, grows
from interp.audit.verdicts import THRESHOLDS, Verdict, to_frame
from interp.checks import checked
from interp.display import Tabled
from interp.errors import require_known
from interp.library import load
from interp.machine import Machine
from interp.progress import bar
from interp.provenance import provenance
from interp.session import session

_AWAY_SEED = 50


@dataclass(frozen=True)
class AuditResult(Tabled):
    """What an audit found.

    Attributes:
        verdicts: the lines.
        tables: what they rest on, by name: "used", "by_round", "presence", "directions", "doses", "repeated",
            "turning", "timing", "cycles", "rest", "ends", "stretch", "groups" and "shortcuts"; those that do not
            apply are empty.
    """

    model: str
    verdicts: tuple[Verdict, ...]
    tables: Mapping[str, pd.DataFrame]
    settings: Mapping[str, Any] = field(default_factory=dict)

    def to_frame(self) -> pd.DataFrame:
        """A row for each line."""
        return to_frame(self.verdicts)

    @checked
    def verdict(self, key: str, about: str = "") -> Verdict:
        """The line of a question, the first one where it is asked of several channels and ``about`` names none."""
        require_known("question", key, list(dict.fromkeys(line.key for line in self.verdicts)), limit=20)
        lines = [line for line in self.verdicts if line.key == key]
        if about:
            require_known("channel", about, [line.about for line in lines], limit=20)
        return next(line for line in lines if about in ("", line.about))


@checked
def audit(machine: str | Machine, *, quick: bool = False, effort: Effort | None = None) -> AuditResult:
    """Ask every question of a machine.

    Args:
        machine: a machine, or a name that :func:`interp.load` takes.
        quick: half of the episodes and fewer rounds, with wider intervals.
        effort: how much is run; overrides ``quick``.

    Example:
        >>> import interp
        >>> found = audit(interp.load("wma-handwired", n_experts=2), effort=Effort(16, 4, 2, 0, 12, 1, 1))
        >>> found.verdict("content").word, found.verdict("decoded").word
        ('content', 'read')
    """
    model = (load(machine) if isinstance(machine, str) else machine).eval()
    effort = effort or (QUICK if quick else FULL)
    with session(), bar(f"auditing {model.name}", 6) as done:
        subject = Subject.of(model, effort)
        blank = subject.untrained()
        done(1)
        lines = [used.used(subject, channel) for channel in subject.channels]
        lines += [used.content(subject), used.lasts(subject), decoded.decoded(subject, blank)]
        done(1)
        lines += [content.few(subject), timing.in_time(subject, blank)]
        longer = {
            name: timing.twice(subject, regime, _AWAY_SEED + i) for i, (name, regime) in enumerate(_regimes(subject))
        }
        lines += [timing.longer(next(iter(longer.values())), subject.shape[1]), timing.stays(longer)]
        done(1)
        lines += [dynamics.moves(subject, blank)]
        done(1)
        lines += [shortcuts.side(subject, blank, lines[0].word)]
        done(1)
        tables = {
            "used": used.table(subject),
            "by_round": used.by_round(subject),
            "presence": _presence(subject, longer),
            "directions": content.table(subject),
            "doses": content.doses(subject),
            "repeated": content.repeated(subject),
            "turning": content.turning(subject),
            "timing": timing.table(subject),
            "cycles": timing.cycles(subject),
            "rest": timing.rest_table(longer),
            "ends": _ends(subject),
            "stretch": dynamics.stretch_table(dynamics.stretch(subject)),
            "groups": groups.table(subject),
            "shortcuts": shortcuts.table(subject),
        }
        done(1)
    settings = provenance(model, **vars(effort), thresholds={name: of.value for name, of in THRESHOLDS.items()})
    return AuditResult(model.name, tuple(lines), tables, settings)


def _regimes(subject: Subject) -> list[tuple[str, str]]:
    """The sampler's default regime, whose key is empty, and some others from the last one on, evenly spaced."""
    home = str(subject.episodes.regime)
    others = [regime for regime in subject.regimes if regime != home]
    n = min(subject.effort.away, len(others))
    chosen = [others[len(others) - 1 - i * len(others) // n] for i in range(n)]
    return [(home, ""), *((name, name) for name in chosen)]


def _presence(subject: Subject, away: Mapping[str, Subject]) -> pd.DataFrame:
    """Content x presence in the default regime, and in others."""
    named = {str(subject.episodes.regime): subject, **dict(list(away.items())[1:])}
    return pd.concat([used.presence(of).assign(regime=name) for name, of in named.items()], ignore_index=True)


def _ends(subject: Subject) -> pd.DataFrame:
    return pd.DataFrame() if grows(subject.model.channels) else dynamics.ends(subject)
