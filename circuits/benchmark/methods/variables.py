"""Methods for questions about variables: at which sites and in which directions they are stored,
whether at all, and of which algorithm they are.

They use probes and interchange interventions. ``docs/method/benchmark.md`` says what each method
scores, and its source.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from circuits.benchmark.known_machine import KnownMachine
from circuits.benchmark.material import FITTING_BATCH, Material
from circuits.benchmark.methods import Method, register
from circuits.benchmark.question import Answer
from circuits.benchmark.questions import values_of
from circuits.compare.algorithm import explain
from circuits.compare.question import shared_sizes
from interp.core.algorithm import NEXT
from interp.interventions.alignment import AlignmentError, AlignmentResult, Search, align
from interp.interventions.experiment import Outcome
from interp.interventions.interchange import interchange
from interp.interventions.sites import Site
from interp.model.rollout import replay
from interp.stats.decoder import RIDGE, Affine, Decoder
from interp.support.errors import require

_THRESHOLD = 0.5  # held-out R2 from which a variable is declared to exist


def _fit_probe(
    x: Tensor, y: Tensor, within_round: bool
) -> tuple[Affine, Float[Tensor, "2 output"]]:
    """Fit a linear probe on the first two thirds of the episodes, and measure its errors on the
    rest.

    Args:
        x: activations ``[episode, round, dimension]``.
        y: targets ``[episode, round, output]``.
        within_round: True subtracts each round's mean over episodes first.

    Returns:
        The probe; and its squared errors on the other episodes, summed over episodes and rounds,
        ``[2, output]``. The first row is for the probe, the second for predicting the mean.
    """
    if within_round:
        x, y = x - x.mean(0), y - y.mean(0)
    n_known = 2 * len(x) // 3
    known_x, known_y = x[:n_known], y[:n_known]
    # The penalty is relative to the variance of the activations; if they are constant, it is 0.
    varies = bool(((known_x - known_x.mean((0, 1))).abs() > 1e-9).any())
    ridge = RIDGE if varies else 0.0
    fitted = Affine.fit(known_x.flatten(0, 1), known_y.flatten(0, 1), ridge)
    test_y = y[n_known:]
    errors_of_probe = fitted(x[n_known:]) - test_y  # [episode, round, output]
    errors_of_mean = known_y.mean((0, 1)) - test_y
    return fitted, torch.stack([errors_of_probe, errors_of_mean]).square().sum((1, 2))


def _compute_r2(errors: Float[Tensor, "2 output"]) -> float:
    """Compute the R2 of a probe, over all its outputs together.

    Args:
        errors: sums of squared errors ``[2, output]``: of the probe, then of predicting the mean.

    Returns:
        R2; NaN if no output varies.
    """
    missed, varied = errors.sum(1).tolist()
    return 1 - missed / varied if varied > 0 else float("nan")


def _score_sites_by_probe(
    subject: KnownMachine, material: Material, *, within_round: bool
) -> Answer:
    """Score each candidate pair (variable, site) by how well a linear probe decodes the variable
    from the activation at the site. The score is R2 in episodes that the probe was not fitted to.

    Args:
        subject: the machine; not used.
        material: the machine's runs, and the candidate pairs.
        within_round: True measures R2 within each round, so that the round number has no effect.
    """
    scores = {}
    for key, site in material.items("where"):
        _, r2 = _probe_site(material, site, within_round)[key]
        scores[key, site] = r2
    return Answer(scores)


def _score_existence_by_probe(
    subject: KnownMachine, material: Material, *, within_round: bool
) -> Answer:
    """Score each candidate variable by how well a linear probe decodes it from the activation at
    its best site. The score is R2 in episodes that the probe was not fitted to.

    Variables with R2 of at least .5 are chosen as true: the machine computes them.

    Args:
        subject: the machine; not used.
        material: the machine's runs, the candidate variables, and the sites.
        within_round: True measures R2 within each round, so that the round number has no effect.
    """
    sites = dict.fromkeys(site for _, site in material.items("where"))
    probes = [_probe_site(material, site, within_round) for site in sites]
    scores = {}
    for key in material.items("exists"):
        scores[key] = max(r2 for _, r2 in (by_variable[key] for by_variable in probes))
    return Answer(scores, frozenset(key for key, r2 in scores.items() if r2 >= _THRESHOLD))


def _answer_directions(
    subject: KnownMachine, material: Material, *, of_activations: bool
) -> Answer:
    """Return the directions of a linear probe for each variable at each site.

    Directions are sorted by the variance of the probe's output along them, the largest first.

    Args:
        subject: the machine; not used.
        material: the machine's runs.
        of_activations: True for the directions along which activations vary with the variable,
            False for the probe's weights.
    """
    subspaces = {}
    for key, site in material.items("subspace"):
        fitted, _ = _probe_site(material, site, within_round=False)[key]
        # The covariance of the probe's outputs, [output, output]: A^T C A, with slopes A and the
        # covariance C of the activations; `along` is A^T C.
        variances, axes = torch.linalg.eigh(fitted.along @ fitted.slopes)
        varying = axes[:, variances > 1e-9 * variances.max()].flip(1)  # the largest first
        columns = fitted.along.T if of_activations else fitted.slopes
        subspaces[key, site], _ = torch.linalg.qr(columns @ varying)
    return Answer({}, subspaces=subspaces)


def _probe_site(
    material: Material, site: str, within_round: bool
) -> dict[str, tuple[Affine, float]]:
    """Fit a linear probe of every candidate variable at one site.

    Args:
        material: the machine's runs, and the candidate variables.
        site: the site as text, such as "resid_post[2]@p?".
        within_round: True fits and scores within each round, so that the round number has no
            effect.

    Returns:
        Variable -> (probe, its R2 in episodes that it was not fitted to).
    """

    def make() -> dict[str, tuple[Affine, float]]:
        """Fit one map to the values of all variables side by side, and split it by variable, which
        gives the same as one fit for each.
        """
        x = _get_activations(material, site)
        # Items of the question "where" are pairs (variable, site), those of "exists" are variables.
        # The dictionary is a set of variables in order.
        names = dict.fromkeys(variable for variable, _ in material.items("where"))
        names |= dict.fromkeys(material.items("exists"))
        values = [torch.from_numpy(values_of(material, name)) for name in names]
        fitted, errors = _fit_probe(x, torch.cat(values, -1), within_round)
        probes, start = {}, 0
        for name, value in zip(names, values, strict=True):
            columns = slice(start, start + value.shape[-1])  # the outputs of this variable
            start = columns.stop
            probe = Affine(
                centre=fitted.centre,
                middle=fitted.middle[columns],
                slopes=fitted.slopes[:, columns],
                along=fitted.along[columns],
            )
            probes[name] = probe, _compute_r2(errors[:, columns])
        return probes

    return material.compute_once(("probes", site, within_round), make)


def _get_activations(material: Material, site: str) -> Float[Tensor, "episode round dimension"]:
    """Return the activations at a site, on the episodes for fitting probes. The activations of
    several positions or heads are concatenated.

    Args:
        material: the machine's runs.
        site: the site as text, such as "resid_post[2]@p?".
    """
    model = material.subject.model
    run = material.run(batch=FITTING_BATCH, n=material.effort.fits)
    place = Site.parse(site, model)

    def replay_site() -> Tensor:
        """Run the rounds once more to get the activations of the hook."""
        _, _, cache = replay(model, run, names_filter=[place.hook])
        return cache[place.hook].double()

    # [episode, round, ...]; the other axes are those of the hook.
    activation = material.compute_once(("activation", place.hook), replay_site)
    if place.kind.axes == "pos" and place.position is not None:
        return activation[:, :, run.layout.position(place.position)]
    rows = activation.flatten(0, 1)[place.index(run.layout)]
    return rows.reshape(run.n_episodes, run.n_rounds, -1)


def _answer_interchange(subject: KnownMachine, material: Material) -> Answer:
    """Score how well each site fits each variable, by interchange interventions: the activation at
    the site is replaced by that of another episode.

    The score is the cosine between two effects on an output: the actual one, and the one that the
    algorithm predicts if the variable is replaced. The outputs are the prediction and the state;
    the larger of the two cosines counts.

    Args:
        subject: the machine.
        material: the machine's runs, and the candidate pairs (variable, site).
    """
    # A handwired model has a function that reads the state from its latents. Other models need a
    # decoder.
    decode = None
    if not subject.model.is_handwired:
        decode = material.compute_once(
            "state decoder", lambda: _fit_state_decoder(subject, material)
        )
    # The base, and the source of the activations: two independent batches of episodes.
    runs = material.run(batch=2), material.run(batch=3)
    # `written` is the key of the state after a round; "" if the algorithm carries none.
    outcomes = ("prediction", "state") if subject.algorithm.written else ("prediction",)
    scores = {}
    for key, site in material.items("where"):
        cosines = []
        for outcome in outcomes:
            result = interchange(
                subject.model,
                *runs,
                subject.algorithm,
                key,
                site,
                outcome=Outcome(outcome, decode),
            )
            effect, wanted = result.effect, result.wanted
            size = float(np.linalg.norm(effect) * np.linalg.norm(wanted))
            along = float((effect * wanted).sum())  # inner product over all episodes and numbers
            cosines.append(along / size if size > 1e-9 else 0.0)
        scores[key, site] = max(cosines)
    return Answer(scores)


def _fit_state_decoder(subject: KnownMachine, material: Material) -> Callable[[Tensor], Tensor]:
    """Fit a linear map from latents to the algorithm's state, for a model without an exact decoder.
    Each latent's part of the state is decoded from this latent alone.

    Args:
        subject: the machine, with its algorithm.
        material: the machine's runs.

    Returns:
        The map, a function from latents to the state.
    """
    run = material.run(batch=FITTING_BATCH, n=material.effort.fits)
    key = subject.algorithm.state[0]
    # The state after each round, and the latents that the round wrote (index 0 has the initial ones).
    values = np.asarray(material.variables[NEXT + key], np.float64)
    state = run.layout.per_latent(torch.from_numpy(values))  # split among the latents
    parts = zip(run.latents[:, 1:].split(1, -2), state.unbind(2), strict=True)
    decoders = [Decoder.fit(latent, part, ridge=RIDGE) for latent, part in parts]

    def decode(latents: Tensor) -> Tensor:
        """Decode each latent's part of the state, and join the parts."""
        rows = zip(decoders, latents.split(1, -2), strict=True)
        return run.layout.state(torch.stack([decode_row(row) for decode_row, row in rows], -2))

    return decode


