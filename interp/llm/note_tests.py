"""Does a player's note carry its state? Notes are edited, the player goes on from them, and its choices are compared.

A player that keeps a note is a machine with rounds whose channel is a text. At one moment of each trace (so many rounds
before its end) its note is replaced by an edit of it (:mod:`interp.llm.note_edits`), and the player goes on for a few
rounds, beside itself with its own note and the same votes. What an edit should do is said by scripted agents that know
nothing but what either note says. The votes of the first round are chosen so that the edit tells,
that is, so that all of these agents choose otherwise after it; later rounds are the instance's own and count where
they tell. Under ``note`` the conversation so far stays as it was, and the edit changes the note alone.

A note that tells no experts apart cannot be edited: then a note that counts right is put in its place first ("given"),
and the question becomes whether the player goes by such a note.

- *follows*: the share of telling rounds in which the player, with either note, chooses as the agents do;
- *moved*: the share of rounds in which its choice with the edited note is another than with its own. For a control this
  should be 0; a player that samples moves by chance, as the control "the same note" shows.

The verdict is about the first round and uses exact 95 % intervals, one note per instance:

- "the note carries the state": every edit is followed in more than :data:`HALF` of the telling rounds, and no control
  moves as many;
- "the note is not used": of fewer than :data:`UNUSED` of the notes does any edit move the choice, or any control;
- "the note is used in another way": edits move more notes than controls do, and an edit is followed in fewer than
  :data:`HALF`;
- else, or where no edit or no control could be asked of :data:`FEWEST` notes, "undecided".

What this is NOT: a note that carries the state may still be read wrongly in rounds that no edit tells. And a player
that keeps its history beside a note may use the note where the history is too long.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from interp.checks import checked
from interp.display import Tabled
from interp.errors import require
from interp.llm.agents import AGENTS, Evidence, ScriptedAgent, evidence_in, scripted
from interp.llm.backend import AgentBackend, Backend, Connection, Settings
from interp.llm.loading import from_trace
from interp.llm.note_counts import write_counts
from interp.llm.note_edits import CONTROLS, EDITS, edited, says_anything
from interp.llm.plan import Instance, Job
from interp.llm.runner import run
from interp.llm.schemes import Condition, Prompt
from interp.llm.trace import instance_of, read_lines, replay, session_from
from interp.provenance import provenance
from interp.statistics import Interval, exact_share

HALF = 0.5
"""Least share of telling rounds that are followed: a coin with either note follows one of four, a player that departs
from its algorithm in one choice of ten follows .81."""
UNUSED = 0.3
"""A note that moves fewer rounds than this, by the interval, is not used: 11 instances that never move suffice."""
FEWEST = 6
"""Notes with telling rounds that an edit needs to have a part in the verdict: of 6, all are more than half by the exact
interval, of 5 they are not."""
AGAINST = ("follow-the-leader", "weighted-majority")
OWN = "own"


@dataclass(frozen=True)
class Endpoint:
    """How the player of some traces is reached: as they say, but for what is given here.

    Args:
        base_url: the server's address; that of the traces when None. ``key_env``: see :class:`Connection`.
        device: where a model in this process runs.
    """

    base_url: str | None = None
    key_env: str | None = None
    concurrency: int = 4
    device: str = "cpu"

    def backend(self, settings: Settings, address: str) -> Connection | Backend:
        """What answers for a player with ``settings``, who was reached at ``address``."""
        if self.base_url is None and settings.model in AGENTS and address.startswith("scripted agent"):
            return AgentBackend(settings.model, AGENTS[settings.model])
        if self.base_url is None and address.startswith("transformers on"):
            from interp.llm.local import LocalBackend

            return LocalBackend(settings, self.concurrency, self.device)
        return Connection(self.base_url or address, self.key_env, self.concurrency)


@dataclass(frozen=True, eq=False)
class _Moment:
    """One trace at the moment of the edit: the job of going on from its note, and every text that may replace it."""

    job: Job
    given: bool
    texts: Mapping[str, str]
    address: str


@dataclass(frozen=True, eq=False)
class _Asked:
    """An edit at one moment: its own job, that of the player's own note, and what the agents choose after each.

    ``before`` and ``after``: Int[agent, round].
    """

    edit: str
    given: bool
    job: Job
    own: Job
    before: NDArray[np.int64]
    after: NDArray[np.int64]

    @property
    def telling(self) -> NDArray[np.bool_]:
        """Bool[round]: all agents choose alike with one note, and otherwise with the other one."""
        alike = (self.before == self.before[0]).all(0) & (self.after == self.after[0]).all(0)
        return np.asarray(alike & (self.before[0] != self.after[0]))


@dataclass(frozen=True)
class NoteTest(Tabled):
    """What edits of notes do to the choices of one player under one condition.

    Attributes:
        table: a row for each edit and control, and for each round after it: ``notes`` (how many were edited,
            ``given`` of them ours), ``missing`` (rounds without a usable answer), ``telling``, and the shares
            ``follows`` and ``moved``, each with the bounds of its exact 95 % interval.
    """

    model: str
    condition: str
    verdict: str
    table: pd.DataFrame = field(repr=False)
    settings: dict[str, Any] = field(repr=False)

    def to_frame(self) -> pd.DataFrame:
        """A row for each edit and control, and each round after it."""
        return self.table.assign(model=self.model, condition=self.condition, verdict=self.verdict)


@checked
def try_edits(
    path: str | Path,
    folder: str | Path,
    rounds: int = 2,
    against: Sequence[str] = AGAINST,
    where: Endpoint | Backend = Endpoint(),
    seed: int = 0,
) -> list[NoteTest]:
    """Edit the notes in the traces below ``path``, let their players go on, and say what their notes are for.

    Args:
        folder: where the traces of what is played now go; the same call resumes.
        rounds: how many rounds are played after an edit.
        against: scripted agents that say what an edit should do.
        where: how the player of the traces is reached, or what answers in its place.

    Raises:
        InputError: no trace with notes that is long enough, or no way to reach the player.
    """
    require(rounds >= 1, f"rounds must be 1 or more, got {rounds}")
    require(bool(against), "name at least one scripted agent that says what an edit should do")
    agents = [scripted(name) for name in against]
    groups: dict[tuple[str, str], list[_Moment]] = {}
    for moment in _moments(Path(path), rounds):
        groups.setdefault((moment.job.settings.model, moment.job.condition.name), []).append(moment)
    require(
        bool(groups),
        f"{str(path)!r} holds no trace of `interp llm run` with notes and more than {rounds} rounds; play a condition "
        "with notes, such as weather-note-only, first",
    )
    tests = []
    for (model, condition), moments in groups.items():
        asked = [one for i, moment in enumerate(moments) for one in _asked(moment, agents, (seed, i))]
        jobs = {one.place: one for pair in asked for one in (pair.job, pair.own)}
        require(bool(jobs), f"no note of {model!r} in {condition} has an edit that tells; play more instances")
        first = moments[0]
        answers = where.backend(first.job.settings, first.address) if isinstance(where, Endpoint) else where
        done = run(list(jobs.values()), folder, answers)
        require(done.complete, f"not every edited note was answered: {done.sentence}")
        told = provenance(against=list(against), seed=seed, calls=done.calls)
        tests.append(_judged(model, condition, asked, Path(folder), told))
    return tests


def _moments(path: Path, rounds: int) -> Iterator[_Moment]:
    """The moment of each trace below ``path``, ``rounds`` before its end."""
    for file in [path] if path.is_file() else sorted(path.rglob("*.jsonl")):
        (header, *records), _ = read_lines(file)
        if "begins" in header or not Condition(**header["condition"]).has_note:
            continue
        whole = from_trace(file)
        at = whole.rounds - rounds
        if at < 1 or None in whole.notes[:at]:
            continue
        session = session_from(header)
        replay(session, records, file, rounds=at)
        told = instance_of(header, records)
        n_experts, note = whole.advice.shape[1], session.note
        given = not says_anything(note, n_experts)
        if given:
            right = (whole.advice == whole.labels[:, None])[:at].sum(0)
            note = write_counts(right.tolist(), at)
        later = whole.advice[at : at + rounds], whole.labels[at : at + rounds]
        instance = Instance(whole.regime, whole.index, told.get("seed"), *later, np.asarray(told["accuracies"]))
        settings = Settings(**header["settings"])
        job = Job(session.condition, instance, Prompt(header["prompt"]["text"], header["prompt"]["wording"]), settings)
        earlier = whole.notes[at // 2 - 1] if at >= 2 and not given else None
        begins = {"note": note, "history": session.history, "last_note": False}
        yield _Moment(
            replace(job, begins=begins), given, edited(note, n_experts, earlier), str(header["made_with"]["address"])
        )


def _asked(moment: _Moment, agents: Sequence[ScriptedAgent], seed: tuple[int, int]) -> Iterator[_Asked]:
    """Every edit that some votes tell in the first round, then the controls with the votes of the first of them."""
    every = np.array(list(product((0, 1), repeat=moment.job.instance.advice.shape[1])))
    np.random.default_rng(seed).shuffle(every)
    used: list[NDArray[np.int64]] = []
    for name in [name for name in EDITS if name in moment.texts]:
        known = (one for votes in used if (one := _with_votes(moment, name, votes, agents)).telling.all())
        one = next(known, None) or _told(moment, name, every, agents)
        if one.telling[0]:
            used.append(one.job.instance.advice)
            yield one
    for name in [name for name in CONTROLS if name in moment.texts and used]:
        yield _with_votes(moment, name, used[0], agents)


def _told(moment: _Moment, name: str, every: NDArray[np.int64], agents: Sequence[ScriptedAgent]) -> _Asked:
    """An edit with votes that tell it, round by round; the instance's own where none do."""
    advice = moment.job.instance.advice.copy()
    for lag in range(len(advice)):
        for votes in (*every, advice[lag].copy()):
            advice[lag] = votes
            one = _with_votes(moment, name, advice.copy(), agents)
            if one.telling[lag]:
                break
    return one


