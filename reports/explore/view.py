"""Views and edits of the explorer: parsed from a page's address, and turned into hooks and Python
code.

    >>> edit = Edit.parse("zero 20- L1H0@p? -")
    >>> edit.kind, edit.round, edit.in_later_rounds, edit.what, str(edit)
    ('zero', 20, True, 'L1H0@p?', 'zero 20- L1H0@p? -')
    >>> view = View.of("round=20&edit=input+20+flip-vote+expert%3Dp_2")
    >>> [str(edit) for edit in view.edits], view.query()
    (['input 20 flip-vote expert=p_2'], 'round=20&edit=input+20+flip-vote+expert%3Dp_2')

docs/method/pages.md shows an edit of each kind, and why a view is an address.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
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
from interp.interventions.hand_over import Memory, keep_padding, read_memory, write_memory
from interp.interventions.moves import Writer
from interp.interventions.sites import Site, resolve_site
from interp.model.rollout import replay, rollout
from interp.model.run import Rollout
from interp.stats.decoder import RIDGE
from interp.support.checks import check_type, checked, checked_fields, format_value
from interp.support.errors import InputError, convert_errors, require, require_known
from reports.blocks import environment
from reports.texts import TEXTS

N_EPISODES = 16
"""Number of episodes that a page can show."""
_N_FITTED_ROUNDS, _N_EXACT_ROUNDS = 1440, 240
"""Rounds of other episodes that decoders are fitted on: learned models, and machines with exact
states.
"""


class Setup:
    """What edits are applied to: a machine with sampled episodes, and the algorithm that the
    machine is compared with.

    Attributes:
        model, episodes, algorithm: the machine, the episodes, and the algorithm that the task
            assigns to the machine.
        reference: the reference machine with the same episodes, as another setup. An edit can copy
            the reference machine's carried state into this machine. None without a reference.
        origin: Python code that loads the machine.
        predicts_classes: True if predictions are probabilities of outcomes.
        ridge: penalty of the decoder of the state; 0 if the state can be read exactly.
        n_decoder_episodes: number of episodes that the decoder is fitted on.
    """

    def __init__(
        self,
        model: Machine,
        origin: str,
        episodes: Any,
        regime: str,
        seed: int,
        reference: Setup | None = None,
    ) -> None:
        """Store the machine and its episodes, and choose how decoders of the state are fitted.

        Args:
            model: the machine.
            origin: Python code that loads the machine; "" for a reference machine.
            episodes: the episodes.
            regime, seed: the regime and the seed with which the episodes were sampled.
            reference: the reference machine with the same episodes; None without one.
        """
        self.model = model
        self.origin = origin
        self.episodes = episodes
        self.regime = regime
        self.seed = seed
        self.reference = reference
        self.n_rounds = int(episodes.n_rounds)
        self.task = catalog.of(model)
        self.algorithm = self.task.explains(model)
        self.layout = model.layout.fit(episodes)
        self.predicts_classes = self.layout.kind == "classes"
        # The state of a handwired machine can be read exactly: no penalty, and fewer rounds suffice.
        self.ridge = 0.0 if model.is_handwired else RIDGE
        n_fitted_rounds = _N_EXACT_ROUNDS if model.is_handwired else _N_FITTED_ROUNDS
        self.n_decoder_episodes = math.ceil(n_fitted_rounds / self.n_rounds)

    @cached_property
    def values(self) -> Values:
        """Key of a variable of the algorithm -> its values on all episodes, ``[episode, round,
        ...]``.
        """
        return self.algorithm.run(self.episodes)

    def select_values(self, episodes: list[int]) -> Values:
        """Return the values of the algorithm's variables in some episodes.

        Args:
            episodes: indices of the episodes.

        Returns:
            Key of a variable -> its values ``[episode, round, ...]``.
        """
        return {key: value[episodes] for key, value in self.values.items()}

    @cached_property
    def run(self) -> Rollout:
        """The machine's run over all episodes."""
        return rollout(self.model, self.episodes)

    @lru_cache(maxsize=N_EPISODES)  # noqa: B019  (a setup lives as long as its page)
    def run_episode(self, episode: int) -> Rollout:
        """Run the machine on one episode without edits.

        Args:
            episode: index of the episode.
        """
        return rollout(self.model, self.episodes.select([episode]))

    @cached_property
    def decoder_episodes(self) -> Episodes:
        """Episodes on which decoders are fitted: not those of the page, but others that are sampled
        with the next seed.
        """
        sample_for = self.task.for_half(0).sample_for
        return sample_for(
            self.model, self.n_decoder_episodes, self.n_rounds, self.seed + 1, self.regime
        )

    @cached_property
    def decoder_run(self) -> Rollout:
        """The machine's run over the episodes on which decoders are fitted
        (:attr:`decoder_episodes`).
        """
        return rollout(self.model, self.decoder_episodes)

    @cached_property
    def writer(self) -> Writer:
        """Object that decodes the algorithm's state from the latents, and changes latents so that
        they encode another state.

        Raises InputError if no decoder can be fitted.
        """
        return Writer.of_state(
            self.model, self.decoder_run, self.algorithm, self.decoder_episodes, ridge=self.ridge
        )

    @lru_cache(maxsize=N_EPISODES)  # noqa: B019
    def read_reference_state(self, round: int) -> Memory:
        """Decode the reference machine's state before a round into variables of this machine's
        algorithm.

        Args:
            round: index of the round that reads the state.

        Returns:
            An object with the attributes ``state`` (key of a variable -> its values ``[episode, 1,
            ...]``) and ``not_read`` (keys of the variables that could not be decoded).
        """
        if self.reference is None:
            raise InputError(
                "no machine gives its memory here; serve one beside this: interp explore "
                f"{self.model.name} --reference MODEL"
            )
        return read_memory(self.reference.run, round, self.algorithm)

    @lru_cache(maxsize=N_EPISODES)  # noqa: B019
    def take_state(self, giver: str, round: int) -> Tensor:
        """Return the latents that this machine would read in a round if another state were copied
        into the machine.

        Args:
            giver: the state that is copied: "reference" for the reference machine's state before
                this round, "start" for this machine's initial state.
            round: index of the round that reads the latents.

        Returns:
            Latents ``[episode, latent, d_model]``.
        """
        require_known("giver of a memory", giver, _GIVERS)
        run = self.run
        if giver == "start":
            # The initial latents, with the padding and lengths that this round expects.
            return keep_padding(run.latents[:, 0], run, round)
        return write_memory(self.read_reference_state(round), self.model, run)

    def name_numbers(self, key: str) -> list[str]:
        """Return the names of the single numbers of a variable, such as "counts: e_1".

        Args:
            key: key of the variable.
        """
        labels = self.algorithm.variable(key).labels(self.values[key])
        return [f"{key}: {label}" if label != key else key for label in labels]

    def list_addresses(self, key: str) -> list[str]:
        """Return how an edit names each single number of a decoded variable, such as "counts.0",
        "counts.1", in the order of the flattened variable. A variable of one number has its key as
        the name.

        Args:
            key: key of the variable.
        """
        indices = np.ndindex(*self.writer.shapes[key])
        return [".".join([key, *map(str, index)]) for index in indices]

    @cached_property
    def input_changes(self) -> list[tuple[Corruption, str, str]]:
        """All possible changes of a single input, each as (corruption, name of the input, options).
        A corruption is a way to change inputs. The options are text, such as "expert=p_2", or "-"
        for none.
        """
        changes = []
        for corruption in self.task.analysis.corruptions():
            for name, options in corruption.each(self.episodes).items():
                text = ",".join(f"{key}={value}" for key, value in options.items())
                changes.append((corruption, name, text or "-"))
        return changes

    @cached_property
    def decoder_error(self) -> str:
        """The error that says why the algorithm's state cannot be decoded from the latents; "" if
        the state can be decoded.
        """
        try:
            return "" if self.writer.shapes else "the decoder reads no variable"
        except InputError as error:
            return str(error)

    @cached_property
    def decoder_scores(self) -> dict[str, float]:
        """Key of each variable that is decoded from the latents -> the R2 of its decoder. The R2 is
        measured on the page's episodes, not on those that the decoder was fitted on. Empty if no
        variable can be decoded.
        """
        if self.decoder_error:
            return {}
        decoded = self.writer.read(self.run.latents[:, :-1])
        return {key: score_decoder(self.values[key], read) for key, read in decoded.items()}


