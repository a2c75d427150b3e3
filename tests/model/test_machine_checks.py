"""The contract of a machine: machines that keep it pass, and each of its faults is found and told in a sentence."""

import re
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import interp
from interp.model.carried import pack, unpack
from interp.model.layout import EncodedRounds
from interp.tasks import experts
from tests.handmade import leaky
from tests.machines import N_EXPERTS, RoundCell, adapted, cached, gru, loop, lstm, read_round
from tests.refusals import refuses

SHIPPED = {
    "wma-handwired": {"n_experts": 2},
    "qlearning-handwired": {"n_states": 2, "n_actions": 2},
    "reachability-handwired": {"n_nodes": 6, "n_edges": 6},
    "wma-learned-additive": {},
}


@pytest.mark.parametrize("make", [gru, lstm, loop, cached, leaky])
def test_a_cell_two_channels_and_a_loop_keep_the_contract(make):
    interp.check_machine(make())


def test_a_machine_that_keeps_the_contract_is_told_how_many_checks_passed():
    """The check against the model's own forward pass counts only where ``reference=`` is given."""
    machine = gru()
    assert interp.check_machine(machine) == "12 checks passed"
    assert interp.check_machine(machine, only=["steps_are_pure"]) == "1 check passed"


LARGE = pytest.param(
    "qlearning-learned",
    marks=pytest.mark.slow(reason="two seconds, of the same class as wma-learned-additive"),
)


@pytest.mark.parametrize("name", [*SHIPPED, LARGE])
def test_shipped_models_keep_the_contract(name):
    interp.check_machine(interp.load(name, **SHIPPED.get(name, {})))


# Faults. Each is a cell with one thing wrong; the machine is made without its check, which must then find it.


def read_out(m, h, fed):
    """Scores from a state and the advice of a round."""
    advice, _ = read_round(fed)
    return m.read(torch.cat([h, advice], 1))


def next_state(m, h, fed):
    return m.cell(torch.cat(read_round(fed), 1), h)


def _sees_the_truth(m, carried, fed):
    h = next_state(m, carried["h"], fed)
    return read_out(m, h, fed), {"h": h}


def _keeps_in_an_attribute(m, carried, fed):
    advice, _ = read_round(fed)
    m.kept = getattr(m, "kept", 0.0) + advice.mean().detach()
    for_second_outcome = torch.tensor([0.0, 1.0]) * m.kept
    scores = read_out(m, carried["h"], fed) + for_second_outcome
    return scores, {"h": next_state(m, carried["h"], fed)}


def _mixes_the_batch(m, carried, fed):
    advice, _ = read_round(fed)
    centred = carried["h"] - carried["h"].mean(0)
    scores = read_out(m, centred + advice.mean(), fed)
    return scores, {"h": next_state(m, carried["h"], fed)}


def _drops_out(m, carried, fed):
    h = nn.functional.dropout(carried["h"] + 1, 0.5, training=True)
    return read_out(m, h, fed), {"h": next_state(m, carried["h"], fed)}


def _writes_in_place(m, carried, fed):
    h = carried["h"]
    scores = read_out(m, h, fed)
    h += next_state(m, h, fed)
    return scores, {"h": h}


def _carries_more(m, carried, fed):
    h = next_state(m, carried["h"], fed)
    return read_out(m, carried["h"], fed), {"h": h, "count": torch.ones(len(h), 1)}


def _another_shape(m, carried, fed):
    return read_out(m, carried["h"], fed), {"h": carried["h"][:, :3]}


def _changes_the_dtype(m, carried, fed):
    h = next_state(m, carried["h"], fed)
    return read_out(m, carried["h"], fed), {"h": h.double()}


def _no_number(m, carried, fed):
    h = next_state(m, carried["h"], fed)
    return read_out(m, carried["h"], fed).log(), {"h": h}


def _counts_calls(m, carried, fed):
    """What passes in no channel: how many rounds were run."""
    m.calls = getattr(m, "calls", 0) + 1
    h = next_state(m, carried["h"], fed)
    return read_out(m, carried["h"] + m.calls, fed), {"h": h}


def _good(m, carried, fed):
    h = carried["h"]
    return read_out(m, h, fed), {"h": next_state(m, h, fed)}


def cell(step=_good, **options):
    torch.manual_seed(0)
    return adapted(RoundCell(nn.GRUCell(N_EXPERTS + 1, 16)), step, **options)


def _passes_the_cell_by(m, carried, fed):
    """Past the module's own call, and so its hooks."""
    h = m.cell.forward(torch.cat(read_round(fed), 1), carried["h"])
    return read_out(m, carried["h"], fed), {"h": h}


