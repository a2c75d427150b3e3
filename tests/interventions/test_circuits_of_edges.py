"""Edges: cutting, attribution, pruning, strongest reads and a circuit's measures, on a napkin and a handwired one."""

from functools import partial

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from pandas.testing import assert_frame_equal

from interp.interventions import ablation, edge_graph
from interp.interventions.ablation import CircuitScorer
from interp.interventions.edge_graph import EdgeGraph
from interp.interventions.pairs import Metric, prepare
from interp.interventions.sites import head_address
from interp.tasks import experts
from interp.tasks.experts import analysis as corruptions
from tests.interventions.conftest import VALUE
from tests.refusals import refuses


@pytest.fixture(scope="module")
def sums(napkin, napkin_pair):
    """The napkin pair at round 0: 117 clean, 62 corrupted."""
    return prepare(napkin, *napkin_pair, 0)


@pytest.mark.parametrize(
    ("edge", "expected"),
    [
        (("L0H0", "L1H0.q"), (18 + 3) + 5 * (8 + 3) - 9),
        (("L0H0", "prediction"), (8 + 3) + 5 * (18 + 3) - 9),
        (("embed", "L0H0.k"), 6 * (2 * 2 * 3 + 3) - 9),
        (("embed", "L1H1.v"), 6 * (18 + 3) - 3 * 2),
        (("embed", "L0H1.v"), 117),  # the latents are the same
        (("L0H0", "L1H1.q"), 117),  # head 1.1 asks with `ask`, which 0.0 does not write
    ],
)
def test_cutting_one_edge(sums, edge, expected):
    scorer = CircuitScorer(sums, VALUE)
    keep = scorer.graph.mask()
    keep[scorer.graph.edge(*edge)] = False
    assert scorer.values(keep).item() == expected


@pytest.mark.parametrize(
    ("node", "how", "expected"),
    [
        ("L0H0", "zero", 6 * (0 + 3) - 9),
        ("L0H0", "resample", 6 * (8 + 3) - 9),
        ("L0H0", "mean", 6 * (8 + 3) - 9),  # one episode is its own mean
        ("L1H1", "zero", 6 * (18 + 3)),
        ("L1H0", "zero", (18 + 3) - 9),
        ("embed", "resample", 62),
    ],
)
def test_ablating_one_node(sums, node, how, expected):
    frame = ablation.ablate(CircuitScorer(sums, VALUE, how)).set_index("name")
    assert frame.loc[node, "drop"] == 117 - expected


def test_mean_ablation_is_the_mean_over_episodes(napkin):
    """Two episodes with votes 0 and 1: cut, every edge of head 0.0 carries (8 + 18) / 2."""
    votes = np.array([[[1]], [[0]]])
    episodes = experts.ExpertEpisodes(votes, np.zeros((2, 1), int), np.full((2, 1), 0.5))
    scorer = CircuitScorer(prepare(napkin, episodes, episodes, 0), VALUE, "mean")
    keep = scorer.graph.mask()
    keep[scorer.graph.sources.index("L0H0")] = False
    mean_of_head = (8 + 18) / 2
    without_label = 6 * (mean_of_head + 3)
    assert scorer.values(keep).tolist() == [without_label - 9, without_label - 4]


def test_attribution_of_edges(sums):
    """EAP by hand: difference of the writer times the slope of the reader, at the clean input."""
    result = edge_graph.attribute(sums, VALUE, steps=1)
    graph, scores = result.graph, result.edges
    assert scores[graph.edge("L0H0", "L1H0.q")] == 10 * 5
    assert scores[graph.edge("L0H0", "prediction")] == 10
    assert scores[graph.edge("embed", "L0H0.k")] == 1 * 6 * 2 * 3
    assert scores[graph.edge("embed", "L1H1.v")] == -3
    assert scores[graph.edge("embed", "L0H1.v")] == 0
    assert result.to_frame().source[0] == "L0H0"


def test_integrated_gradients_average_the_slope_on_the_way(sums):
    """EAP-IG with two steps: the slope 12 v at v = 2.5 and 3."""
    result = edge_graph.attribute(sums, VALUE, steps=2)
    edge = result.graph.edge("embed", "L0H0.k")
    assert result.edges[edge] == (12 * 2.5 + 12 * 3) / 2