def _with_votes(moment: _Moment, name: str, advice: NDArray[np.int64], agents: Sequence[ScriptedAgent]) -> _Asked:
    told = "-".join("".join(map(str, votes)) for votes in advice)
    own = replace(moment.job, instance=replace(moment.job.instance, advice=advice), variant=f"{OWN}-{told}")
    text = moment.texts[name]
    job = replace(own, variant=f"{name.replace(' ', '-')}-{told}", begins={**own.begins, "note": text})
    before, after = (np.array([_choices(one, agent) for agent in agents]) for one in (own, job))
    return _Asked(name, moment.given, job, own, before, after)


def _choices(job: Job, agent: ScriptedAgent) -> list[int]:
    """What a scripted agent chooses that knows what the note says, and then keeps what it sees."""
    instance, choices = job.instance, []
    seen = _evidence(job.begins["note"], instance.advice.shape[1])
    for votes, label in zip(instance.advice, instance.labels, strict=True):
        choices.append(agent.rule(seen, votes))
        right = votes == label
        seen = Evidence(seen.correct + right, seen.rounds + 1, right)
    return choices


_evidence = lru_cache(maxsize=1000)(evidence_in)


def _judged(model: str, condition: str, asked: Sequence[_Asked], folder: Path, settings: dict[str, Any]) -> NoteTest:
    said = {one.place: from_trace(folder / one.place).predictions for pair in asked for one in (pair.job, pair.own)}
    rows = []
    for name in [*EDITS, *CONTROLS]:
        here = [one for one in asked if one.edit == name]
        for lag in range(max((len(one.telling) for one in here), default=0)):
            rows.append(_row(name, lag, here, said))
    table = pd.DataFrame(rows)
    stirred: dict[str, dict[str, bool]] = {"edit": {}, "control": {}}
    for one in asked:
        own, changed = said[one.own.place][0], said[one.job.place][0]
        notes, note = stirred["edit" if one.edit in EDITS else "control"], one.job.instance.name
        notes[note] = notes.get(note, False) or bool(own != changed and not np.isnan(own + changed))
    shares = {kind: exact_share(np.array(list(notes.values()))) for kind, notes in stirred.items()}
    return NoteTest(model, condition, _verdict(table, shares), table, settings)