def _reads_a_sequence(m, carried, fed):
    """The readout runs on a sequence of one step."""
    advice, _ = read_round(fed)
    inputs = torch.cat([carried["h"], advice], 1)
    return m.read(inputs.unsqueeze(1)).squeeze(1), {"h": next_state(m, carried["h"], fed)}


def _reads_twice(m, carried, fed):
    read_out(m, carried["h"], fed)
    return _good(m, carried, fed)


def _starts_at_random(machine):
    machine.make_start = lambda module: {"h": torch.randn(16)}


def _copies_move_the_generator(machine):
    def reset(module):
        torch.manual_seed(3)
        for part in module.modules():
            if hasattr(part, "reset_parameters"):
                part.reset_parameters()

    machine.reset = reset


def _digest_of_some_weights(machine):
    def digest():
        weights = machine.module.cell.weight_ih
        return f"{float(weights.sum()):.6f}"

    machine.digest = digest


def _writes_into_the_round(m, carried, fed):
    scores, after = _good(m, carried, fed)
    fed.values.add_(1.0)
    return scores, after


def _starts_as(shape):
    def change(machine):
        machine.initial = lambda n, layout=None: torch.zeros(n, *shape)

    return change


def _starts_by_the_number_of_episodes(machine):
    machine.initial = lambda n, layout=None: torch.full((n, 1, 16), float(n))


def _runs_otherwise(part):
    """A machine whose form for many rounds is not its step: in what it predicts, or in what it leaves."""

    def change(machine):
        def stepped(carried, fed):
            done = machine.step(carried, fed)
            return done._replace(**{part: 0 * getattr(done, part)})

        machine.stepper = lambda: stepped

    return change


def _predicts_as(shape):
    def change(machine):
        step = machine.step

        def predict(carried, fed, **how):
            done = step(carried, fed, **how)
            return done._replace(prediction=torch.ones(shape))

        machine.step = predict

    return change


def _looking_changes(part):
    """A machine that notices that it is looked at."""

    def change(machine):
        step = machine.step

        def seen(carried, fed, **how):
            done, looked_at = step(carried, fed, **how), bool(machine.hook_latents.fwd_hooks)
            return done._replace(**{part: getattr(done, part) + 1e-3 * looked_at})

        machine.step = seen

    return change


@dataclass(frozen=True)
class _Rounds(EncodedRounds):
    """Rounds with a tensor that a machine is told only after it has predicted."""

    truth: torch.Tensor
    after: ClassVar[tuple[str, ...]] = ("truth",)


def _sees_what_comes_later(machine):
    step, prepare = machine.step, machine.prepare

    def prepare_with_truth(fed):
        truth = fed.tokens[..., -2].float()
        return _Rounds(**prepare(fed).tensors(), truth=truth)

    def predict_truth(carried, fed, **how):
        done = step(carried, fed, **how)
        return done._replace(prediction=fed.truth.sigmoid())

    machine.prepare, machine.step = prepare_with_truth, predict_truth


def _fails(m, carried, fed):
    raise IndexError("no such advice")


FAULTY_STEPS = {
    "a step that fails": (_fails, "a round raised IndexError: no such advice"),
    "it sees the truth": (_sees_the_truth, r"changes with 'y', which comes after 'p\?'"),
    "a state in an attribute": (_keeps_in_an_attribute, "gives another result the second time"),
    "a count of calls": (_counts_calls, "gives another result the second time"),
    "it mixes the batch": (_mixes_the_batch, "depends on the others in the batch"),
    "dropout left on": (_drops_out, "something is drawn at random"),
    "it writes in place": (_writes_in_place, "writes into what it was given"),
    "more is carried than declared": (_carries_more, "'count' is carried but in no channel"),
    "a channel of another shape": (
        _another_shape,
        re.escape("channel 'h' is [batch, *(16,)], got (4, 3)"),
    ),
    "a channel of another dtype": (
        _changes_the_dtype,
        "return every channel in its own shape and dtype",
    ),
    "what is no number": (_no_number, "is not finite"),
    "it writes into the round": (_writes_into_the_round, "writes into what it was given"),
}


@pytest.mark.parametrize(("step", "sentence"), FAULTY_STEPS.values(), ids=FAULTY_STEPS)
def test_every_fault_of_a_step_is_found_and_told(step, sentence):
    refuses(sentence, interp.check_machine, cell(step))


