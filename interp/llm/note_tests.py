"""Does a player's note carry its state? Notes are edited, the player goes on from them, and its choices are compared.

Two measures are about the first round: ``carries``, by the edit that is followed least, and ``used``, by the notes of
which any edit moves the choice. Which edits are kept, when they tell, and what is followed and moved:
docs/method/notes.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from interp.llm import backend as players
from interp.llm.loading import from_trace, load
from interp.llm.notes import mentions, read_counts, write_counts
from interp.llm.plan import Instance, Job
from interp.llm.protocol import instance_of, read_lines, replay, session_from
from interp.llm.runner import run
from interp.llm.schemes import Prompt, expert_letters
from interp.results.measure import FEW, Control, Measure, Measured, claims, decisive, sentence
from interp.stats.intervals import exact_share
from interp.support.errors import require, require_known
from interp.support.files import read_tables
from interp.support.provenance import provenance

_HALF = 0.5  # least share of telling rounds that are followed (why: docs/method/notes.md)
_UNUSED = 0.3  # least share of notes that are used
_FEWEST = 6  # notes with telling rounds that an edit needs to be judged
AGAINST = ("follow-the-leader", "weighted-majority")
_TEXTS = read_tables(Path(__file__).with_suffix(".toml"))
_EDITS, _CONTROLS = _TEXTS["edits"], _TEXTS["controls"]
_claim = claims(Path(__file__).with_suffix(".toml"))
_IRRELEVANT = "The office moves to another building next month."


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

    def backend(
        self, settings: players.Settings, address: str
    ) -> players.Connection | players.Backend:
        """What answers for a player with ``settings``, who was reached at ``address``."""
        if (
            self.base_url is None
            and settings.model in players.AGENTS
            and address.startswith("scripted agent")
        ):
            return players.AgentBackend(settings.model, players.AGENTS[settings.model])
        if self.base_url is None and address.startswith("transformers on"):
            from interp.llm.local import LocalBackend

            return LocalBackend(settings, self.concurrency, self.device)
        return players.Connection(self.base_url or address, self.key_env, self.concurrency)


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

    ``before`` and ``after``: Int[agent, round]. A control has the ``after`` of the edit whose votes it is asked with.
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


@dataclass(frozen=True, eq=False, repr=False)
class _NoteTest(Measured):
    """What edits of notes do to the choices of one player under one condition: the measures "carries" and "used".

    ``table`` has a row for each edit and control, and each round after it: ``notes`` that were edited (``given`` of
    them ours), those ``missing`` a usable answer, ``telling`` ones, and the shares ``follows`` and ``moved``, each
    exact.
    """

    model: str
    condition: str
    measures: tuple[Measure, ...]
    table: pd.DataFrame
    settings: dict[str, Any]

    @property
    def sentence(self) -> str:
        """What the measures say together."""
        return sentence(f"{self.model} ({self.condition})", self.measures)


def try_edits(
    path: str | Path,
    folder: str | Path,
    rounds: int = 2,
    against: Sequence[str] = AGAINST,
    where: Endpoint | players.Backend = Endpoint(),
    seed: int = 0,
) -> list[_NoteTest]:
    """Edit the notes in the traces below ``path``, let their players go on, and say what their notes are for.

    Args:
        folder: where the traces of what is played now go; the same call resumes.
        rounds: how many rounds are played after an edit.
        against: scripted agents that say what an edit should do.
        where: how the player of the traces is reached, or what answers in its place.
    """
    require(rounds >= 1, f"rounds must be 1 or more, got {rounds}")
    require(bool(against), "name at least one scripted agent that says what an edit should do")
    for name in against:
        require_known("scripted agent", name, players.AGENTS)
    agents = [players.AGENTS[name] for name in against]
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
        asked = [
            one for i, moment in enumerate(moments) for one in _asked(moment, agents, (seed, i))
        ]
        jobs = {one.place: one for pair in asked for one in (pair.job, pair.own)}
        require(
            bool(jobs),
            f"no note of {model!r} in {condition} has an edit that tells; play more instances",
        )
        first = moments[0]
        answers = (
            where.backend(first.job.settings, first.address)
            if isinstance(where, Endpoint)
            else where
        )
        done = run(list(jobs.values()), folder, answers)
        require(done.complete, f"not every edited note was answered: {done.sentence}")
        told = provenance(against=list(against), seed=seed, calls=done.calls)
        places = {
            one.place: from_trace(Path(folder) / one.place).predictions for one in jobs.values()
        }
        outcomes = _outcomes(asked, places)
        rows = []
        for (kind, change, number), part in outcomes.groupby(
            ["kind", "change", "round"], sort=False
        ):
            row = {
                "kind": kind,
                "change": change,
                "round": number,
                "notes": len(part),
                "given": part["given"].sum(),
            }
            row |= {"missing": (~part["usable"]).sum(), "telling": part["telling"].sum()}
            row |= exact_share(part.loc[part["telling"], "follows"]).columns("follows")
            moved = part.loc[part["telling" if kind == "edit" else "usable"], "moved"]
            rows.append(row | exact_share(moved).columns("moved"))
        tests.append(_NoteTest(model, condition, _judged(outcomes), pd.DataFrame(rows), told))
    return tests


def _moments(path: Path, rounds: int) -> Iterator[_Moment]:
    """The moment of each trace below ``path``, ``rounds`` before its end."""
    for whole in load(path, duplicates="first"):
        at = whole.rounds - rounds
        if (
            whole.path.suffix != ".jsonl"
            or not whole.condition.has_note
            or at < 1
            or None in whole.notes[:at]
        ):
            continue
        (header, *records), _ = read_lines(whole.path)
        session = session_from(header)
        replay(session, records, whole.path, rounds=at)
        told = instance_of(header, records)
        n_experts, note = whole.advice.shape[1], session.note
        given = not _says_anything(note, n_experts)
        if given:
            note = write_counts((whole.advice == whole.labels[:, None])[:at].sum(0).tolist(), at)
        later = whole.advice[at : at + rounds], whole.labels[at : at + rounds]
        instance = Instance(
            whole.regime, whole.index, told.get("seed"), *later, np.asarray(told["accuracies"])
        )
        settings = players.Settings(**header["settings"])
        job = Job(
            session.condition,
            instance,
            Prompt(header["prompt"]["text"], header["prompt"]["wording"]),
            settings,
        )
        earlier = whole.notes[at // 2 - 1] if at >= 2 and not given else None
        begins = {"note": note, "history": session.history, "last_note": False}
        yield _Moment(
            replace(job, begins=begins),
            given,
            _edited(note, n_experts, earlier),
            str(header["made_with"]["address"]),
        )


def _asked(
    moment: _Moment, agents: Sequence[players.ScriptedAgent], seed: tuple[int, int]
) -> Iterator[_Asked]:
    """Every edit that some votes tell in the first round, then the controls with the votes of the first of them."""
    every = np.array(list(product((0, 1), repeat=moment.job.instance.advice.shape[1])))
    np.random.default_rng(seed).shuffle(every)
    used: list[_Asked] = []
    for name in [name for name in _EDITS if name in moment.texts]:
        known = (_with_votes(moment, name, other.job.instance.advice, agents) for other in used)
        one = next((found for found in known if found.telling.all()), None)
        if (
            one is None
        ):  # votes that tell the edit, round by round; the instance's own where none do
            advice = moment.job.instance.advice.copy()
            for lag in range(len(advice)):
                for tried in (*every, advice[lag].copy()):
                    advice[lag] = tried
                    one = _with_votes(moment, name, advice.copy(), agents)
                    if one.telling[lag]:
                        break
        assert one is not None, "an instance has rounds"
        if one.telling[0]:
            used.append(one)
            yield one
    for name in [name for name in _CONTROLS if name in moment.texts and used]:
        yield replace(
            _with_votes(moment, name, used[0].job.instance.advice, agents), after=used[0].after
        )


def _with_votes(
    moment: _Moment, name: str, advice: NDArray[np.int64], agents: Sequence[players.ScriptedAgent]
) -> _Asked:
    told = "-".join("".join(map(str, votes)) for votes in advice)
    own = replace(
        moment.job, instance=replace(moment.job.instance, advice=advice), variant=f"own-{told}"
    )
    job = replace(
        own,
        variant=f"{name.replace(' ', '-')}-{told}",
        begins={**own.begins, "note": moment.texts[name]},
    )
    # What scripted agents choose that know what the note says, and then keep what they see.
    choices = np.zeros((2, len(agents), len(advice)), dtype=np.int64)
    for i, one in enumerate((own, job)):
        seen = _evidence(one.begins["note"], advice.shape[1])
        for t, (votes, label) in enumerate(zip(advice, one.instance.labels, strict=True)):
            choices[i, :, t] = [agent.rule(seen, votes) for agent in agents]
            seen = players.Evidence(
                seen.correct + (votes == label), seen.rounds + 1, votes == label
            )
    return _Asked(name, moment.given, job, own, *choices)


_evidence = lru_cache(maxsize=1000)(players.evidence_in)


def _outcomes(asked: Sequence[_Asked], said: Mapping[Path, NDArray[np.float64]]) -> pd.DataFrame:
    """A row for each edit or control of each note, and each round after it: does it tell, is it followed or moved."""
    rows, order = [], [*_EDITS, *_CONTROLS]
    for one in sorted(asked, key=lambda one: order.index(one.edit)):
        kind, note = "edit" if one.edit in _EDITS else "control", one.job.instance.name
        for lag, tells in enumerate(one.telling):
            own, changed = said[one.own.place][lag], said[one.job.place][lag]
            usable = not np.isnan(own + changed)
            follows = own == one.before[0, lag] and changed == one.after[0, lag]
            row = {
                "kind": kind,
                "change": one.edit,
                "round": lag + 1,
                "note": note,
                "given": one.given,
            }
            row |= {"usable": usable, "telling": usable and tells}
            rows.append(row | {"follows": follows, "moved": usable and own != changed})
    return pd.DataFrame(rows)


def _judged(outcomes: pd.DataFrame) -> tuple[Measure, Measure]:
    """The measures "carries" and "used", of the first round."""
    first = outcomes[outcomes["round"] == 1]
    enough = (
        first[first["telling"]]
        .groupby(["kind", "change"], sort=False)
        .filter(lambda part: len(part) >= _FEWEST)
    )
    by = {
        kind: part.groupby("change", sort=False)["follows"] for kind, part in enough.groupby("kind")
    }
    controls = {str(name): Control(hits.mean()) for name, hits in by.get("control", ())}
    numbers = {str(name): exact_share(hits) for name, hits in by.get("edit", ())}
    known: dict[str, Any] = {"threshold": _HALF, "controls": controls}
    parts = [_claim("carries", number, claim=name, **known) for name, number in numbers.items()]
    few = {"undecided": f"{FEW}: no edit tells in {_FEWEST} notes or more"}
    carries = decisive(
        parts or [_claim("carries", claim="", unless=few, **known)],
        claim="Its note carries its state",
    )
    moved = {str(kind): part.groupby("note")["moved"].any() for kind, part in first.groupby("kind")}
    beside = (
        {"texts that say the same": Control(moved["control"].mean())} if "control" in moved else {}
    )
    return carries, _claim("used", exact_share(moved["edit"]), threshold=_UNUSED, controls=beside)


def _same_state(one: players.Evidence, other: players.Evidence) -> bool:
    """Do two notes say the same: of counts, or where there are none, of who was right last?"""
    alike = np.array_equal(one.correct, other.correct)
    return bool(alike and (one.correct.any() or np.array_equal(one.last, other.last)))


def _says_anything(note: str, n_experts: int) -> bool:
    """Does a note tell the experts apart, by counts or by who was right last?"""
    said = players.evidence_in(note, n_experts)
    return bool(np.ptp(said.correct) or (said.last.any() and not said.last.all()))


def _edited(note: str, n_experts: int, earlier: str | None = None) -> dict[str, str]:
    """Every edit and control that applies to ``note``, by name; ``earlier`` is the player's note after half as many
    rounds.

    >>> _edited("A:5/9, B:3/9, C:8/9, D:2/9", 4)["swap two players"]
    'A:5/9, B:3/9, D:8/9, C:2/9'
    """
    said, letters = players.evidence_in(note, n_experts), expert_letters(n_experts)
    order = said.correct if said.correct.any() else said.last.astype(np.int64)
    best, worst = int(order.argmax()), int(order.argmin())
    raised, swapped, without = order.copy(), order.copy(), order.copy()
    raised[worst] = min(order[best] + 1, said.rounds)
    swapped[[best, worst]] = order[[worst, best]]
    without[best] = 0
    two = {letters[best]: letters[worst], letters[worst]: letters[best]}
    around = dict(zip(letters, letters[1:] + letters[:1], strict=True))
    # The first number after the first mention of the worst expert alone is replaced.
    alone = next(
        (one for one in mentions(note, n_experts) if one.letters == (letters[worst],)), None
    )
    recounted = note
    if alone is not None:
        text = re.sub(r"\d+", str(raised[worst]), alone.text, count=1)
        recounted = note[: alone.start] + text + note[alone.start + len(alone.text) :]
    # The text, and what every expert's count has to be in it.
    wanted = {
        "swap two players": (_renamed(note, two, n_experts), swapped),
        "permute names": (_renamed(note, around, n_experts), np.roll(order, 1)),
        "edit one count": (recounted, raised),
        "delete the best": (_without(note, letters[best], n_experts), without),
    }
    found = {}
    for name, (text, counts) in wanted.items():
        after = players.evidence_in(text, n_experts)
        if not np.array_equal(counts, order) and np.array_equal(
            after.correct if after.correct.any() else after.last, counts
        ):
            found[name] = text
    if said.correct.any():
        found["counts that never happened"] = write_counts(
            (said.rounds - said.correct).tolist(), said.rounds
        )
    if earlier is not None and _says_anything(earlier, n_experts):
        found["an earlier note"] = earlier
    controls = {
        "the same note": note,
        "an irrelevant sentence": f"{note.rstrip().removesuffix('.')}. {_IRRELEVANT}",
    }
    if len(read_counts(note, n_experts)) == n_experts:
        counted = zip(letters, said.correct.tolist(), strict=True)
        words = [
            f"Expert {letter} was right {count} times out of {said.rounds}"
            for letter, count in counted
        ]
        controls["paraphrase"] = "; ".join(words)
    # The parts between separators in the opposite order, by the first separator that leaves what is said alone.
    for separator, between in ((r"[;\n]\s*", "; "), (r"[;,\n]\s*", ", "), (r"\s+(?=Round)", " ")):
        parts = [part for part in re.split(separator, note.strip().removesuffix(".")) if part]
        text = between.join(reversed(parts))
        if len(parts) > 1 and _same_state(players.evidence_in(text, n_experts), said):
            controls.setdefault("reorder", text)
    return found | {
        name: text
        for name, text in controls.items()
        if _same_state(players.evidence_in(text, n_experts), said)
    }


def _renamed(note: str, names: Mapping[str, str], n_experts: int) -> str:
    """``note`` with the letters of experts replaced, all at once.

    >>> _renamed("Expert_A and B right; C wrong", {"A": "C", "C": "A"}, 4)
    'Expert_C and B right; A wrong'
    """
    parts, end = [], 0
    for mention in mentions(note, n_experts):
        named = re.sub(
            r"(?<![A-Za-z])[A-Z](?![A-Za-z])",
            lambda m: names.get(m[0], m[0]),
            note[mention.begin : mention.start],
        )
        parts += [note[end : mention.begin], named]
        end = mention.start
    return "".join([*parts, note[end:]])


def _without(note: str, letter: str, n_experts: int) -> str:
    """Every mention of an expert taken out: its name, and where it is named alone what follows up to a separator."""
    for mention in reversed(mentions(note, n_experts)):
        if mention.letters == (letter,):
            rest = re.sub(r"\A[^,;.\n]*[,;.\n]?\s*", "", mention.text)
            note = note[: mention.begin] + rest + note[mention.start + len(mention.text) :]
        elif letter in mention.letters:
            named = re.sub(
                rf"{letter}(?![A-Za-z])\s*(?:,|&|/|and\b)?\s*",
                "",
                note[mention.begin : mention.start],
            )
            note = (
                note[: mention.begin]
                + re.sub(r"\s*(?:,|&|/|\band)\s*\Z", "", named)
                + note[mention.start :]
            )
    return note