def score_decoder(truth: NDArray[Any], decoded: NDArray[Any]) -> float:
    """Return the R2 of a decoded variable. If the variable has several entries, their R2 are
    averaged, weighted by the variance of each entry's true values.

    Args:
        truth, decoded: true and decoded values, ``[episode, round, ...]``; the last axes are the
            variable's entries.
    """
    from sklearn.metrics import r2_score  # half a second: only where it is used

    n_rows = truth.shape[0] * truth.shape[1]
    true_rows = np.asarray(truth, dtype=np.float64).reshape(n_rows, -1)
    decoded_rows = np.asarray(decoded).reshape(n_rows, -1)
    return float(r2_score(true_rows, decoded_rows, multioutput="variance_weighted"))


KINDS = TEXTS["explore"]["kinds"]
"""What an edit of each kind does, in words."""
ONE_ROUND_KINDS = ("input", "memory")
"""Kinds of edits that act in one round only."""
_GIVERS = ("reference", "start")
_EDIT_PATTERN = re.compile(r"(\w+) (\d{1,6})(-?) (\S(?:.*\S)?) (\S+)", re.ASCII)
_LONGEST_EDIT = 200


class Written(NamedTuple):
    """What an edit writes into the machine.

    Attributes:
        site: where the edit writes: a place in the machine, such as a head's output at one
            position.
        values: index of a round in which the edit acts -> the value that the edit writes.
        is_added: True adds the value to the activation at the site; False replaces the activation.
    """

    site: Site
    values: Mapping[int, Tensor]
    is_added: bool

    def edit_activation(self, before: Tensor, round: int) -> Tensor:
        """Return the activation at the site after the edit, ``[batch, ...]``.

        Args:
            before: the activation before the edit, ``[batch, ...]``.
            round: index of the round.
        """
        value = self.values[round].to(before)
        if self.is_added:
            return before + value.reshape(before.shape[1:])
        return value.expand_as(before)