FAULTY_METHODS = {
    "a start drawn at random": (_starts_at_random, "what round 0 reads differs from call to call"),
    "copies that are not of their seed": (
        _copies_move_the_generator,
        "must give the same copy for the same seed",
    ),
    "a digest of some weights": (
        _digest_of_some_weights,
        "does not move with the weight 'module.cell.weight_hh'",
    ),
    "a start of another width": (_starts_as((1, 9)), "what round 0 reads has shape"),
    "a start without rows": (_starts_as((16,)), "what round 0 reads has shape"),
    "a start with more rows": (_starts_as((2, 16)), "what round 0 reads has shape"),
    "a start by the number of episodes": (
        _starts_by_the_number_of_episodes,
        "what round 0 reads differs",
    ),
    "other predictions in a run": (_runs_otherwise("prediction"), "apart from interp.rollout"),
    "another state in a run": (_runs_otherwise("carried"), "apart from interp.rollout"),
    "a prediction of another shape": (_predicts_as((4, 5)), "not that of its layout's outcomes"),
    "fewer predictions than episodes": (_predicts_as((3,)), "not that of its layout's outcomes"),
    "looking changes the prediction": (_looking_changes("prediction"), "changes nothing moves"),
    "looking changes the state": (_looking_changes("carried"), "changes nothing moves"),
    "it sees a tensor that comes later": (
        _sees_what_comes_later,
        "changes with 'truth', which comes after it",
    ),
}


@pytest.mark.parametrize(("change", "sentence"), FAULTY_METHODS.values(), ids=FAULTY_METHODS)
def test_every_fault_of_a_method_is_found_and_told(change, sentence):
    machine = cell()
    change(machine)
    refuses(sentence, interp.check_machine, machine)


FAULTY_POINTS = {
    "a point that does not fire": (
        _passes_the_cell_by,
        {"cell": "cell"},
        "'points.cell' fires 0 times in a round, .*as before torch.compile",
    ),
    "a point that fires twice": (
        _reads_twice,
        {"read": "read"},
        "'read' runs 2 times in a round, more than 1; say how often",
    ),
    "a point with other axes": (
        _good,
        {"cell": interp.Point("cell", axes="pos")},
        r"'points.cell' has axes \[batch, pos, vector\], got shape \(4, 16\)",
    ),
    "a point in a sequence": (
        _reads_a_sequence,
        {"read": "read"},
        r"has axes \[batch, vector\], got shape \(4, 1, 2\); .*axes='pos'",
    ),
}


@pytest.mark.parametrize(("step", "points", "sentence"), FAULTY_POINTS.values(), ids=FAULTY_POINTS)
def test_every_fault_of_a_point_is_found_and_told(step, points, sentence):
    refuses(sentence, interp.check_machine, cell(step, points=points))


@pytest.mark.parametrize("probability", [-0.5, 1.5], ids=["below 0", "above 1"])
def test_probabilities_outside_their_range_are_found_and_told(probability):
    def step(m, carried, fed):
        scores, after = _good(m, carried, fed)
        return 0 * scores + probability, after

    machine = cell(step, output="probability")
    refuses("predictions are no probabilities", interp.check_machine, machine)


def test_numbers_that_differ_a_little_each_time_are_not_taken_for_the_truth():
    def step(m, carried, fed):
        scores, after = _good(m, carried, fed)
        return scores + 1e-6 * torch.rand_like(scores), after

    interp.check_machine(cell(step), only=["predictions_do_not_see_the_truth"])


def test_what_is_carried_beside_the_channels_is_found_by_giving_it_to_another_episode():
    """A machine that keeps a state of its own by the rows of its batch, and is told when a run begins."""

    def step(m, carried, fed):
        _, truth = read_round(fed)
        fresh = carried["h"].abs().sum(1, keepdim=True) == 0
        m.hidden = truth if fresh.all() else m.hidden
        scores = read_out(m, carried["h"], fed) + 5 * m.hidden[: len(truth)]
        h = next_state(m, carried["h"], fed)
        return scores * torch.tensor([1.0, 0.0]), {"h": h + 1e-3}

    only = ["channels_are_all_that_passes"]
    refuses(
        "the channels are not all that passes between rounds",
        interp.check_machine,
        cell(step),
        only=only,
    )