def test_attribution_agrees_with_transformer_lens(untrained, expert_episodes):
    """Plain EAP of head-to-head edges, against theirs (which takes slopes at the corrupted run)."""
    from transformer_lens.tools.analysis import attribution_patching as tl

    from interp.model.bound import bind

    clean, corrupted = corruptions.exchange_history(expert_episodes, 4)
    single = clean.select([0]), corrupted.select([0])
    # Exchanged, our "clean" is their corrupted: both take slopes there, with opposite differences.
    pair = prepare(untrained, single[1], single[0], 4)
    p_one = Metric("p", "p", "probability", lambda readout, pair: readout.predictions[..., -1])
    ours = edge_graph.attribute(pair, p_one, steps=1)
    bound = bind(untrained, pair.corrupted, pair.clean, rounds=4)

    def mean_p_one(logits):
        probabilities = logits[:, bound.predict_position].softmax(-1)
        return probabilities[:, 1].mean()

    clean_tokens, corrupted_tokens = bound.tokens[0], bound.tokens[1]
    of_edges = tl.EdgeAttributionConfig(granularity="edge")
    theirs = tl.attribution_patch(bound, clean_tokens, corrupted_tokens, mean_p_one, of_edges)
    scores: dict[tuple[str, str], float] = {}
    for (writer, reader), score in theirs.edge_scores.items():
        if writer.kind == "attn_head_out" and reader.kind in ("q_input", "k_input", "v_input"):
            source = head_address(writer.layer, writer.head)
            target = head_address(reader.layer, reader.head)
            key = (source, f"{target}.{reader.kind[0]}")
            scores[key] = scores.get(key, 0.0) + score
    assert len(scores) == 2 * 6
    for (source, target), score in scores.items():
        edge = ours.graph.edge(source, target)
        assert ours.edges[edge] == pytest.approx(-score, abs=1e-6)


@pytest.mark.parametrize("how", ["resample", "mean", "zero"])
def test_keeping_all_edges_is_the_model_and_none_is_the_ablated_input(
    untrained, expert_episodes, how
):
    """No edge cut: the clean run; all cut by resampling: the corrupted run; to float precision."""
    pair = prepare(untrained, *corruptions.exchange_history(expert_episodes, 4), 4)
    scorer = CircuitScorer(pair, "probability", how)
    clean_values = scorer.measure.measure(pair.clean_readout, pair)
    assert_allclose(scorer.full, clean_values, atol=1e-12)
    if how == "resample":
        corrupted_values = scorer.measure.measure(pair.corrupted_readout, pair)
        assert_allclose(scorer.empty, corrupted_values, atol=1e-12)


WANTED = {
    "logit_diff": {("embed", "2.1", "v"), ("2.1", "3.1", "q"), ("3.1", "prediction", "")},
    "state": {("embed", "2.3", "v"), ("2.3", "update", "")},
}


def _named(circuit, graph: EdgeGraph, wanted):
    """Edges between the circuit's heads, by the names that the graph has for them."""

    def place(name):
        if name in ("embed", "prediction", "update"):
            return name
        return head_address(circuit.head(name).layer, circuit.head_index(name))

    names = set()
    for source, target, port in wanted:
        reader = f"{place(target)}.{port}" if port else place(target)
        names.add(f"{place(source)} -> {reader}")
    return names


@pytest.mark.parametrize("metric", list(WANTED))
def test_the_edges_that_carry_the_log_weights_are_enough_and_all_needed(wma, metric):
    """With only the latents corrupted, the minimal circuit is the handwired path of z, and nothing else."""
    circuit, model = wma
    pair = prepare(model, *corruptions.exchange_history(experts.sample(16, 10, 3, seed=0), 8), 8)
    scorer = CircuitScorer(pair, metric)
    graph = scorer.graph
    wanted = _named(circuit, graph, WANTED[metric])
    kept_edges = [edge for edge in graph.edges if graph.name(edge) in wanted]
    keep = graph.mask(kept_edges)
    row = ablation.evaluate(scorer, keep, n_random=10, n_sets=4).to_frame().loc[0]
    assert row["faithfulness"] == pytest.approx(1)
    assert row["random_max"] < 0.5
    assert row["incompleteness"] == pytest.approx(0, abs=1e-9)
    assert row["least_minimal"] > 0.5
    assert row["size"] == len(WANTED[metric])
    shorter = ablation.evaluate(scorer, keep, n_random=10, n_sets=4, minimality=False)
    shorter_row = shorter.to_frame().loc[0]
    assert np.isnan(shorter_row["least_minimal"])
    assert shorter_row.drop("least_minimal").equals(row.drop("least_minimal"))


