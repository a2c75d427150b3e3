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
from interp.llm.runs import LLMRun
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
_LETTER = r"(?<![A-Za-z])[A-Z](?![A-Za-z])"
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
        """Return what answers for a player with ``settings``, who was reached at ``address``."""
        if self.base_url is None and address.startswith("scripted agent"):
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
        agree_before = (self.before == self.before[0]).all(axis=0)
        agree_after = (self.after == self.after[0]).all(axis=0)
        return agree_before & agree_after & (self.before[0] != self.after[0])


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
        """The finding of both measures in one sentence."""
        return sentence(f"{self.model} ({self.condition})", self.measures)


def try_edits(
    path: str | Path,
    folder: str | Path,
    rounds: int = 2,
    against: Sequence[str] = AGAINST,
    where: Endpoint | players.Backend = Endpoint(),
    seed: int = 0,
) -> list[_NoteTest]:
    """Edit the notes in the traces below ``path``, let their players go on, and measure what their notes are for.

    Args:
        path: traces of `interp llm run`.
        folder: where the traces of what is played now go; the same call resumes.
        rounds: how many rounds are played after an edit.
        against: scripted agents that say what an edit should do.
        where: how the player of the traces is reached, or what answers in its place.
        seed: of the order in which votes are tried.

    Returns:
        A test for each player and condition.
    """
    require(rounds >= 1, f"rounds must be 1 or more, got {rounds}")
    require(bool(against), "name at least one scripted agent that says what an edit should do")
    for name in against:
        require_known("scripted agent", name, players.AGENTS)
    agents = [players.AGENTS[name] for name in against]
    groups: dict[tuple[str, str], list[_Moment]] = {}
    for moment in _moments(Path(path), rounds):
        player = (moment.job.settings.model, moment.job.condition.name)
        groups.setdefault(player, []).append(moment)
    require(
        bool(groups),
        f"{str(path)!r} holds no trace of `interp llm run` with notes and more than {rounds} rounds; play a condition "
        "with notes, such as weather-note-only, first",
    )
    tests = []
    for (model, condition), moments in groups.items():
        questions = []
        for number, moment in enumerate(moments):
            questions += _questions(moment, agents, (seed, number))
        require(
            bool(questions),
            f"no note of {model!r} in {condition} has an edit that tells; play more instances",
        )
        backend: Any = where
        if isinstance(where, Endpoint):
            backend = where.backend(moments[0].job.settings, moments[0].address)
        outcomes, n_calls = _play(questions, Path(folder), backend)
        test = _NoteTest(
            model,
            condition,
            measures=_judged(outcomes),
            table=_shares(outcomes),
            settings=provenance(against=list(against), seed=seed, calls=n_calls),
        )
        tests.append(test)
    return tests


def _play(
    questions: Sequence[_Asked], folder: Path, backend: players.Connection | players.Backend
) -> tuple[pd.DataFrame, int]:
    """Let the player answer all questions; return :func:`_outcomes` and how many calls that took."""
    jobs = {}
    for question in questions:
        jobs[question.job.place] = question.job
        jobs[question.own.place] = question.own
    done = run(list(jobs.values()), folder, backend)
    require(done.complete, f"not every edited note was answered: {done.sentence}")
    answers = {place: from_trace(folder / place).predictions for place in jobs}
    return _outcomes(questions, answers), done.calls


def _shares(outcomes: pd.DataFrame) -> pd.DataFrame:
    """Return the table of :class:`_NoteTest`: one row per change and round, with exact intervals."""
    rows = []
    for keys, part in outcomes.groupby(["kind", "change", "round"], sort=False):
        kind, change, number = keys
        telling = part[part["telling"]]
        usable = part[part["usable"]]
        counted = telling if kind == "edit" else usable
        row = {
            "kind": kind,
            "change": change,
            "round": number,
            "notes": len(part),
            "given": part["given"].sum(),
            "missing": len(part) - len(usable),
            "telling": len(telling),
        }
        row |= exact_share(telling["follows"]).columns("follows")
        row |= exact_share(counted["moved"]).columns("moved")
        rows.append(row)
    return pd.DataFrame(rows)


def _moments(path: Path, rounds: int) -> Iterator[_Moment]:
    """Yield the moment of each trace below ``path``, ``rounds`` before its end."""
    for trace in load(path, duplicates="first"):
        at = trace.rounds - rounds
        is_own_trace = trace.path.suffix == ".jsonl"
        if at >= 1 and is_own_trace and None not in trace.notes[:at]:
            yield _moment(trace, at)