def test_hostile_arguments_are_refused():
    machine = gru()
    refuses("check of a machine", interp.check_machine, machine, only=["steps_are_pur"])
    refuses(r"submodule.*'cell.rest'", cell, check=True, points={"gate": "cell.rest"})
    refuses("an identifier but 'latent'", cell, check=True, points={"latent": "cell"})
    adapt = partial(interp.adapt, RoundCell(nn.GRUCell(N_EXPERTS + 1, 16)), "experts", step=_good)
    refuses("at least one Channel", adapt, channels=[])
    refuses("names of their own, got h, h", adapt, channels=[interp.Channel("h", (16,))] * 2)
    for name, shape in (
        ("h", ()),
        ("h", (0,)),
        ("h", (2.5,)),
        ("h", (3, 0)),
        ("h", 3),
        ("h t", (3,)),
        (None, (3,)),
    ):
        refuses(
            "an identifier and sizes from 1 on|each is an integer|a text",
            interp.Channel,
            name,
            shape,
        )
    refuses(r"such as \(1,\) for one number, got 'h' of shape \(\)", interp.Channel, "h", ())
    refuses("has no exact state readout", machine.read_state, machine.initial(2))


def test_nothing_is_left_on_a_module_and_no_weight_is_copied():
    module = RoundCell(nn.GRUCell(N_EXPERTS + 1, 16))
    before = module.state_dict()
    copies = {name: tensor.clone() for name, tensor in before.items()}
    addresses = {name: tensor.data_ptr() for name, tensor in before.items()}
    machine = adapted(module, _good, points={"reset": "cell.reset", "cell": "cell"})
    interp.rollout(machine, experts.sample(3, 4, N_EXPERTS), names_filter="points.reset")
    after = module.state_dict()
    for name in before:
        assert after[name].data_ptr() == addresses[name]
        assert torch.equal(after[name], copies[name])
    assert "forward" not in vars(module.cell)
    assert not module.cell._forward_hooks
    assert not module.cell._forward_pre_hooks


def test_packing_is_undone_by_unpacking_whatever_the_shapes():
    channels = [
        interp.Channel("h", (5,)),
        interp.Channel("cache", (3, 2, 4), grows=1),
        interp.Channel("c", (2,)),
    ]
    tree = {channel.name: torch.randn(7, *channel.shape) for channel in channels}
    packed = pack(channels, tree)
    assert packed.shape == (7, 8, 5)
    again = unpack(channels, packed.unflatten(0, (7, 1)))
    for name, value in tree.items():
        assert torch.equal(again[name][:, 0], value)
    h, cache, c = (list(channel.labels) for channel in channels)
    assert h == ["h"]
    assert cache == [f"cache_{i}" for i in range(1, 7)]
    assert c == ["c"]


def test_a_gate_can_be_set_by_a_hook():
    """With the update gate at 1 a GRU keeps its state, whatever it is told."""
    machine, episodes = gru(), experts.sample(3, 5, N_EXPERTS, seed=0)
    keep_all = ("points.update", lambda z, hook: torch.ones_like(z))
    run = interp.rollout(machine, episodes, fwd_hooks=[keep_all])
    assert torch.equal(run.latents, torch.zeros_like(run.latents))
    without_hook = interp.rollout(machine, episodes)
    assert without_hook.latents.abs().max() > 0.01