def test_a_circuit_is_run_once(wma):
    """Asking a second time for what a circuit gives runs nothing; another circuit is not mistaken for it."""
    pair = prepare(wma[1], *corruptions.exchange_history(experts.sample(4, 6, 3, seed=0), 4), 4)
    scorer = CircuitScorer(pair)
    keep = scorer.graph.mask()
    assert scorer.values(keep) is scorer.full
    assert scorer.values(keep.copy()) is scorer.full
    keep[scorer.graph.edges[0]] = False
    assert scorer.values(keep) is not scorer.full


def test_cpr_and_cmd_are_the_areas_of_mib(sums):
    """Trapezoids: with faithfulness 0, .5, 1 at 0, .5, 1 both areas are .5."""
    assert ablation.find_areas((0.0, 0.5, 1.0), (0, 0.5, 1)) == (0.5, 0.5)
    assert ablation.find_areas((0.0, 0.5, 1.0), (0, 0, 0)) == (0, 1)


def test_areas_do_not_depend_on_the_order_of_sizes(sums):
    scorer = CircuitScorer(sums)
    exists = scorer.graph.exists
    scores = np.arange(exists.size).reshape(exists.shape) * 1.0
    up, down = (
        ablation.faithfulness_curve(scorer, scores, shares=shares, n_random=1).table
        for shares in ([0.2, 0.5, 1.0], [1.0, 0.5, 0.2])
    )
    assert up["cmd"][0] > 0
    assert_frame_equal(up, down)


def kept(pair, change, what=CircuitScorer.values):
    """A circuit whose mask was changed, measured."""
    scorer = CircuitScorer(pair, VALUE)
    return what(scorer, change(scorer.graph.mask()))


def scored(pair, change, **options):
    """The faithfulness curve of scores that were changed."""
    make_curve = partial(ablation.faithfulness_curve, **options)
    return kept(pair, lambda keep: change(keep * 1.0), make_curve)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda pair: CircuitScorer(pair, "logit_diff", "median"), "unknown ablation 'median'"),
        (lambda pair: edge_graph.attribute(pair, steps=0), "steps must be an integer >= 1"),
        (
            lambda pair: EdgeGraph(pair.model).edge("L1H0", "L0H0.q"),
            "unknown destination of 'L1H0' 'L0H0.q'",
        ),
        (lambda pair: EdgeGraph(pair.model).mask([(99, 0)]), r"edge \(99, 0\) is none of"),
        (
            lambda pair: EdgeGraph(pair.model).contributions(pair.clean, 9),
            "round 9 is out of range",
        ),
        (
            lambda pair: kept(pair, lambda keep: keep[:2, :2]),
            r"keep must hold a number for each of .*shape \(2, 2\)",
        ),
        (lambda pair: kept(pair, lambda keep: keep.T), "keep must hold a number for each of"),
        (
            lambda pair: kept(pair, lambda keep: torch.as_tensor(keep) * 7.0),
            "keep must be finite numbers from 0 to 1, got 7 to 7",
        ),
        (
            lambda pair: kept(pair, lambda keep: torch.as_tensor(keep) * np.nan),
            "keep must be finite numbers from 0 to 1",
        ),
        (lambda pair: scored(pair, lambda keep: keep[:2]), "scores must hold a number for each of"),
        (lambda pair: scored(pair, lambda keep: keep * np.nan), "scores must be finite numbers"),
        (
            lambda pair: scored(pair, lambda keep: keep, shares=(2.0,)),
            "each share must be a finite number >= 0 and <= 1",
        ),
        (lambda pair: scored(pair, lambda keep: keep, shares=()), "shares is empty"),
        (
            lambda pair: ablation.random_circuits(EdgeGraph(pair.model), 3, -1),
            "n must be an integer >= 0, got -1",
        ),
        (
            lambda pair: ablation.random_circuits(EdgeGraph(pair.model), 10**6, 1),
            "size must be an integer >= 0 and <=",
        ),
        (
            lambda pair: ablation.random_circuits(EdgeGraph(pair.model), 1, 10**9),
            "n=1000000000 would take at least",
        ),
    ],
)
def test_bad_input(sums, call, message):
    refuses(message, call, sums)


def test_hook_flags_are_put_back(sums):
    """Edges need per-head inputs and results to fire; afterwards the model is as it was."""
    CircuitScorer(sums, VALUE).values(EdgeGraph(sums.model).mask())
    cfg = sums.model.cfg
    assert not (cfg.use_attn_result or cfg.use_split_qkv_input or cfg.use_hook_mlp_in)
    assert torch.is_grad_enabled()
