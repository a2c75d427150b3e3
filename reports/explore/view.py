"""What a page shows, a view, and the edits in it: words of the page's address, hooks of the engine, and Python.

    >>> edit = Edit.parse("zero 20- L1H0@p? -")
    >>> edit.kind, edit.round, edit.on, edit.what, str(edit)
    ('zero', 20, True, 'L1H0@p?', 'zero 20- L1H0@p? -')
    >>> view = View.of("round=20&edit=input+20+flip-vote+expert%3Dp_2")
    >>> [str(edit) for edit in view.edits], view.query()
    (['input 20 flip-vote expert=p_2'], 'round=20&edit=input+20+flip-vote+expert%3Dp_2')

How an edit is written, one of each kind, and why a view is an address: docs/method/pages.md.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qsl, urlencode

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from interp.core import catalog
from interp.core.algorithm import Episodes, Values
from interp.core.machine import Machine
from interp.core.task import Corruption
from interp.interventions.moves import Writer
from interp.interventions.sites import Site, resolve
from interp.model.rollout import replay, rollout
from interp.model.run import Rollout
from interp.stats.decoder import RIDGE
from interp.support.checks import checked, fit, shown
from interp.support.errors import InputError, require, require_known, theirs
from reports.blocks import TEXTS, environment

N_EPISODES = 16  # that can be looked at
_N_KNOWN, _N_EXACT = 1440, 240
"""Rounds of others that decoders are fitted on; fewer where the state is there exactly, as in a handwired machine."""


class Bench:
    """A machine with the episodes of one setting, beside the algorithm that it is held against.

    Attributes:
        origin: how the machine was loaded, for Python: ``interp.load(...)``.
        classes: whether outcomes have probabilities.
        ridge, n_known: the decoder's penalty, none where the state is there exactly; how many episodes it is fitted on.
    """

    def __init__(self, model: Machine, origin: str, episodes: Any, regime: str, seed: int) -> None:
        self.model, self.origin, self.episodes, self.regime, self.seed = (
            model,
            origin,
            episodes,
            regime,
            seed,
        )
        self.n_rounds, self.task = int(episodes.n_rounds), catalog.of(model)
        self.algorithm, self.layout = self.task.explains(model), model.layout.fit(episodes)
        self.classes, self.ridge = (
            self.layout.kind == "classes",
            0.0 if model.is_handwired else RIDGE,
        )
        self.n_known = -(-(_N_EXACT if model.is_handwired else _N_KNOWN) // self.n_rounds)

    @cached_property
    def values(self) -> Values:
        """What the algorithm holds on every episode, ``[episode, round, ...]``."""
        return self.algorithm.run(self.episodes)

    @cached_property
    def run(self) -> Rollout:
        """The machine's run over every episode."""
        return rollout(self.model, self.episodes)

    @lru_cache(maxsize=N_EPISODES)  # noqa: B019  (a bench lives as long as its page)
    def alone(self, episode: int) -> Rollout:
        """The run over one episode: what edits of it begin from."""
        return rollout(self.model, self.episodes.select([episode]))

    @cached_property
    def known(self) -> Episodes:
        """Episodes that decoders are fitted on, of the next seed."""
        return self.task.half(0).sample_for(
            self.model, self.n_known, self.n_rounds, self.seed + 1, self.regime
        )

    @cached_property
    def known_run(self) -> Rollout:
        """The machine's run over them."""
        return rollout(self.model, self.known)

    @cached_property
    def writer(self) -> Writer:
        """Reads the algorithm's carried state in what the machine carries, and moves it; an error where none fits."""
        return Writer.of_state(
            self.model, self.known_run, self.algorithm, self.known, ridge=self.ridge
        )

    def numbers(self, key: str) -> list[str]:
        """The names of a variable's numbers."""
        labels = self.algorithm.variable(key).labels(self.values[key])
        return [f"{key}: {label}" if label != key else key for label in labels]

    @cached_property
    def changes(self) -> list[tuple[Corruption, str, str]]:
        """Single changes of an input: the corruption, what it changes by name, and its options as an edit has them."""
        changes = []
        for corruption in self.task.analysis.corruptions():
            for name, options in corruption.each(self.episodes).items():
                words = [f"{key}={value}" for key, value in options.items()]
                changes.append((corruption, name, ",".join(words) or "-"))
        return changes

    @cached_property
    def unreadable(self) -> str:
        """Why no state is decoded; empty where one is."""
        try:
            return "" if self.writer.shapes else "the decoder reads no variable"
        except InputError as error:
            return str(error)

    @cached_property
    def fit(self) -> dict[str, float]:
        """How well each variable is decoded on these episodes, which the decoder has not seen: R2 over all numbers."""
        if self.unreadable:
            return {}
        decoded = self.writer.read(self.run.latents[:, :-1])
        return {key: score(self.values[key], read) for key, read in decoded.items()}


