"""The report on a model of prediction with expert advice: handwired Weighted Majority, or a learned model.

Sample episodes; run the model over them; where it is handwired, check every causal variable against the algorithm; then
its regret beside the baselines, what its latent holds (probes), where a difference passes (patching), which places
carry the algorithm's variables (interchange), what a state written into the latent does (steering), which edges
suffice, and the inside of one round.
"""

from __future__ import annotations

from typing import Any

import interp
import probes
from circuits.registry import differentiable, from_origin
from circuits.verification import VerificationResult, verify
from interp.tasks.experts import predictors as algorithms
from interp.tasks.experts.calibration import calibration
from interp.evaluation import suite
from interp.interventions import corruptions, tables
from interp.interventions.patching import sweep
from interp.tasks.experts.layout import ExpertRound
from interp.model.rollout import Rollout
from interp.model.transformer import HookedLatentTransformer
from interp.provenance import provenance
from interp.tasks import experts
from interp.tasks.experts import ExpertEpisodes
from interp.training.curves import shipped_curves
from probes import ProbeResult
from reports.page import Report, Section
from reports.progress import Step
from reports.sections import behaviour, edges, inside, interchange, overview, patching, probing, regret, steering
from reports.sections.evaluated import evaluated
from reports.sections.learning import learning
from reports.sections.patching import Patched
from reports.sections.softening import ETAS, ROUNDS, softmax_only

N_STEPS = 12
VERIFIED_SIZES = (2, 4, 8)
VERIFIED_EPISODES = 10
PATCHED_EPISODES = 32
CAUSAL_EPISODES = 24
"""Pairs for interchange, steering and edges."""
SHOWN = 0
"""The episode whose weights and attention are drawn."""
TARGETS = ("log_weights", "log_weights_centred", "prediction")
_ALL = slice(None)
CARRIED = (
    ("log_weights", "log_weights", slice(0, 1), "prediction"),
    ("log_weights", "log_weights", slice(0, 1), "state"),
    ("log_weights", "log_weights", slice(1, 2), "prediction"),
    ("log_weights", "log_weights", slice(2, 3), "state"),
    ("votes", "votes", slice(0, 1), "prediction"),
    ("votes", "votes", slice(0, 1), "state"),
    ("label", "label", _ALL, "state"),
    ("match", "match", _ALL, "state"),
    ("prediction", "prediction", _ALL, "prediction"),
    ("next_log_weights", "next_log_weights", _ALL, "state"),
)
"""Variable, the circuit's name for it, which of its sites, and where it shows."""
NOT_CARRIED = {
    "embed@<w>": ("log_weights", "prediction"),
    "resid_post[1]@y": ("log_weights", "prediction"),
    "embed@p?": ("label", "state"),
}


