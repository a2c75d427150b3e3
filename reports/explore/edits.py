"""Edits: what a reader changes in a run. An edit is a word of the page's address, hooks of the engine, and Python.

An edit is written ``KIND ROUND WHAT VALUE``; a round followed by ``-`` means "from it on", and ``-`` is no value::

    input 20 flip-vote expert=1      a corruption of the task's record: one thing about one round's inputs
    move 20 counts.1 2.5             the decoded state, one number of it, by so much, off the manifold too
    patch 20 latent 3                what episode 3 has there: all that is carried, a channel, a head, a point
    zero 20- z[1.0]@p? -             a place set to 0, or with ``mean`` to its mean over the episodes

Places are written as everywhere (:mod:`interp.interventions.sites`). What is refused is refused in a sentence.

    >>> edit = Edit.parse("zero 20- z[1.0]@p? -")
    >>> edit.kind, edit.round, edit.on, edit.what, str(edit)
    ('zero', 20, True, 'z[1.0]@p?', 'zero 20- z[1.0]@p? -')
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from interp.checks import fit
from interp.errors import InputError, require, require_known
from interp.interventions.sites import Site, resolve
from interp.kinds import shown
from interp.task import Corruption
from reports.explore.bench import Bench

KINDS = {
    "input": "change an input",
    "move": "move the decoded state",
    "patch": "take it from another episode",
    "zero": "set to zero",
    "mean": "set to the mean over episodes",
}
"""What an edit does, by the first word of its text."""
_TEXT = re.compile(r"(?P<kind>\w+) (?P<round>\d{1,6})(?P<on>-?) (?P<what>\S(?:.*\S)?) (?P<value>\S+)", re.ASCII)
_LONGEST = 200


class Written(NamedTuple):
    """What an edit writes at a site: a value for each round, ``[*shape]``, that is added to what is there, or set."""

    site: Site
    values: Mapping[int, Tensor]
    added: bool

    def new(self, own: Tensor, t: int) -> Tensor:
        """What stands at the site after the edit, ``[batch, *shape]``; ``own`` is what stood there."""
        value = self.values[t].to(own)
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
            raise InputError(f"{shown(text)} is no edit; write KIND ROUND WHAT VALUE, such as 'move 20 counts.1 2.5'")
        require_known("kind of edit", match["kind"], KINDS)
        require(match["kind"] != "input" or not match["on"], "an input is changed in one round; leave out the '-'")
        return cls(match["kind"], int(match["round"]), match["what"], match["value"], bool(match["on"]))

    def rounds(self, bench: Bench) -> range:
        """The rounds in which it acts."""
        n = bench.n_rounds
        require(self.round < n, f"round {self.round} of {str(self)!r} is out of range: the rounds are 0 to {n - 1}")
        return range(self.round, n if self.on else self.round + 1)

    # What it changes.

    def corruption(self, bench: Bench) -> tuple[Corruption, dict[str, Any]]:
        """The change of the inputs that it asks for, with its options."""
        record = bench.task.corruption(self.what)
        known = dict(list(inspect.signature(record.build, eval_str=True).parameters.items())[2:])
        options: dict[str, Any] = {}
        for part in () if self.value == "-" else self.value.split(","):
            name, equals, text = part.partition("=")
            require(bool(equals and text), f"{part!r} in {str(self)!r} is no option; write NAME=VALUE")
            require_known(f"option of {self.what!r}", name, known)
            options[name] = fit(name, _number(text), known[name].annotation)
        return record, options

    def inputs(self, bench: Bench, episodes: Any) -> Any:
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
        rounds, values = self.rounds(bench), {}
        if self.kind == "move":
            key, change = self.moved(bench)
            step = bench.writer.step({key: change}, (1, 1))[0, 0]
            return Written(bench.writer.site, dict.fromkeys(rounds, step), added=True)
        site = self.site(bench)
        if self.kind == "zero":
            return Written(site, dict.fromkeys(rounds, torch.zeros(())), added=False)
        episodes = (self.source(bench),) if self.kind == "patch" else tuple(range(len(bench.episodes)))
        held = bench.activations(site.hook, tuple(rounds), episodes)
        for i, t in enumerate(rounds):
            values[t] = site.read(held[:, i], bench.layout).mean(0)
        return Written(site, values, added=False)

    def site(self, bench: Bench) -> Site:
        """The place that it ablates or patches."""
        wanted = f"{str(self)!r} takes no value; end it with '-'"
        require(self.kind == "patch" or self.value == "-", wanted)
        return resolve(self.what, bench.model, bench.layout)

    def whole(self, bench: Bench) -> bool:
        """Whether its place is all that is carried."""
        site, rows = self.site(bench), np.arange(bench.run.latents.shape[2])
        return site.kind.axes == "latent" and np.size(rows[site.index(bench.layout)[1]]) == len(rows)

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
        fits = len(at) == len(index) == len(shapes[key]) and all(i < n for i, n in zip(at, shapes[key], strict=True))
        told = f"{key} has the shape {shapes[key]}"
        require(fits, f"{self.what!r} names no number: {told}; write {'.'.join([key, *('0' for _ in shapes[key])])}")
        if isinstance(amount, str):
            raise InputError(f"the state moves by a number, got {self.value!r}")
        change = np.zeros(shapes[key])
        change[at] = amount
        return key, change

    def on_state(self, bench: Bench, state: Mapping[str, np.ndarray], t: int) -> dict[str, np.ndarray] | None:
        """What the same edit makes of the algorithm's state before round ``t``; None where it has no counterpart."""
        if self.kind == "move":
            key, change = self.moved(bench)
            return {**state, key: state[key] + change}
        if self.kind == "patch" and self.whole(bench):
            values = bench.values
            return {key: values[key][[self.source(bench)], t] for key in state}
        return None

    # How it reads.

    def python(self, bench: Bench) -> list[str]:
        """The lines that do the same with the toolkit's own calls, inside those of :mod:`reports.explore.python`."""
        if self.kind == "input":
            options = "".join(f", {name}={value!r}" for name, value in self.corruption(bench)[1].items())
            return [f"edited = task.corruption({self.what!r}).build(edited, {self.round}{options})[1]"]
        rounds = self.rounds(bench)
        span = f"range({rounds.start}, {rounds.stop})" if self.on else f"[{self.round}]"
        if self.kind == "move":
            key, change = self.moved(bench)
            at = tuple(int(i) for i in np.argwhere(change)[0]) if change.any() else ()
            return [
                f"change = np.zeros({change.shape})",
                *([f"change[{at}] = {float(change[at])!r}"] if change.any() else []),
                f"step = writer.step({{{key!r}: change}}, (1, 1))[0, 0]",
                f"for t in {span}:",
                "    hooks[t].append((writer.site.hook, lambda own, hook, step=step: own + step.to(own)))",
            ]
        lines = [f"site = sites.resolve({self.what!r}, model, before.layout)"]
        if self.kind == "zero":
            return [
                *lines,
                f"for t in {span}:",
                "    hooks[t].append((site.hook, lambda own, hook, site=site: sites.write(",
                "        own, site, before.layout, torch.zeros_like(site.read(own, before.layout)))))",
            ]
        taken = f"episodes.select([{self.value}])" if self.kind == "patch" else "episodes"
        return [
            *lines,
            f"others = interp.rollout(model, {taken})",
            f"cache = interp.replay(model, others, rounds=list({span}), names_filter=site.hook)[2]",
            f"for i, t in enumerate({span}):",
            "    new = site.read(cache[site.hook][:, i], before.layout).mean(0, keepdim=True)",
            "    hooks[t].append((site.hook, lambda own, hook, site=site, new=new: sites.write(",
            "        own, site, before.layout, new)))",
        ]


def _number(text: str) -> int | float | str:
    """A finite number that a text says, else the text."""
    for kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            continue
        require(math.isfinite(value) and abs(value) <= 1e12, f"{text!r} is no number that an edit takes")
        return value
    return text