def _answer_das(question: str, subject: KnownMachine, material: Material) -> Answer:
    """Answer a question by distributed alignment search, which learns a subspace for each variable
    at each site.

    A (variable, site) is left out if the search is refused there (:class:`AlignmentError`).

    Args:
        question: "where" scores each (variable, site) by the accuracy of interchanges in the
            subspace; "subspace" answers with the subspaces.
        subject: the machine.
        material: the machine's runs.

    Raises:
        InputError: every search was refused; the message quotes the last refusal.
    """
    items = material.items(question)
    results, refusal = {}, None
    for key, site in items:
        result = material.compute_once(
            ("das", key, site), partial(_align, subject, material, key, site)
        )
        if isinstance(result, AlignmentResult):
            results[key, site] = result
        else:  # the error with which the alignment was refused
            refusal = result
    require(
        results or not items,
        f"no site could be aligned; of the last: {refusal}",
    )
    if question == "where":
        return Answer({item: result.accuracy() for item, result in results.items()})
    return Answer({}, subspaces={item: result.basis for item, result in results.items()})


def _align(
    subject: KnownMachine, material: Material, key: str, site: str
) -> AlignmentResult | AlignmentError:
    """Learn a subspace for a variable at a site by distributed alignment search.

    Args:
        subject: the machine.
        material: the subject's runs, the number of optimiser steps and the seed.
        key: key of the variable.
        site: the site as text.

    Returns:
        The alignment; or the error, if the alignment is refused.
    """
    effort = material.effort
    # The base, and the source of the activations: two further batches.
    runs = material.run(batch=4, n=effort.fits), material.run(batch=5, n=effort.fits)
    search = Search(steps=effort.steps, restarts=1, seed=material.seed)
    try:
        return align(subject.model, *runs, subject.algorithm, key, site, search=search)
    except AlignmentError as error:
        return error