def test_fresh_copies_are_drawn_as_their_class_draws_and_leave_the_machine_alone():
    machine = gru()
    before = machine.digest()
    blank = machine.untrained(5)
    assert machine.digest() == before
    assert blank.digest() != before
    assert blank.digest() == machine.untrained(5).digest()
    assert blank.name == "gru-untrained"

    class Bare(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = RoundCell(nn.GRUCell(N_EXPERTS + 1, 16))
            self.cell, self.read = self.inner.cell, self.inner.read
            self.bias = nn.Parameter(torch.zeros(1))

    refuses(
        "nothing says how to draw bias of 'Bare' anew", adapted(Bare(), _good, name="").untrained, 0
    )


def test_a_machine_in_another_dtype_is_one():
    machine = gru().double()
    interp.check_machine(machine)
    run = interp.rollout(machine, experts.sample(2, 4, N_EXPERTS))
    assert run.latents.dtype == run.predictions.dtype == torch.float64
    assert run.settings["dtype"] == "float64"


def test_rounds_may_hold_more_than_tokens():
    """A tree of tensors, which is cut, stacked and laid in rows as a whole."""
    machine = gru()
    fed = machine.layout.encode(experts.sample(2, 3, N_EXPERTS))
    same = fed.map_tensors(lambda part: part)
    pairs = zip(fed.tensors().values(), same.tensors().values(), strict=True)
    assert all(torch.equal(*pair) for pair in pairs)
    tokens_of_rounds = [fed.take_round(t).tokens for t in range(3)]
    assert torch.equal(torch.stack(tokens_of_rounds, 1), fed.tokens)
    rows = fed.tokens[:, [2, 0]].flatten(0, 1)
    assert torch.equal(fed.rows([2, 0]).tokens, rows)
    assert replace(fed, tokens=fed.tokens + 1).slots is fed.slots


def test_a_cache_grows_by_a_row_a_round_and_holds_what_each_wrote():
    machine, episodes = cached(), experts.sample(3, 6, N_EXPERTS, seed=0)
    run = interp.rollout(machine, episodes)
    labels = []
    for channel in machine.channels:
        labels += channel.labels
    assert labels[-2:] == ["cache_6", "cache_length"]
    length = run.latents[:, :, -1, 0]
    assert length.tolist() == [[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]] * 3
    inputs = torch.cat(read_round(run.fed.take_round(2)), 1)
    written = machine.module.write(inputs).detach()
    assert_close(run.latents[:, 6, 2], written)
    assert torch.equal(run.latents[:, 2, 2:6], torch.zeros(3, 4, 8))  # rows of rounds to come
    halves = interp.replay(machine, run, rounds=[4, 1])
    assert_close(halves[0], run.predictions[:, [4, 1]])


def test_a_cache_that_is_full_or_is_written_wrongly_is_told():
    full = "room for 6 rows and a round writes 1: no round fits after 6"
    refuses(full, interp.rollout, cached(), experts.sample(2, 7, N_EXPERTS))
    machine, episodes = cached(), experts.sample(2, 3, N_EXPERTS)

    def write_the_whole_cache(m, carried, fed):
        nothing_read = torch.zeros(len(fed.tokens), 12)
        return m.read(nothing_read), {"cache": carried["cache"]}

    machine.one_step = write_the_whole_cache
    refuses(
        r"writes \[batch, \*\(1, 8\)\] into the channel 'cache', got",
        interp.rollout,
        machine,
        episodes,
    )
    refuses("cannot grow by 7", interp.Channel, "cache", (6, 8), grows=7)


def test_logits_that_are_probabilities_are_refused_and_probabilities_and_log_probabilities_pass():
    """A softmax of probabilities would pass for a prediction: .95 becomes .71."""

    def step(m, carried, fed):
        scores, after = _good(m, carried, fed)
        return scores.softmax(-1), after

    def step_in_logs(m, carried, fed):
        scores, after = _good(m, carried, fed)
        return scores.log_softmax(-1), after

    only = ["predictions_are_probabilities"]
    refuses(
        "as probabilities do.*output='probability'", interp.check_machine, cell(step), only=only
    )
    interp.check_machine(cell(step, output="probability"), only=only)
    interp.check_machine(cell(step_in_logs), only=only)


def test_a_point_of_a_compiled_module_and_the_wrong_order_of_arguments_are_answered():
    compiled = torch.compile(RoundCell(nn.GRUCell(N_EXPERTS + 1, 16)), backend="eager")
    why = "unknown submodule 'cell'.*adapt the module as before torch.compile"
    refuses(why, adapted, compiled, _good, {"cell": "cell"})
    machine = cell()
    carried, fed = interp.rollout(machine, experts.sample(2, 3, N_EXPERTS)).rows([1])
    assert machine(carried, fed).prediction.shape == (2,)
    refuses(r"is called with \(carried, fed\).*got EncodedRounds first", machine, fed, carried)


def test_the_steps_of_a_sequence_are_an_axis_of_a_point():
    points = {"read": interp.Point("read", axes="pos")}
    interp.check_machine(cell(_reads_a_sequence, points=points), only=["points_fire_once"])


def test_a_batch_that_matters_only_in_rare_states_is_found():
    """A branch on the largest number in the batch, which an episode alone takes in few rounds."""

    def step(m, carried, fed):
        scores, after = _good(m, carried, fed)
        return scores, {"h": after["h"] * (0.5 if after["h"].max() > 0.45 else 1.0)}

    machine = cell(step)
    refuses("runs round .* alone", interp.check_machine, machine, only=["rows_do_not_touch"])


def test_only_the_checks_that_are_asked_for_run():
    """A digest of some weights is seen by the dear check alone."""
    machine = cell()
    _digest_of_some_weights(machine)
    interp.check_machine(machine, cheap=True)
    interp.check_machine(machine, only=["steps_are_pure", "starts_are_repeatable"])
    interp.check_machine(machine, experts.sample(2, 2, N_EXPERTS), only=["rows_do_not_touch"])
    dear = "digest_moves_with_every_weight"
    refuses(dear, interp.check_machine, machine, only=[dear], cheap=True)
    for n_episodes, n_rounds in ((1, 2), (2, 1)):
        episodes = experts.sample(n_episodes, n_rounds, N_EXPERTS)
        refuses("at least 2 episodes of at least 2 rounds", interp.check_machine, machine, episodes)