def score(truth: NDArray[Any], decoded: NDArray[Any]) -> float:
    """R2 over all numbers of a variable, ``[episode, round, ...]``, each weighed by how much it varies."""
    from sklearn.metrics import r2_score  # half a second: only where it is used

    rows = (
        np.asarray(x, dtype=np.float64).reshape(x.shape[0] * x.shape[1], -1)
        for x in (truth, decoded)
    )
    return float(r2_score(*rows, multioutput="variance_weighted"))


KINDS = TEXTS["explore"]["kinds"]
_TEXT = re.compile(
    r"(?P<kind>\w+) (?P<round>\d{1,6})(?P<on>-?) (?P<what>\S(?:.*\S)?) (?P<value>\S+)", re.ASCII
)
_LONGEST = 200


class Written(NamedTuple):
    """What an edit writes at a site: a value for each round, ``[*shape]``, that is added to what is there, or set."""

    site: Site
    values: Mapping[int, Tensor]
    added: bool

    def new(self, own: Tensor, round: int) -> Tensor:
        """What stands at the site after the edit, ``[batch, *shape]``; ``own`` is what stood there."""
        value = self.values[round].to(own)
        return own + value.reshape(own.shape[1:]) if self.added else value.expand_as(own)


@dataclass(frozen=True)
class Edit:
    """One edit, as the address says it; ``on`` is "from its round on"."""

    kind: str
    round: int
    what: str
    value: str = "-"
    on: bool = False

    def __str__(self) -> str:
        return f"{self.kind} {self.round}{'-' if self.on else ''} {self.what} {self.value}"

    @classmethod
    def parse(cls, text: str) -> Edit:
        """The edit that a text says."""
        match = _TEXT.fullmatch(text) if len(text) <= _LONGEST else None
        if match is None:
            raise InputError(
                f"{shown(text)} is no edit; write KIND ROUND WHAT VALUE, such as 'move 20 counts.1 2.5'"
            )
        require_known("kind of edit", match["kind"], KINDS)
        require(
            match["kind"] != "input" or not match["on"],
            "an input is changed in one round; leave out the '-'",
        )
        return cls(
            match["kind"], int(match["round"]), match["what"], match["value"], bool(match["on"])
        )

    def rounds(self, bench: Bench) -> range:
        """The rounds in which it acts."""
        n = bench.n_rounds
        require(
            self.round < n,
            f"round {self.round} of {str(self)!r} is out of range: the rounds are 0 to {n - 1}",
        )
        return range(self.round, n if self.on else self.round + 1)

    def corruption(self, bench: Bench) -> tuple[Corruption, dict[str, Any]]:
        """The change of the inputs that it asks for, with its options."""
        record = bench.task.corruption(self.what)
        known = dict(list(inspect.signature(record.build, eval_str=True).parameters.items())[2:])
        options: dict[str, Any] = {}
        for part in () if self.value == "-" else self.value.split(","):
            name, equals, text = part.partition("=")
            fits = bool(equals and text) and name not in options
            require(
                fits,
                f"{part!r} in {str(self)!r} is no option, or comes twice; write NAME=VALUE once",
            )
            require_known(f"option of {self.what!r}", name, known)
            options[name] = fit(name, _number(text), known[name].annotation)
        return record, options

    def inputs(self, bench: Bench, episodes: Episodes) -> Episodes:
        """The episodes with this change of their inputs; others are as they were."""
        if self.kind != "input":
            return episodes
        self.rounds(bench)
        record, options = self.corruption(bench)
        return record.build(episodes, self.round, **options)[1]

    def written(self, bench: Bench) -> Written | None:
        """What it writes inside the machine; None for a change of the inputs."""
        if self.kind == "input":
            return None
        rounds = self.rounds(bench)
        if self.kind == "move":
            key, change = self.moved(bench)
            step = bench.writer.step({key: change}, (1, 1))[0, 0]
            return Written(bench.writer.site, dict.fromkeys(rounds, step), added=True)
        site = self.site(bench)
        if self.kind == "zero":
            return Written(site, dict.fromkeys(rounds, torch.zeros(())), added=False)
        run = bench.alone(self.source(bench)) if self.kind == "patch" else bench.run
        held = replay(bench.model, run, rounds=list(rounds), names_filter=site.hook)[2][site.hook]
        values = {t: site.read(held[:, i], bench.layout).mean(0) for i, t in enumerate(rounds)}
        return Written(site, values, added=False)

    def site(self, bench: Bench) -> Site:
        """The place that it ablates or patches."""
        require(
            self.kind == "patch" or self.value == "-",
            f"{str(self)!r} takes no value; end it with '-'",
        )
        return resolve(self.what, bench.model, bench.layout)

    def source(self, bench: Bench) -> int:
        """The episode that a patch takes from."""
        n, value = len(bench.episodes), _number(self.value)
        fits = isinstance(value, int) and 0 <= value < n
        require(fits, f"a patch takes from an episode, 0 to {n - 1}, got {self.value!r}")
        return int(value)

    def moved(self, bench: Bench) -> tuple[str, np.ndarray]:
        """The variable that it moves, and by what: 0 but for one number."""
        key, *index = self.what.split(".")
        shapes, amount = bench.writer.shapes, _number(self.value)
        require_known("variable that the decoder reads", key, shapes)
        at = tuple(int(i) for i in index if i.isascii() and i.isdigit())
        fits = len(at) == len(index) == len(shapes[key]) and all(
            i < n for i, n in zip(at, shapes[key], strict=True)
        )
        told = f"{key} has the shape {shapes[key]}"
        require(
            fits,
            f"{self.what!r} names no number: {told}; write {'.'.join([key, *('0' for _ in shapes[key])])}",
        )
        if isinstance(amount, str):
            raise InputError(f"the state moves by a number, got {self.value!r}")
        change = np.zeros(shapes[key])
        change[at] = amount
        return key, change

    def on_state(
        self, bench: Bench, state: Mapping[str, np.ndarray], round: int
    ) -> dict[str, np.ndarray] | None:
        """What the same edit makes of the algorithm's state before a round; None where it has no counterpart."""
        if self.kind == "move":
            key, change = self.moved(bench)
            return {**state, key: state[key] + change}
        if self.kind != "patch":
            return None
        site, rows = self.site(bench), np.arange(bench.run.latents.shape[2])
        whole = site.kind.axes == "latent" and np.size(rows[site.index(bench.layout)[1]]) == len(
            rows
        )
        return (
            {key: bench.values[key][[self.source(bench)], round] for key in state}
            if whole
            else None
        )


