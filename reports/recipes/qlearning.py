"""The report on a model of tabular Q-learning: wired by hand, or learned.

Sample episodes; run the model over them; where it is handwired, check every causal variable against the algorithm; then
its Q-values over time, its agreement with the table, what it earns when it acts, what its latents hold (probes), where
a difference passes (patching), which places carry the algorithm's variables (interchange), what a state written into
the latents does (steering), which edges suffice, and the inside of one round.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import interp
import probes
from circuits.circuit import Circuit
from circuits.registry import differentiable, from_origin
from circuits.verification import VerificationResult, verify
from interp.tasks.qlearning.agreement import AgreementResult, agreement
from interp.tasks.qlearning.evaluation.by_regime import reference_table
from interp.interventions import corruptions, tables
from interp.interventions.carriers import Claim
from interp.interventions.interchange import Place
from interp.interventions.patching import sweep
from interp.tasks.qlearning.layout import QLearningRound
from interp.model.rollout import Rollout
from interp.model.transformer import HookedLatentTransformer
from interp.provenance import provenance
from interp.tasks import mdp
from interp.tasks.mdp import MDPEpisodes
from interp.training.curves import shipped_curves
from probes import ProbeResult
from reports.blocks import Prose, Table
from reports.page import Report, Section
from reports.progress import Step
from reports.sections import behaviour, edges, inside, interchange, overview, patching, playing, probing, steering
from reports.sections.learning import learning
from reports.sections.patching import Patched
from reports.sections.softening import ETAS, ROUNDS, lemma, softmax_only

N_STEPS = 12
VERIFIED_SIZES = ((4, 2), (8, 4))
VERIFIED_EPISODES = 5
PATCHED_EPISODES = 16
CAUSAL_EPISODES = 24
"""Pairs for interchange, steering and edges."""
TARGETS = ("q_table", "q_table_visited", "td_error", "reward")
_ALL = slice(None)
CARRIED = (
    ("table", "q_columns", slice(0, 1), "prediction"),
    ("table", "q_columns", slice(0, 1), "state"),
    ("column", "visited_column", slice(0, 1), "state"),
    ("state", "state", slice(0, 2), "state"),
    ("next_state", "next_state", slice(1, None), "prediction"),
    ("q_current", "current_value", _ALL, "state"),
    ("q_next", "next_values", _ALL, "prediction"),
    ("best", "maximum", _ALL, "state"),
    ("choice", "policy", _ALL, "prediction"),
    ("reward", "reward", _ALL, "state"),
    ("next_column", "next_column", _ALL, "state"),
)
"""Variable, the circuit's name for it, which of its sites, and where it shows."""
NOT_CARRIED = {
    "embed@<BOS>": ("q_next", "prediction"),
    "resid_post[2]@Update": ("choice", "prediction"),
    "resid_post[2]@Select": ("reward", "state"),
}


