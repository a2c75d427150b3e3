"""Where variables live, in which directions, whether they exist, and of which algorithm: reading and setting them.

What each method scores, and its source: ``docs/method/benchmark.md``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from circuits.benchmark.known_machine import KnownMachine
from circuits.benchmark.material import Material
from circuits.benchmark.methods import FAINT, Method, register
from circuits.benchmark.question import Answer
from circuits.benchmark.questions import Item, changes, sides, values_of
from circuits.compare.algorithm import explain
from circuits.compare.question import shared_sizes
from interp.core.algorithm import NEXT
from interp.interventions.alignment import AlignmentError, AlignmentResult, Search, align
from interp.interventions.experiment import Outcome
from interp.interventions.interchange import interchange
from interp.interventions.patching import round_map
from interp.interventions.sites import Site
from interp.model.rollout import replay, rollout
from interp.stats.decoder import RIDGE, Affine, Decoder
from interp.support.errors import require

_THRESHOLD = 0.5  # held-out R2 from which a variable is declared to exist


def _probe(
    x: Tensor, y: Tensor, within_round: bool
) -> tuple[Affine, Float[Tensor, "moment output"]]:
    """A probe fitted on the first two thirds of the episodes; its squared errors on the others, and what they miss."""
    if within_round:
        x, y = x - x.mean(0), y - y.mean(0)
    cut = 2 * len(x) // 3
    varies = bool(((x[:cut] - x[:cut].mean((0, 1))).abs() > 1e-9).any())
    fitted = Affine.fit(x[:cut].flatten(0, 1), y[:cut].flatten(0, 1), RIDGE if varies else 0.0)
    missed = torch.stack([fitted(x[cut:]) - y[cut:], y[cut:] - y[:cut].mean((0, 1))])
    return fitted, missed.square().sum((1, 2))


def _r2(errors: Float[Tensor, "moment output"]) -> float:
    """R2 over all outputs together; NaN where none varies."""
    left, about = errors.sum(1).tolist()
    return 1 - left / about if about > 0 else float("nan")


def _linear(question: str, within_round: bool, subject: KnownMachine, material: Material) -> Answer:
    """R2 of each variable, at the site that is asked about or the best of all sites that any is looked for at."""
    items = material.items("where")
    if question == "where":
        return Answer(
            {(key, site): _probed(material, site, within_round)[key][1] for key, site in items}
        )
    tables = [
        _probed(material, site, within_round) for site in dict.fromkeys(site for _, site in items)
    ]
    scores = {item: max(table[item][1] for table in tables) for item in material.items(question)}
    return Answer(scores, frozenset(item for item, r2 in scores.items() if r2 >= _THRESHOLD))


def _directions(pattern: bool, subject: KnownMachine, material: Material) -> Answer:
    """Directions of a probe at each site, the ones along which it varies most first."""
    subspaces = {}
    for key, site in material.items("subspace"):
        fitted, _ = _probed(material, site, False)[key]
        sizes, axes = torch.linalg.eigh(fitted.along @ fitted.slopes)
        axes = axes[:, sizes > 1e-9 * sizes.max()].flip(1)
        subspaces[key, site] = torch.linalg.qr(
            (fitted.along.T if pattern else fitted.slopes) @ axes
        )[0]
    return Answer({}, subspaces=subspaces)


def _probed(material: Material, site: str, within_round: bool) -> dict[str, tuple[Affine, float]]:
    """Probes of all variables at a site, on the larger batch; of a site of several rows on one after the other."""

    def make() -> dict[str, tuple[Affine, float]]:
        place, run = Site.parse(site, material.subject.model), material.run(1, material.effort.fits)
        cached = partial(replay, material.subject.model, run, names_filter=[place.hook])
        whole = material.once(("activation", place.hook), lambda: cached()[2][place.hook].double())
        if place.kind.axes == "pos" and place.position is not None:
            x = whole[:, :, run.layout.position(place.position)]
        else:
            x = whole.flatten(0, 1)[place.index(run.layout)].reshape(
                run.n_episodes, run.n_rounds, -1
            )
        names = dict.fromkeys(
            [*(variable for variable, _ in material.items("where")), *material.items("exists")]
        )
        values = [torch.from_numpy(values_of(material, name)) for name in names]
        fitted, errors = _probe(x, torch.cat(values, -1), within_round)
        fits, sizes = (
            (fitted.middle, fitted.slopes, fitted.along.T, errors),
            [value.shape[-1] for value in values],
        )
        parts = (of.split(sizes, -1) for of in fits)
        return {
            name: (Affine(fitted.centre, middle, slopes, along.T), _r2(missed))
            for name, middle, slopes, along, missed in zip(names, *parts, strict=True)
        }

    return material.once(("probes", site, within_round), make)


def _interchanged(subject: KnownMachine, material: Material) -> Answer:
    """The best cosine over both outcomes, for every variable and site that is asked for."""
    decode = (
        None
        if subject.model.is_handwired
        else material.once("state decoder", lambda: _reader(subject, material))
    )
    runs = material.run(2), material.run(3)
    outcomes = ("prediction", "state") if subject.algorithm.written else ("prediction",)
    scores = {}
    for key, site in material.items("where"):
        at = partial(interchange, subject.model, *runs, subject.algorithm, key, site)
        cosines = []
        for one in [at(outcome=Outcome(outcome, decode)) for outcome in outcomes]:
            size = float(np.linalg.norm(one.effect) * np.linalg.norm(one.wanted))
            cosines.append(float((one.effect * one.wanted).sum()) / size if size > 1e-9 else 0.0)
        scores[key, site] = max(cosines)
    return Answer(scores)


def _reader(subject: KnownMachine, material: Material) -> Callable[[Tensor], Tensor]:
    """A fitted decoder of the algorithm's state, for models without an exact one."""
    run, key = material.run(1, material.effort.fits), subject.algorithm.state[0]
    state = run.layout.per_latent(
        torch.from_numpy(np.asarray(material.variables[NEXT + key], np.float64))
    )
    decoder = Decoder.fit(
        run.latents[:, 1:], state, ridge=RIDGE, per_latent=run.layout.n_latents > 1
    )
    return lambda latents: run.layout.state(decoder(latents))