def _number(text: str) -> int | float | str:
    """A finite number that a text says, else the text."""
    for kind in (int, float) if text.isascii() and "_" not in text else ():
        try:
            value = kind(text)
        except ValueError:
            continue
        require(
            math.isfinite(value) and abs(value) <= 1e12, f"{text!r} is no number that an edit takes"
        )
        return value
    return text


_MOST_EDITS, _MOST_ROUNDS, LONGEST = 24, 200, 4000
"""Edits of a view, rounds of its episodes, characters of a query."""


@dataclass(frozen=True)
class View:
    """What is looked at: ``rounds`` of every episode (0 for the usual number), drawn from ``regime`` (the default if
    empty).

    ``outcome``, counted from 0, is whose probability is drawn; -1 for the one that the edits move most. ``hold`` keeps
    what later rounds read at what it was, instead of letting effects run on.
    """

    episode: int = 0
    round: int = 0
    outcome: int = -1
    regime: str = ""
    rounds: int = 0
    seed: int = 0
    hold: bool = False
    edits: tuple[Edit, ...] = ()

    @classmethod
    @checked
    def of(cls, query: str) -> Self:
        """The view that a query says; what it says twice, or what no view has, is refused."""
        require(
            len(query) <= LONGEST, f"a query has at most {LONGEST} characters, got {len(query)}"
        )
        with theirs(f"{shown(query)} is no query of a view: {{error}}", of=ValueError):
            pairs = parse_qsl(
                query.removeprefix("?"),
                bool(query),
                bool(query),
                errors="strict",
                max_num_fields=64,
            )
        known: dict[str, Any] = {
            field.name: field.default for field in fields(cls) if field.name != "edits"
        }
        bounds = {"outcome": (-1, 10**6), "rounds": (0, _MOST_ROUNDS), "hold": (0, 1)}
        said: dict[str, Any] = {}
        for name, text in pairs:
            if name != "edit":
                require_known("part of a view", name, [*known, "edit"], limit=10)
                require(name not in said, f"a view has one {name}, got two")
                said[name] = text
                if not isinstance(known[name], str):
                    whole = re.fullmatch(r"-?[0-9]{1,9}", text) is not None
                    require(whole, f"{name} is a whole number, got {shown(text)}")
                    low, high = bounds.get(name, (0, 10**8))
                    require(
                        low <= int(text) <= high,
                        f"{name} is a number from {low} to {high}, got {text}",
                    )
                    said[name] = type(known[name])(int(text))
        edits = tuple(Edit.parse(text) for name, text in pairs if name == "edit")
        require(
            len(edits) <= _MOST_EDITS, f"a view has at most {_MOST_EDITS} edits, got {len(edits)}"
        )
        return cls(**said, edits=edits)

    def query(self, **changes: Any) -> str:
        """The query that says this view, or it with some parts changed; what is as usual is left out."""
        view = replace(self, **changes)
        said = [
            (name, value)
            for name, value in vars(view).items()
            if name != "edits" and value != vars(View())[name]
        ]
        whole = [(name, int(value) if isinstance(value, bool) else value) for name, value in said]
        return urlencode([*whole, *(("edit", str(edit)) for edit in view.edits)])


def script(bench: Bench, view: View) -> str:
    """Python that runs the edits of a view: ``predictions`` are ``[round, outcome]``, ``before`` is the plain run."""
    kinds = {edit.kind for edit in view.edits}
    return str(
        environment().get_template("explore.py.j2").render(bench=bench, view=view, kinds=kinds)
    )