def _answer_nearest(subject: KnownMachine, material: Material) -> Answer:
    """Score each family of algorithms by how close its predictions come to the model's: minus their
    divergence, averaged over episodes and sets of episodes, after its parameters were fitted.

    The family that explains the model, if there is one, is chosen as true.

    Args:
        subject: the machine.
        material: the numbers of episodes and rounds, and the seed.
    """
    effort, task = material.effort, subject.task
    sizes = shared_sizes([subject.model])
    sets = task.sets_for(effort.episodes, effort.rounds, material.seed, **sizes)
    explained = explain(subject.model, task, sets, seed=material.seed)
    scores = {}
    for key, score in explained.scores.items():
        by_set = [np.mean(nats) for nats in score.divergences.values()]
        scores[key] = -float(np.mean(by_set))
    chosen = [] if explained.family is None else [explained.family]
    return Answer(scores, frozenset(chosen))


for _key, _name, _within_round in (
    ("probe", "linear probe", False),
    ("probe:within-round", "linear probe, round means removed", True),
):
    _answer_sites = partial(_score_sites_by_probe, within_round=_within_round)
    _answer_existence = partial(_score_existence_by_probe, within_round=_within_round)
    register(
        Method(_key, name=_name, question="where", answer=_answer_sites),
        Method(
            _key, name=f"{_name}, R2 >= {_THRESHOLD}", question="exists", answer=_answer_existence
        ),
    )
register(
    Method(
        "probe:weights",
        name="directions of a linear probe",
        question="subspace",
        answer=partial(_answer_directions, of_activations=False),
    ),
    Method(
        "probe:pattern",
        name="directions along which decoded activations vary",
        question="subspace",
        answer=partial(_answer_directions, of_activations=True),
    ),
    Method(
        "interchange",
        name="interchange of whole activations",
        question="where",
        answer=_answer_interchange,
        quick=False,
    ),
    Method(
        "das",
        name="distributed alignment search",
        question="where",
        answer=partial(_answer_das, "where"),
        quick=False,
    ),
    Method(
        "das",
        name="distributed alignment search",
        question="subspace",
        answer=partial(_answer_das, "subspace"),
        quick=False,
    ),
    Method(
        "fit",
        name="nearest fitted algorithm, by predictions",
        question="algorithm",
        answer=_answer_nearest,
        quick=False,
    ),
)