def _das(question: str, subject: KnownMachine, material: Material) -> Answer:
    """Accuracies of learned bases, or the bases, without items that were refused; the last refusal where all were."""
    asked = material.items(question)
    learned = {
        item: material.once(("das", *item), partial(_align, subject, material, *item))
        for item in asked
    }
    results = {item: one for item, one in learned.items() if isinstance(one, AlignmentResult)}
    require(
        bool(results) or not asked,
        f"no site could be aligned; of the last: {[None, *learned.values()][-1]}",
    )
    if question == "where":
        return Answer({item: one.accuracy() for item, one in results.items()})
    return Answer({}, subspaces={item: one.basis for item, one in results.items()})


def _align(
    subject: KnownMachine, material: Material, key: str, site: str
) -> AlignmentResult | AlignmentError:
    effort = material.effort
    runs = material.run(4, effort.fits), material.run(5, effort.fits)
    search = Search(steps=effort.steps, restarts=1, seed=material.seed)
    try:
        return align(subject.model, *runs, subject.algorithm, key, site, search=search)
    except AlignmentError as error:
        return error


def _nearest(subject: KnownMachine, material: Material) -> Answer:
    """Minus the divergence of every family; the family that explains the model, where one does."""
    effort, task = material.effort, subject.task
    sets = task.sets_for(
        effort.episodes, effort.rounds, material.seed, **shared_sizes([subject.model])
    )
    explained = explain(subject.model, task, sets, seed=material.seed)
    scores = {
        key: -float(np.mean([np.mean(each) for each in score.divergences.values()]))
        for key, score in explained.scores.items()
    }
    return Answer(
        scores, frozenset() if explained.family is None else frozenset({explained.family})
    )


def _patched(own_round: bool, subject: KnownMachine, material: Material) -> Answer:
    """Effects of the latents of each round on the prediction that is read; none where they come later."""
    read, scores = material.effort.round, dict.fromkeys(material.items("rounds"), 0.0)
    for key, at in changes(subject, material):
        later = list(
            range(at + 1, material.effort.rounds)
        )  # what earlier rounds read is the same on both sides
        # Mean sizes of the effects of each round's latents on each round's prediction; NaN on earlier ones.
        ask = partial(
            round_map, subject.model, *sides(subject, material, key, at), "latent", round=later
        )
        made = material.once(("round map", key, at), partial(ask, direction="noising"))
        effects = made.table.pivot(index="patched", columns="read", values="size")
        sizes = np.diagonal(effects) if own_round else np.nan_to_num(effects[read])
        scores |= {
            (key, at, t): x if x > FAINT else 0.0
            for t, x in zip(later, sizes.tolist(), strict=True)
        }
    return Answer(scores)


def _decodable(subject: KnownMachine, material: Material) -> Answer:
    """R2 of a probe for the inputs that the change touches, from the latents that each round reads."""
    scores: dict[Item, float] = {}
    for key, at in changes(subject, material):
        runs = [rollout(subject.model, episodes) for episodes in sides(subject, material, key, at)]
        # A round's inputs that differ between the sides: which token, and which number, [episode, side, input].
        tokens = torch.stack([run.tokens[:, at] for run in runs], 1)
        values = torch.stack([run.values[:, at] for run in runs], 1).double()
        kinds = torch.nn.functional.one_hot(tokens, int(tokens.max()) + 1).flatten(2).double()
        inputs = torch.cat([kinds, values.flatten(2)], -1)
        wanted = inputs[:, :, (inputs[:, 0] != inputs[:, 1]).any(0)]
        for t in range(material.effort.rounds):
            read = torch.stack([run.latents[:, t].flatten(1).double() for run in runs], 1)
            scores[key, at, t] = max(_r2(_probe(read, wanted, False)[1]), 0.0)
    return Answer(scores)


for _key, _name in {
    "probe": "linear probe",
    "probe:within-round": "linear probe, round means removed",
}.items():
    _within = _key != "probe"
    register(
        Method(_key, _name, "where", partial(_linear, "where", _within)),
        Method(_key, f"{_name}, R2 >= {_THRESHOLD}", "exists", partial(_linear, "exists", _within)),
    )
register(
    Method(
        "probe:weights", "directions of a linear probe", "subspace", partial(_directions, False)
    ),
    Method(
        "probe:pattern",
        "directions along which decoded activations vary",
        "subspace",
        partial(_directions, True),
    ),
    Method("interchange", "interchange of whole activations", "where", _interchanged, quick=False),
    Method("das", "distributed alignment search", "where", partial(_das, "where"), quick=False),
    Method(
        "das", "distributed alignment search", "subspace", partial(_das, "subspace"), quick=False
    ),
    Method("fit", "nearest fitted algorithm, by predictions", "algorithm", _nearest, quick=False),
)
register(
    Method(
        "patching", "patching of latents, the later round read", "rounds", partial(_patched, False)
    ),
    Method(
        "patching:own-round",
        "patching of latents, their own round read",
        "rounds",
        partial(_patched, True),
    ),
    Method("probe", "probe for the changed input, by round", "rounds", _decodable),
)