def report(
    model: HookedLatentTransformer, source: str, *, n_episodes: int, n_rounds: int, seed: int, step: Step
) -> Report:
    """Everything that the page shows, in the order in which it is computed and, but for the summary, read.

    Args:
        source: what the model was loaded by: a name, or the path of a checkpoint.
    """
    layout = model.layout
    assert isinstance(layout, ExpertRound)
    looked_at = min(20, n_rounds // 2)
    name, heads, handwired = model.config.name, inside.heads_of(model), len(model.state_map) > 0

    step("running the model")
    episodes = experts.sample(n_episodes, n_rounds, layout.n_experts, seed=seed)
    run = interp.rollout(model, episodes, names_filter=inside.hooks(model), rounds=[looked_at])
    predictions = run.predictions.double().numpy(force=True)

    step("verifying it against the algorithm")
    few = min(VERIFIED_EPISODES, n_episodes)
    verified = verify(name, VERIFIED_SIZES, n_rounds, few, seed=seed) if handwired else None

    step("softening its attention")
    softened = soften(name, layout.n_experts, n_rounds, few, seed) if handwired else {}

    step("scoring it beside the baselines")
    scored = regret.scores(name, predictions, episodes, seed=seed)

    step("probing its latent")
    probed = probes.probe(model, episodes, TARGETS, seed=seed)

    step("patching")
    patched = patch(model, episodes, looked_at)

    step("interchanging variables")
    some, other = (tables.sample(model, CAUSAL_EPISODES, looked_at + 3, s) for s in (seed, seed + 1))
    wired = from_origin(model.config.origin) if handwired else None
    claims = interchange.wired(wired, CARRIED, NOT_CARRIED) if wired else None
    carried = tables.interchange_table(model, some, other, looked_at, seed, claims)
    aligned = None if handwired else tables.alignment_table(model, some, other, looked_at, seed)

    step("steering its latent")
    steered = tables.steering_table(model, some, looked_at, seed)

    step("finding circuits of edges")
    smooth = differentiable(model)
    found = tables.circuit_tables(smooth, some, looked_at, seed)

    step("evaluating it elsewhere")
    enough = max(suite.MINIMUM_EPISODES, n_episodes)
    elsewhere = None if handwired else suite.evaluate(model, n_episodes=enough, seed=seed, with_theory=True)

    compared = shipped_curves(source)

    step("drawing")
    sections = [
        overview.summary(summary(model, episodes, verified, scored, probed)),
        *([overview.verification(verified)] if verified else []),
        exact_weights(model, run, episodes) if handwired else decoded_weights(probed),
        regret.section(scored, episodes),
        behaviour.calibration(calibration(predictions, episodes, seed=seed), name=name),
        probing.probes(probed),
        patching.patching(patched, heads),
        interchange.interchange(carried, aligned),
        steering.steering(steered, exact=handwired, change="first expert's weight + 1", outcome="P(its vote)"),
        edges.edges(found, inside.heads_of(smooth), softened=handwired),
        inside.attention(run, heads, [looked_at], episode=SHOWN),
        inside.circuit(model, run, heads, looked_at, episode=SHOWN, wired=wired),
        *([softmax_only(softened, {"prediction": "P(y = 1)", "carried_state": "log-weights"})] if softened else []),
        *([] if elsewhere is None else [evaluated(elsewhere)]),
        *([] if compared is None else [learning(compared, "the Bayes predictor")]),
        overview.reproduce(*reproduce(source, n_episodes, n_rounds, seed, layout.n_experts)),
    ]
    settings = {"model": name, "digest": model.digest()[:16], "seed": seed, "regime": episodes.regime}
    settings |= {"n_episodes": n_episodes, "n_rounds": n_rounds, "n_experts": layout.n_experts}
    title, lead = HANDWIRED if handwired else (f"{name}: a learned model of expert advice", LEARNED)
    return Report(title, lead, sections, provenance(**settings))


HANDWIRED = (
    "Weighted Majority, wired by hand",
    "A causal transformer whose weights were written down, not trained, and which runs the Weighted Majority "
    "algorithm: one latent carries the log-weight of every expert from round to round. Here it is checked against "
    "the algorithm, compared with other predictors, and looked into.",
)
LEARNED = (
    "A transformer trained to predict with expert advice; its latent is the only thing that passes from round to "
    "round. Here it is compared with other predictors, probed for what the latent holds, and patched to see what it "
    "uses."
)


def summary(
    model: HookedLatentTransformer,
    episodes: ExpertEpisodes,
    verified: VerificationResult | None,
    scored: dict[str, regret.Scored],
    probed: list[ProbeResult],
) -> dict[str, Any]:
    """What the report found, in a few lines."""
    sampled = f"{len(episodes)} episodes of {episodes.n_rounds} rounds, {episodes.n_experts} experts, {episodes.regime}"
    items: dict[str, Any] = {"Model": overview.describe(model), "Episodes": f"{sampled} regime, seed {episodes.seed}"}
    if verified:
        items["Predictions equal the algorithm's"] = overview.exactness(verified, "prediction")
        items["Latent equals the log-weights"] = overview.exactness(verified, "carried_state")
    for result in probed[:2]:
        items[f"Probe: {result.target.key.replace('_', ' ')}"] = overview.represented(result)
    own, bayes, vote = (scored[key].score.regret for key in (regret.MODEL, "bayes", "majority_vote"))
    beside = f"the Bayes predictor {bayes.estimate:.2f}, a majority vote {vote.estimate:.2f}"
    items[f"Regret after {episodes.n_rounds} rounds"] = f"{own.estimate:.2f} [{own.low:.2f}, {own.high:.2f}]; {beside}"
    return items


def soften(name: str, n_experts: int, n_rounds: int, n_episodes: int, seed: int) -> dict[int, VerificationResult]:
    """The softmax-only model at several inverse temperatures, verified like the exact one."""
    return {
        eta: verify(name, (n_experts,), min(ROUNDS, n_rounds), n_episodes, seed=seed, eta=float(eta)) for eta in ETAS
    }


def exact_weights(model: HookedLatentTransformer, run: Rollout, episodes: ExpertEpisodes) -> Section:
    """The log-weights that a handwired model's latent holds, on the algorithm's."""
    log_gamma = float(from_origin(model.config.origin).arguments["log_gamma"])
    return behaviour.state_over_time(
        model.read_state(run.latents)[SHOWN].numpy(force=True),
        algorithms.log_weights(episodes, log_gamma)[SHOWN],
        [f"e_{i + 1}" for i in range(episodes.n_experts)],
        title="Weights over time",
        ylabel="log-weight",
        text=f"An expert that was right gains log γ = {log_gamma:g}. The weights are read from the latent itself.",
        shown=f"The log-weights of episode {SHOWN}",
    )


def decoded_weights(probed: list[ProbeResult]) -> Section:
    """The centred log-weights that a probe decodes from a learned model's latent, on the algorithm's."""
    result = next(result for result in probed if result.target.key == "log_weights_centred")
    return behaviour.state_over_time(
        result.predictions[SHOWN],
        result.target.values[SHOWN],
        result.target.outputs,
        title="Weights over time",
        ylabel="log-weight less the mean",
        text="What a linear probe, fitted on other episodes, decodes from the latent after each round, beside Weighted "
        "Majority's log-weights (log γ = 1) less their mean, which is what its prediction depends on.",
        shown=f"The decoded log-weights of episode {SHOWN}",
    )


def patch(model: HookedLatentTransformer, episodes: ExpertEpisodes, round: int) -> list[Patched]:
    """Three differences with three routes: a vote (prediction), a history (latent), a label (update)."""
    some = episodes.select(slice(PATCHED_EPISODES))
    sides = {
        "One expert's vote is flipped": (corruptions.flip_vote(some, round), round),
        "Two experts' histories are swapped": (corruptions.swap_histories(some, round), round),
        "The label is flipped": (corruptions.flip_label(some, round), round + 1),
    }
    options: dict[str, Any] = {"components": ("resid_pre", "head"), "metric": "probability"}
    return [
        Patched(what, sweep(model, clean, corrupted, round, read=read, **options))
        for what, ((clean, corrupted), read) in sides.items()
    ]


def reproduce(source: str, n_episodes: int, n_rounds: int, seed: int, n_experts: int) -> tuple[str, str]:
    """The shell command and the Python that give these numbers again."""
    shell = f"interp report {source} --episodes {n_episodes} --rounds {n_rounds} --seed {seed}"
    python = f"""
import interp, probes
from interp.tasks import experts

episodes = experts.sample({n_episodes}, {n_rounds}, {n_experts}, seed={seed})
model = interp.load({source!r})
run = interp.rollout(model, episodes)
run.predictions                       # P(y = 1), [episode, round]
probes.probe(model, episodes, {list(TARGETS)}, seed={seed})
"""
    return shell, python