@dataclass(frozen=True)
@checked_fields
class Edit:
    """One edit of the machine's run over an episode, as a user writes it. Its text is part of the
    page's address.

    Attributes:
        kind: "input" (change an input), "move" (change the decoded state), "memory" (copy a state
            into the machine), "patch" (copy an activation of another episode), "zero" (set an
            activation to 0) or "mean" (set it to its mean over episodes).
        round: index of the round in which the edit acts.
        what: for "input" the key of a corruption (a way to change inputs), such as "flip-vote"; for
            "move" one number of the decoded state, such as "counts.1", number 1 (counted from 0) of
            the variable "counts"; for "memory" the state that is copied:
            "reference" (that of the reference machine) or "start" (the initial one of this
            machine); otherwise the site of the activation. The site "L1H0@p?" is head 0 of layer 1,
            both counted from 0, at the position ``p?``, where the prediction is read.
        value: for "input" the options of the corruption, such as "expert=p_2", or "-" for none; for
            "move" the number that is added; for "memory" and "patch" the index of the episode that
            is copied from; for "zero" and "mean" always "-".
        in_later_rounds: True if the edit also acts in all later rounds; never for "input" and
            "memory".
    """

    kind: str
    round: int
    what: str
    value: str = "-"
    in_later_rounds: bool = False

    def __str__(self) -> str:
        dash = "-" if self.in_later_rounds else ""
        return f"{self.kind} {self.round}{dash} {self.what} {self.value}"

    @classmethod
    def parse(cls, text: str) -> Edit:
        """Make an edit from its text "KIND ROUND WHAT VALUE".

        "move 20 counts.1 2.5" adds 2.5 to the number counts.1 of the state in round 20. A "-" after
        the round, as in "zero 20- L1H0@p? -", lets the edit also act in all later rounds.
        """
        match = _EDIT_PATTERN.fullmatch(text) if len(text) <= _LONGEST_EDIT else None
        if match is None:
            raise InputError(
                f"{format_value(text)} is no edit; write KIND ROUND WHAT VALUE, such as 'move 20 counts.1 2.5'"
            )
        kind, round_text, dash, what, value = match.groups()
        require_known("kind of edit", kind, KINDS)
        require(
            not dash or kind not in ONE_ROUND_KINDS,
            "an input is changed in one round, and a memory taken over in one; leave out the '-'",
        )
        return cls(kind, int(round_text), what, value, in_later_rounds=bool(dash))

    def rounds(self, setup: Setup) -> range:
        """Return the indices of the rounds in which the edit acts; refuse a round that does not
        exist.

        Args:
            setup: the machine with its episodes. An edit that also acts in later rounds acts until
                their last round.
        """
        last = setup.n_rounds - 1
        require(
            self.round <= last,
            f"round {self.round} of {str(self)!r} is out of range: the rounds are 0 to {last}",
        )
        return range(self.round, (last if self.in_later_rounds else self.round) + 1)

    def find_corruption(self, setup: Setup) -> tuple[Corruption, dict[str, Any]]:
        """Return the corruption (a way to change inputs) that an edit of the kind "input" names,
        and its options, {name: value}.

        Args:
            setup: the machine with its episodes; the corruption is one of their task.

        Raises:
            InputError: the edit's text has an unknown option, or an option twice.
        """
        record = setup.task.corruption(self.what)
        parameters = inspect.signature(record.build, eval_str=True).parameters
        known = list(parameters)[2:]  # after the episodes and the round
        options: dict[str, Any] = {}
        pairs = [] if self.value == "-" else self.value.split(",")  # each is NAME=VALUE
        for pair in pairs:
            name, _, text = pair.partition("=")
            require(
                text and name not in options,
                f"{pair!r} in {str(self)!r} is no option, or comes twice; write NAME=VALUE once",
            )
            require_known(f"option of {self.what!r}", name, known)
            options[name] = check_type(name, _parse_number(text), parameters[name].annotation)
        return record, options

    def change_inputs(self, setup: Setup, episodes: Episodes) -> Episodes:
        """Apply an edit of the inputs to episodes, and return them; edits of other kinds return
        them unchanged.

        Args:
            setup: the machine with its episodes.
            episodes: the episodes before the edit.
        """
        if self.kind != "input":
            return episodes
        self.rounds(setup)  # refuses a round that does not exist
        record, options = self.find_corruption(setup)
        _, corrupted = record.build(episodes, self.round, **options)  # (without, with the change)
        return corrupted

    def make_written(self, setup: Setup) -> Written | None:
        """Return what the edit writes inside the machine, and where; None for an edit of the
        inputs.

        Args:
            setup: the machine with its episodes. The edits "patch" and "mean" take their values
                from runs over these episodes.
        """
        kind = self.kind
        if kind == "input":
            return None
        rounds = self.rounds(setup)
        if kind == "move":
            key, change = self.get_state_change(setup)
            # The change of the latents that changes the decoded state by `change`. Its two leading
            # axes are for episode and round.
            step = setup.writer.step({key: change}, (1, 1))[0, 0]
            return Written(setup.writer.site, dict.fromkeys(rounds, step), is_added=True)
        if kind == "memory":
            latents = setup.take_state(self.what, self.round)[self.get_source_episode(setup)]
            latent = resolve_site("latent", setup.model, setup.layout)
            return Written(latent, {self.round: latents}, is_added=False)
        site = self.get_site(setup)
        if kind == "zero":
            return Written(site, dict.fromkeys(rounds, torch.zeros(())), is_added=False)
        # Kind "mean": the mean over all episodes. Kind "patch": the activation of one episode, which
        # equals its mean over this one episode.
        run = setup.run
        if kind == "patch":
            run = setup.run_episode(self.get_source_episode(setup))
        _, _, cache = replay(setup.model, run, rounds=list(rounds), names_filter=site.hook)
        values = {}
        for i, t in enumerate(rounds):
            values[t] = site.read(cache[site.hook][:, i], setup.layout).mean(0)
        return Written(site, values, is_added=False)

    def get_site(self, setup: Setup) -> Site:
        """Return the site at which an edit of the kind "patch", "zero" or "mean" writes: the edit's
        ``what``, looked up in the machine of ``setup``.
        """
        is_complete = self.kind == "patch" or self.value == "-"
        require(is_complete, f"{str(self)!r} takes no value; end it with '-'")
        return resolve_site(self.what, setup.model, setup.layout)

    def get_source_episode(self, setup: Setup) -> int:
        """Return the index of the episode from which an edit takes an activation or a state: the
        edit's ``value``. Refuse an episode that ``setup`` does not have.
        """
        last = len(setup.episodes) - 1
        value = _parse_number(self.value)
        if isinstance(value, int) and 0 <= value <= last:
            return value
        raise InputError(f"a {self.kind} takes from an episode, 0 to {last}, got {self.value!r}")

    def get_state_change(self, setup: Setup) -> tuple[str, np.ndarray]:
        """Return how an edit of the kind "move" changes the decoded state.

        Args:
            setup: the machine, with the decoder of its state.

        Returns:
            The key of the variable, such as "counts"; and its change, an array of the variable's
            shape that is 0 except for one number.
        """
        key, _, _ = self.what.partition(".")
        require_known("variable that the decoder reads", key, setup.writer.shapes)
        shape = setup.writer.shapes[key]
        addresses = setup.list_addresses(key)
        require(
            self.what in addresses,
            f"{self.what!r} names no number: {key} has the shape {shape}; write {addresses[0]}",
        )
        amount = _parse_number(self.value)
        if isinstance(amount, str):
            raise InputError(f"the state moves by a number, got {self.value!r}")
        change = np.zeros(shape)
        change.flat[addresses.index(self.what)] = amount
        return key, change

    def apply_to_state(
        self, setup: Setup, state: Mapping[str, np.ndarray], round: int
    ) -> dict[str, np.ndarray] | None:
        """Apply the edit to the algorithm's state.

        Args:
            setup: the machine and the algorithm.
            state: key of a state variable -> its values before the round.
            round: index of the round in which the edit acts.

        Returns:
            The changed state, by the same keys; None if the edit has no counterpart in the
            algorithm.
        """
        kind = self.kind
        if kind == "move":
            key, change = self.get_state_change(setup)
            return {**state, key: state[key] + change}
        if kind == "memory" and self.what == "reference":
            if setup.reference is None:
                return None
            decoded = setup.read_reference_state(self.round).state
            episode = self.get_source_episode(setup)
            # Values are [episode, 1, ...]: those of one episode are [1, ...], as in the state.
            return {**state, **{key: values[episode] for key, values in decoded.items()}}
        # Two kinds of edits are left that have a counterpart. They copy the state of an episode: a
        # "memory" edit the initial one, a patch of all latents the one before this round. In the
        # algorithm, it is the state that the algorithm has in that episode.
        is_start = kind == "memory"
        if not is_start and not (kind == "patch" and self._replaces_all_latents(setup)):
            return None
        values = setup.select_values([self.get_source_episode(setup)])
        return {key: values[key][:, 0 if is_start else round] for key in state}

    def _replaces_all_latents(self, setup: Setup) -> bool:
        """Return True if the site of this edit, of the kind "patch", is all carried latents of the
        machine in ``setup``.
        """
        site = self.get_site(setup)
        if site.kind.axes != "latent":
            return False
        latents = np.arange(setup.run.latents.shape[2])
        # Index of the site on the middle one of the axes [episode, latent, d_model].
        _, index_of_latents, *_ = site.index(setup.layout)
        return np.size(latents[index_of_latents]) == len(latents)