def report(
    model: HookedLatentTransformer, source: str, *, n_episodes: int, n_rounds: int, seed: int, step: Step
) -> Report:
    """Everything that the page shows, in the order in which it is computed and, but for the summary, read.

    Args:
        source: what the model was loaded by: a name, or the path of a checkpoint.
    """
    layout = model.layout
    assert isinstance(layout, QLearningRound)
    n_states, n_actions = layout.n_states, layout.n_actions
    looked_at = min(20, n_rounds // 2)
    name, heads, handwired = model.config.name, inside.heads_of(model), len(model.state_map) > 0
    alpha, gamma = rates_of(model) if handwired else (0.1, 0.9)

    step("running the model")
    episodes = mdp.sample(n_episodes, n_rounds, n_states, n_actions, seed=seed, alpha=alpha, gamma=gamma)
    shown = int((episodes.q_tables[:, -1] != 0).sum((1, 2)).argmax())  # the episode that fills its table best is drawn
    run = interp.rollout(model, episodes, names_filter=inside.hooks(model), rounds=[looked_at])

    step("verifying it against the algorithm")
    few = min(VERIFIED_EPISODES, n_episodes)
    verified = verify(name, VERIFIED_SIZES, n_rounds, few, seed=seed) if handwired else None

    step("softening its attention")
    softened = soften(name, (n_states, n_actions), n_rounds, few, seed) if handwired else {}

    step("comparing its choices with the table")
    table = reference_table(model)
    agreed = agreement(run.predictions.double().numpy(force=True), episodes, table=table, seed=seed)

    step("letting it act")
    mdps = playing.worlds(n_episodes, n_states, n_actions, seed)
    played = playing.play_worlds(model, mdps, n_rounds, alpha=alpha, gamma=gamma, seed=seed)

    step("probing its latents")
    probed = probes.probe(model, episodes, TARGETS, seed=seed)

    step("patching")
    patched = patch(model, episodes, looked_at)

    step("interchanging variables")
    some, other = (tables.sample(model, CAUSAL_EPISODES, looked_at + 3, s) for s in (seed, seed + 1))
    wired = from_origin(model.config.origin) if handwired else None
    claims = [*interchange.wired(wired, CARRIED, NOT_CARRIED), change(wired)] if wired else None
    carried = tables.interchange_table(model, some, other, looked_at, seed, claims)
    aligned = None if handwired else tables.alignment_table(model, some, other, looked_at, seed)

    step("steering its latents")
    steered = tables.steering_table(model, some, looked_at, seed)

    step("finding circuits of edges")
    smooth = differentiable(model)
    found = tables.circuit_tables(smooth, some, looked_at, seed)

    compared = shipped_curves(source)

    step("drawing")
    sections = [
        overview.summary(summary(model, episodes, verified, agreed, played, probed)),
        *([overview.verification(verified)] if verified else []),
        exact_values(model, run, episodes, shown) if handwired else decoded_values(probed, shown),
        agreement_section(agreed, "ended" if table == "after" else "began"),
        playing.section(played, handwired=handwired, seed=seed),
        probing.probes(probed),
        patching.patching(patched, heads),
        interchange.interchange(carried, aligned),
        steering.steering(steered, exact=handwired, change="first action's values + 0.2", outcome="P(first action)"),
        edges.edges(found, inside.heads_of(smooth), softened=handwired),
        inside.attention(run, heads, [looked_at], episode=shown),
        inside.circuit(model, run, heads, looked_at, episode=shown, wired=wired),
        *([softmax_only(softened, {"carried_state": "the Q-table"})] if softened else []),
        *([lemma(layout.n_positions)] if handwired else []),
        *([] if compared is None else [learning(compared, "its floor")]),
        overview.reproduce(*reproduce(source, n_episodes, n_rounds, seed, n_states, n_actions)),
    ]
    settings = {"model": name, "digest": model.digest()[:16], "seed": seed, "regime": episodes.regime}
    settings |= {"n_episodes": n_episodes, "n_rounds": n_rounds, "n_states": n_states, "n_actions": n_actions}
    settings |= {"alpha": alpha, "gamma": gamma}
    title, lead = HANDWIRED if handwired else (f"{name}: a learned model of Q-learning", LEARNED)
    return Report(title, lead, sections, provenance(**settings))


HANDWIRED = (
    "Tabular Q-learning, wired by hand",
    "A causal transformer whose weights were written down, not trained, and which runs tabular Q-learning: one "
    "latent per action carries a column of the Q-table from round to round. Here it is checked against the "
    "algorithm, set free in MDPs, and looked into.",
)
LEARNED = (
    "A transformer trained to imitate Q-learning's choices; its latents, one per action, are the only thing that "
    "passes from round to round. Here its choices are compared with the table's, its latents probed, and its rounds "
    "patched."
)


def rates_of(model: HookedLatentTransformer) -> tuple[float, float]:
    """The learning rate and discount that a handwired model was built with."""
    arguments = from_origin(model.config.origin).arguments
    return float(arguments["alpha"]), float(arguments["gamma"])


def change(circuit: Circuit) -> Claim:
    """The TD error, as it is written: learning rate x TD error at the entry of s_t, which the last layer adds."""
    written = circuit.basis["buf1"]
    column = np.stack([written[label].vector() for label in written.labels if label.startswith("s_")])
    return Claim("change", (Place.of(f"attn_out[{circuit.n_layers - 1}]@Update", column),), "state")


def soften(
    name: str, size: tuple[int, int], n_rounds: int, n_episodes: int, seed: int
) -> dict[int, VerificationResult]:
    """The softmax-only variant at several inverse temperatures, verified like the exact one."""
    options: dict[str, Any] = {"seed": seed, "variant": "softmlp"}
    return {eta: verify(name, (size,), min(ROUNDS, n_rounds), n_episodes, eta=float(eta), **options) for eta in ETAS}


def summary(
    model: HookedLatentTransformer,
    episodes: MDPEpisodes,
    verified: VerificationResult | None,
    agreed: AgreementResult,
    played: list[playing.Played],
    probed: list[ProbeResult],
) -> dict[str, Any]:
    """What the report found, in a few lines."""
    sampled = (
        f"{len(episodes)} episodes of {episodes.n_rounds} rounds, {episodes.n_states} states, {episodes.n_actions}"
    )
    described = f"{sampled} actions, {episodes.regime} regime, seed {episodes.seed}"
    items: dict[str, Any] = {"Model": overview.describe(model), "Episodes": described}
    if verified:
        items["Latents equal the Q-table"] = overview.exactness(verified, "carried_state")
    untied, baseline = agreed.get("untied"), agreed.get("untied_gamma0")
    items["Agreement on untied steps"] = f"{untied.estimate:.3f}; a table that never bootstraps {baseline.estimate:.3f}"
    for result in probed[:1]:
        items[f"Probe: {result.target.key.replace('_', ' ')}"] = overview.represented(result)
    if verified:
        same = all(world.same_as_tabular for world in played)
        items["Free rollouts equal the tabular learner's"] = overview.verdict(same, "every action equal", "they differ")
    return items


def exact_values(model: HookedLatentTransformer, run: Rollout, episodes: MDPEpisodes, shown: int) -> Section:
    """The Q-values that a handwired model's latents hold, on the table's."""
    state = model.read_state(run.latents)[shown].numpy(force=True)
    names = [f"Q({s + 1},{a + 1})" for s in range(episodes.n_states) for a in range(episodes.n_actions)]
    return behaviour.state_over_time(
        state.reshape(len(state), -1),
        episodes.q_tables[shown].reshape(len(state), -1),
        names,
        title="Q-values over time",
        ylabel="Q-value",
        text="Each latent holds one action's column of the Q-table; each round changes one entry. The values are read "
        "from the latents themselves.",
        shown=f"Every entry of the Q-table in episode {shown}",
    )


def decoded_values(probed: list[ProbeResult], shown: int) -> Section:
    """The Q-values that a probe decodes from a learned model's latents, on the table's."""
    result = next(result for result in probed if result.target.key == "q_table")
    return behaviour.state_over_time(
        result.predictions[shown],
        result.target.values[shown],
        result.target.outputs,
        title="Q-values over time",
        ylabel="Q-value",
        text="What a linear probe, fitted on other episodes, decodes from the latents, beside the table.",
        shown=f"The decoded Q-table of episode {shown}",
    )


def agreement_section(agreed: AgreementResult, when: str) -> Section:
    """Agreement with the greedy choices of the table that a round ``when`` ("began", "ended") with, and with those of
    a table without bootstrapping."""
    text = (
        f"The choice at `Select` beside the greedy action of the table that the round {when} with. Ties say nothing, "
        "so they are left out or broken at random; a table with γ = 0, which never bootstraps, agrees nearly as "
        "often, so its agreement stands beside every number. **Only on disputed steps, where the two tables "
        "disagree, does agreement show bootstrapping.**"
    )
    frame = agreed.to_frame()
    rows = frame[frame["phase"] == "all"][["name", "estimate", "low", "high", "n_steps"]]
    phases = frame[frame["phase"] != "all"].drop(columns="quantity")
    return Section(
        "Agreement with the table",
        [
            Prose(text),
            Table(rows.rename(columns={"name": "quantity"}), "All rounds, with 95 % intervals over episodes"),
            Table(phases, "Early, middle and late rounds", collapsed=True),
        ],
    )


def patch(model: HookedLatentTransformer, episodes: MDPEpisodes, round: int) -> list[Patched]:
    """Two differences with two routes: what the latents hold (into the choice), and the reward (into the update)."""
    some = episodes.select(slice(PATCHED_EPISODES))
    sides = {
        "Latents are another episode's": (corruptions.swap_latents(some, round), "probability"),
        "The reward is changed": (corruptions.change_reward(some, round), "state"),
    }
    return [
        Patched(what, sweep(model, clean, corrupted, round, components=("resid_pre", "head"), metric=metric))
        for what, ((clean, corrupted), metric) in sides.items()
    ]


def reproduce(source: str, n_episodes: int, n_rounds: int, seed: int, n_states: int, n_actions: int) -> tuple[str, str]:
    """The shell command and the Python that give these numbers again."""
    shell = f"interp report {source} --episodes {n_episodes} --rounds {n_rounds} --seed {seed}"
    python = f"""
import interp, probes
from interp.tasks import mdp

episodes = mdp.sample({n_episodes}, {n_rounds}, {n_states}, {n_actions}, seed={seed})
model = interp.load({source!r})
run = interp.rollout(model, episodes)
run.predictions                       # the policy at Select, [episode, round, action]
probes.probe(model, episodes, {list(TARGETS)}, seed={seed})
"""
    return shell, python