def _row(name: str, lag: int, here: Sequence[_Asked], said: Mapping[Path, NDArray[np.float64]]) -> dict[str, Any]:
    own, changed = (
        np.array([said[job.place][lag] for job in jobs])
        for jobs in zip(*((one.own, one.job) for one in here), strict=True)
    )
    known = ~np.isnan(own) & ~np.isnan(changed)
    telling = np.array([one.telling[lag] for one in here]) & known
    follows = (own == [one.before[0, lag] for one in here]) & (changed == [one.after[0, lag] for one in here])
    row: dict[str, Any] = {
        "kind": "edit" if name in EDITS else "control",
        "change": name,
        "round": lag + 1,
        "notes": len(here),
    }
    row |= {"given": sum(one.given for one in here), "missing": int((~known).sum()), "telling": int(telling.sum())}
    row |= exact_share(follows[telling]).columns("follows")
    return row | exact_share((own != changed)[telling if name in EDITS else known]).columns("moved")


def _verdict(table: pd.DataFrame, stirred: Mapping[str, Interval]) -> str:
    """The rule of the module's text; ``stirred``: the share of notes that any edit, or any control, moves."""
    first = table[table["round"] == 1] if len(table) else table
    edits = first[(first["kind"] == "edit") & (first["telling"] >= FEWEST)] if len(first) else first
    controls = first[(first["kind"] == "control") & (first["notes"] >= FEWEST)] if len(first) else first
    if not len(edits) or not len(controls):
        return "undecided"
    if (edits["follows_low"] > HALF).all() and (controls["moved_high"] < HALF).all():
        return "the note carries the state"
    if all(one.high < UNUSED for one in stirred.values()):
        return "the note is not used"
    moves = stirred["edit"].low > stirred["control"].high
    return "the note is used in another way" if moves and (edits["follows_high"] < HALF).any() else "undecided"