def _moment(trace: LLMRun, at: int) -> _Moment:
    """Return the moment after the first ``at`` rounds of a trace."""
    (header, *records), _ = read_lines(trace.path)
    session = session_from(header)
    replay(session, records, trace.path, rounds=at)
    recorded = instance_of(header, records)
    n_experts = trace.advice.shape[1]
    note = session.note
    given = not _says_anything(note, n_experts)
    earlier = None
    if given:
        is_right = trace.advice[:at] == trace.labels[:at, None]
        note = write_counts(is_right.sum(axis=0).tolist(), at)
    elif at >= 2:
        earlier = trace.notes[at // 2 - 1]
    later = slice(at, trace.rounds)
    instance = Instance(
        trace.regime,
        trace.index,
        seed=recorded.get("seed"),
        advice=trace.advice[later],
        labels=trace.labels[later],
        accuracies=np.asarray(recorded["accuracies"]),
    )
    settings = players.Settings(**header["settings"])
    job = Job(
        session.condition,
        instance,
        prompt=Prompt(trace.prompt, trace.wording),
        settings=settings,
        begins={"note": note, "history": session.history, "last_note": False},
    )
    texts = _edited(note, n_experts, earlier)
    return _Moment(job, given, texts, address=str(header["made_with"]["address"]))


def _questions(
    moment: _Moment, agents: Sequence[players.ScriptedAgent], seed: tuple[int, int]
) -> list[_Asked]:
    """Return every edit that some votes tell in the first round, then the controls, with the first edit's votes."""
    n_experts = moment.job.instance.advice.shape[1]
    all_votes = np.array(list(product((0, 1), repeat=n_experts)))
    np.random.default_rng(seed).shuffle(all_votes)
    edits: list[_Asked] = []
    for name in [name for name in _EDITS if name in moment.texts]:
        known = [edit.job.instance.advice for edit in edits]
        question = _with_telling_votes(moment, name, agents, all_votes, known)
        if question.telling[0]:
            edits.append(question)
    if not edits:
        return []
    controls = []
    for name in [name for name in _CONTROLS if name in moment.texts]:
        control = _with_votes(moment, name, edits[0].job.instance.advice, agents)
        controls.append(replace(control, after=edits[0].after))
    return [*edits, *controls]


def _with_telling_votes(
    moment: _Moment,
    name: str,
    agents: Sequence[players.ScriptedAgent],
    all_votes: NDArray[np.int64],
    known: Sequence[NDArray[np.int64]],
) -> _Asked:
    """Ask an edit with votes that tell it in every round, if there are such.

    Args:
        moment, name: the edit.
        agents: they say what it should do.
        all_votes: Int[choice, expert], the votes of a round that are tried, in this order.
        known: advice of other edits, tried first, so that less has to be asked. Where no votes of a round tell the
            edit, the instance's own stay.
    """
    for advice in known:
        question = _with_votes(moment, name, advice, agents)
        if question.telling.all():
            return question
    own = moment.job.instance.advice
    question = _with_votes(moment, name, own, agents)
    for lag in range(len(own)):
        for votes in (*all_votes, own[lag]):
            advice = question.job.instance.advice.copy()
            advice[lag] = votes
            question = _with_votes(moment, name, advice, agents)
            if question.telling[lag]:
                break
    return question


def _with_votes(
    moment: _Moment, name: str, advice: NDArray[np.int64], agents: Sequence[players.ScriptedAgent]
) -> _Asked:
    """Ask an edit with the given advice Int[round, expert]."""
    votes = "-".join("".join(map(str, row)) for row in advice)
    instance = replace(moment.job.instance, advice=advice)
    own = replace(moment.job, instance=instance, variant=f"own-{votes}")
    begins = {**own.begins, "note": moment.texts[name]}
    job = replace(own, variant=f"{name.replace(' ', '-')}-{votes}", begins=begins)
    before = _choices(own.begins["note"], instance, agents)
    after = _choices(job.begins["note"], instance, agents)
    return _Asked(name, moment.given, job, own=own, before=before, after=after)


def _choices(
    note: str, instance: Instance, agents: Sequence[players.ScriptedAgent]
) -> NDArray[np.int64]:
    """Return what agents choose, Int[agent, round], that know what a note says and then keep what they see."""
    evidence = _evidence(note, instance.advice.shape[1])
    columns = []
    for votes, label in zip(instance.advice, instance.labels, strict=True):
        columns.append([agent.rule(evidence, votes) for agent in agents])
        evidence = evidence.add(votes == label)
    return np.array(columns).T


_evidence = lru_cache(maxsize=1000)(players.evidence_in)


def _outcomes(
    questions: Sequence[_Asked], answers: Mapping[Path, NDArray[np.float64]]
) -> pd.DataFrame:
    """Return one row per edited note and following round.

    Is the answer predicted to change (``telling``), does it change as predicted (``follows``), does it change at all
    (``moved``)? ``usable`` says that both answers are there.
    """
    order = [*_EDITS, *_CONTROLS]
    rows = []
    for question in sorted(questions, key=lambda question: order.index(question.edit)):
        own = answers[question.own.place]
        changed = answers[question.job.place]
        n_rounds = len(question.telling)
        is_usable = ~np.isnan(own[:n_rounds] + changed[:n_rounds])
        kind = "edit" if question.edit in _EDITS else "control"
        for lag, is_telling in enumerate(question.telling):
            as_before = own[lag] == question.before[0, lag]
            as_after = changed[lag] == question.after[0, lag]
            row = {
                "kind": kind,
                "change": question.edit,
                "round": lag + 1,
                "note": question.job.instance.name,
                "given": question.given,
                "usable": is_usable[lag],
                "telling": is_usable[lag] and is_telling,
                "follows": as_before and as_after,
                "moved": is_usable[lag] and own[lag] != changed[lag],
            }
            rows.append(row)
    return pd.DataFrame(rows)


def _judged(outcomes: pd.DataFrame) -> tuple[Measure, Measure]:
    """Return the measures "carries" and "used", of the first round."""
    first = outcomes[outcomes["round"] == 1]
    telling = first[first["telling"]]
    n_telling = telling.groupby("change")["note"].transform("size")
    enough = telling[n_telling >= _FEWEST]
    controls, edits = {}, {}
    for (kind, change), part in enough.groupby(["kind", "change"], sort=False):
        if kind == "control":
            controls[str(change)] = Control(part["follows"].mean())
        else:
            edits[str(change)] = exact_share(part["follows"])
    known: dict[str, Any] = {"threshold": _HALF, "controls": controls}
    parts = [_claim("carries", number, claim=name, **known) for name, number in edits.items()]
    if not parts:
        few = {"undecided": f"{FEW}: no edit tells in {_FEWEST} notes or more"}
        parts = [_claim("carries", claim="", unless=few, **known)]
    carries = decisive(parts, claim="Its note carries its state")
    is_moved: Any = first.groupby(["kind", "note"])["moved"].any()
    beside = {}
    if "control" in is_moved:
        beside["texts that say the same"] = Control(is_moved["control"].mean())
    used = _claim("used", exact_share(is_moved["edit"]), threshold=_UNUSED, controls=beside)
    return carries, used


def _same_state(evidence: players.Evidence, other: players.Evidence) -> bool:
    """Return whether two notes say the same: of counts, or where there are none, of who was right last."""
    same_counts = np.array_equal(evidence.correct, other.correct)
    return same_counts and np.array_equal(_order(evidence), _order(other))


def _order(evidence: players.Evidence) -> NDArray[np.int64]:
    """Return how experts are ranked, Int[expert]: by counts, or where there are none, by who was right last."""
    return evidence.correct if evidence.correct.any() else evidence.last.astype(np.int64)


def _says_anything(note: str, n_experts: int) -> bool:
    """Return whether a note tells the experts apart, by counts or by who was right last."""
    evidence = players.evidence_in(note, n_experts)
    return bool(np.ptp(_order(evidence)))


def _edited(note: str, n_experts: int, earlier: str | None = None) -> dict[str, str]:
    """Return every edit and control that applies to a note, by name.

    Args:
        note: what is edited.
        n_experts: how many experts there are.
        earlier: the player's note after half as many rounds.

    >>> _edited("A:5/9, B:3/9, C:8/9, D:2/9", 4)["swap two players"]
    'A:5/9, B:3/9, D:8/9, C:2/9'
    """
    evidence = players.evidence_in(note, n_experts)
    edits = _edits(note, evidence)
    if evidence.correct.any():
        wrong = evidence.rounds - evidence.correct
        edits["counts that never happened"] = write_counts(wrong.tolist(), evidence.rounds)
    if earlier is not None and _says_anything(earlier, n_experts):
        edits["an earlier note"] = earlier
    for name, text in _controls(note, evidence).items():
        if _same_state(players.evidence_in(text, n_experts), evidence):
            edits[name] = text
    return edits


def _edits(note: str, evidence: players.Evidence) -> dict[str, str]:
    """Return the edits of the text that mean what they should, when they are read again."""
    letters = expert_letters(len(evidence.correct))
    n_experts = len(letters)
    order = _order(evidence)
    best, worst = int(order.argmax()), int(order.argmin())
    swapped = order.copy()
    swapped[[best, worst]] = order[[worst, best]]
    raised = order.copy()
    raised[worst] = min(order[best] + 1, evidence.rounds)
    without = order.copy()
    without[best] = 0
    two_names = {letters[best]: letters[worst], letters[worst]: letters[best]}
    all_names = dict(zip(letters, letters[1:] + letters[:1], strict=True))
    # The text, and the order of the experts that it has to mean.
    wanted = {
        "swap two players": (_renamed(note, two_names, n_experts), swapped),
        "permute names": (_renamed(note, all_names, n_experts), np.roll(order, 1)),
        "edit one count": (_recounted(note, letters[worst], raised[worst], n_experts), raised),
        "delete the best": (_without(note, letters[best], n_experts), without),
    }
    texts = {}
    for name, (text, counts) in wanted.items():
        is_meant = np.array_equal(_order(players.evidence_in(text, n_experts)), counts)
        if is_meant and not np.array_equal(counts, order):
            texts[name] = text
    return texts


def _controls(note: str, evidence: players.Evidence) -> dict[str, str]:
    """Return texts that should say what a note says."""
    letters = expert_letters(len(evidence.correct))
    n_experts = len(letters)
    sentence = note.rstrip().removesuffix(".")
    texts = {"the same note": note, "an irrelevant sentence": f"{sentence}. {_IRRELEVANT}"}
    if len(read_counts(note, n_experts)) == n_experts:
        sentences = []
        for letter, count in zip(letters, evidence.correct, strict=True):
            out_of = f"{count} times out of {evidence.rounds}"
            sentences.append(f"Expert {letter} was right {out_of}")
        texts["paraphrase"] = "; ".join(sentences)
    # The parts in the opposite order, by the first separator that leaves what is said alone.
    for separator, between in ((r"[;\n]\s*", "; "), (r"[;,\n]\s*", ", "), (r"\s+(?=Round)", " ")):
        parts = [part for part in re.split(separator, note.strip().removesuffix(".")) if part]
        text = between.join(reversed(parts))
        if len(parts) > 1 and _same_state(players.evidence_in(text, n_experts), evidence):
            texts["reorder"] = text
            break
    return texts


def _recounted(note: str, letter: str, count: int, n_experts: int) -> str:
    """Return a note with the first number after the first mention of one expert alone replaced."""
    for mention in mentions(note, n_experts):
        if mention.letters == (letter,):
            text = re.sub(r"\d+", str(count), mention.text, count=1)
            return note[: mention.start] + text + note[mention.end :]
    return note


def _renamed(note: str, names: Mapping[str, str], n_experts: int) -> str:
    """Return a note with the letters of experts replaced, all at once.

    >>> _renamed("Expert_A and B right; C wrong", {"A": "C", "C": "A"}, 4)
    'Expert_C and B right; A wrong'
    """

    def other_name(match: re.Match[str]) -> str:
        return names.get(match[0], match[0])

    named = mentions(note, n_experts)
    text = note[: named[0].begin] if named else note
    for mention in named:
        text += re.sub(_LETTER, other_name, note[mention.begin : mention.start]) + mention.text
    return text


def _without(note: str, letter: str, n_experts: int) -> str:
    """Take out every mention of an expert: its name, and where it is named alone what follows up to a separator."""
    for mention in reversed(mentions(note, n_experts)):
        names = note[mention.begin : mention.start]
        rest = note[mention.start :]
        if mention.letters == (letter,):
            names = ""
            rest = re.sub(r"\A[^,;.\n]*[,;.\n]?\s*", "", mention.text) + note[mention.end :]
        elif letter in mention.letters:
            names = re.sub(rf"{letter}(?![A-Za-z])\s*(?:,|&|/|and\b)?\s*", "", names)
            names = re.sub(r"\s*(?:,|&|/|\band)\s*\Z", "", names)
        note = note[: mention.begin] + names + rest
    return note