def _parse_number(text: str) -> int | float | str:
    """Return the number that a text denotes, or the text itself if it is none; refuse numbers
    beyond 1e12.
    """
    if not text.isascii() or "_" in text:
        return text
    try:
        value = float(text)
    except ValueError:
        return text
    require(abs(value) <= 1e12, f"{text!r} is no number that an edit takes")
    return int(text) if re.fullmatch(r"[+-]?[0-9]+", text) else value


_MOST_EDITS, _MOST_ROUNDS, LONGEST = 24, 200, 4000
"""Limits: edits per view, rounds per episode, characters of a query."""


@dataclass(frozen=True)
@checked_fields
class View:
    """What a page of the explorer shows: an episode, a round, and edits.

    Attributes:
        episode, round: indices of the displayed episode and round.
        outcome: index of the outcome that is drawn; -1 for the one that the edits change most.
        regime: regime that episodes are sampled from; the default if empty.
        rounds: rounds per episode; 0 for the default.
        seed: seed of the episodes.
        hold: True lets every later round read the latents of the run without edits, so that effects
            do not propagate.
        edits: the edits.
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
        """Make a view from the query string of a page's address. Refuse unknown fields, and fields
        that occur more than once, except "edit".
        """
        require(
            len(query) <= LONGEST, f"a query has at most {LONGEST} characters, got {len(query)}"
        )
        with convert_errors(
            f"{format_value(query)} is no query of a view: {{error}}", of=ValueError
        ):
            pairs = parse_qsl(
                query.removeprefix("?"),
                keep_blank_values=True,  # "round=" is refused below, not ignored
                strict_parsing=bool(query),  # some versions of Python refuse an empty query if True
                errors="strict",
                max_num_fields=64,
            )
        parts: dict[str, Any] = {}
        edits = []
        for name, text in pairs:
            if name == "edit":
                edits.append(Edit.parse(text))
                continue
            require_known("part of a view", name, [*_DEFAULTS, "edit"], limit=10)
            require(name not in parts, f"a view has one {name}, got two")
            parts[name] = text if name == "regime" else _parse_part(name, text)
        require(
            len(edits) <= _MOST_EDITS, f"a view has at most {_MOST_EDITS} edits, got {len(edits)}"
        )
        return cls(**parts, edits=tuple(edits))

    def query(self, **changes: Any) -> str:
        """Return the query string of this view; fields with default values are left out.

        Args:
            **changes: name of a field -> its new value, such as ``round=5``.
        """
        view = replace(self, **changes)
        pairs = []
        for name, default in _DEFAULTS.items():
            value = getattr(view, name)
            if value != default:
                pairs.append((name, int(value) if name == "hold" else value))
        pairs += [("edit", str(edit)) for edit in view.edits]
        return urlencode(pairs)


_DEFAULTS = {name: value for name, value in vars(View()).items() if name != "edits"}
_FIELD_BOUNDS = {"outcome": (-1, 10**6), "rounds": (0, _MOST_ROUNDS), "hold": (0, 1)}
"""Lowest and highest value of a field of a view; of all others 0 and 10^8."""


def _parse_part(name: str, text: str) -> int | bool:
    """Return the value of a field of a view: a whole number, or a boolean for "hold"; refuse values
    out of range.

    Args:
        name: name of the field.
        text: text of the field in the query string.
    """
    is_whole = re.fullmatch(r"-?[0-9]{1,9}", text) is not None
    require(is_whole, f"{name} is a whole number, got {format_value(text)}")
    number = int(text)
    low, high = _FIELD_BOUNDS.get(name, (0, 10**8))
    require(low <= number <= high, f"{name} is a number from {low} to {high}, got {text}")
    return bool(number) if name == "hold" else number


def write_script(setup: Setup, view: View) -> str:
    """Return Python code that runs the edits of a page, for download.

    The code's variable ``predictions`` is ``[round, outcome]``.

    Args:
        setup: the machine with its episodes.
        view: what the page shows: an episode, a round and edits.
    """
    kinds = {edit.kind for edit in view.edits}
    template = environment().get_template("explore.py.j2")
    return str(template.render(setup=setup, view=view, kinds=kinds))
