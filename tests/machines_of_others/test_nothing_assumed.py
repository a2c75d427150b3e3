"""Nothing is assumed of a module: what would give another number without a word is refused, or makes no difference."""

import copy
import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close
from transformers import (
    MambaConfig,
    MambaModel,
)
from transformers.modeling_outputs import BaseModelOutput

import interp
import probes
from circuits.benchmark.material import Workload
from circuits.compare.question import Budget
from interp.interventions import patching
from interp.machines.learners import learner
from interp.machines.sequences import Embedded, state_space
from interp.support.session import session
from interp.tasks import experts
from tests.machines import N_EXPERTS, RoundCell, read_round
from tests.machines_of_others.kinds import LAYOUT, coconut, drawn, hrm
from tests.refusals import refused, refuses

EPISODES = experts.sample(6, 10, N_EXPERTS, seed=0)


def body(*layers):
    """A cell whose readout is ``layers`` between two linear ones."""
    module = drawn(lambda: RoundCell(nn.GRUCell(N_EXPERTS + 1, 16)))

    def make_readout():
        first, last = nn.Linear(20, 16), nn.Linear(16, 2)
        return nn.Sequential(first, *layers, last)

    module.read = drawn(make_readout)
    return module


def step(m, carried, fed, scale=1.0):
    advice, truth = read_round(fed)
    after = m.cell(torch.cat([advice, truth], 1), carried["h"])
    scores = m.read(torch.cat([carried["h"], advice], 1))
    return scale * scores, {"h": after}


def adapted(module=None, step=step, channels=(("h", (16,)),), **options):
    channels = [interp.Channel(*channel) for channel in channels]
    return interp.adapt(
        module or body(), LAYOUT, step=step, channels=channels, **{"name": "mine", **options}
    )


unchecked = functools.partial(adapted, check=False)


def predicted(machine):
    return interp.rollout(machine, EPISODES).predictions


# The untrained control.


class _Partly(nn.Linear):
    def reset_parameters(self):
        nn.init.normal_(self.weight[:8])


class _Table(nn.Module):
    def __init__(self, drawn):
        super().__init__()
        self.register_buffer("table", torch.ones(16))
        self.drawn = drawn

    def reset_parameters(self):
        self.table[: self.drawn].normal_()

    def forward(self, x):
        return x * self.table


@pytest.mark.parametrize(
    ("layer", "left"),
    [
        (lambda: _Partly(16, 16), "read.1.weight"),
        (lambda: _Table(3), "read.1.table"),
        (lambda: nn.BatchNorm1d(16), ""),
    ],
)
def test_what_is_not_drawn_is_named_and_what_training_moved_is_not_kept(layer, left):
    module = body(layer())
    for weight in module.parameters():  # what is not drawn is what was in memory: NaN on some days
        nn.init.ones_(weight)
    for buffer in module.read[1].buffers():
        buffer.add_(3)
    machine = unchecked(module)
    if left:
        refuses(f"nothing says how to draw .*{left}.* of 'mine' anew", machine.untrained, 0)
    else:
        norm = machine.untrained(0).module.read[1]
        assert norm.running_mean.abs().max() == 0
    for tensor in module.state_dict().values():
        assert not tensor.isnan().any()


def test_a_constant_stays_and_a_parametrized_transformer_is_refused():
    untrained = unchecked(body(_Table(0))).untrained(0)
    assert untrained.module.read[1].table.min() == 1
    wired = interp.load("wma-handwired", n_experts=2)
    nn.utils.parametrizations.weight_norm(wired.blocks[0].attn, "W_O")
    refuses(r"draw .*W_O\.original0", wired.untrained, 0)


def test_a_drawing_that_raises_or_draws_nothing_is_told():
    trained = body()

    def take_trained(m):
        m.read = trained.read
        m.cell.reset_parameters()

    for reset, sentence in (
        (lambda m: 1 / 0, "reset= raised ZeroDivisionError"),
        (lambda m: m.cell, "draw cell.weight"),
        (take_trained, "takes the trained weights"),
    ):
        refuses(sentence, unchecked(trained, reset=reset).untrained, 0)

    def read_state(m, carried, fed):
        return carried["h"][:, :2], carried

    empty = unchecked(nn.Module(), read_state)
    refuses("nothing says how to draw anything", empty.untrained, 0)


def test_weights_that_no_module_holds_are_told_before_they_are_in_a_control():
    """Of another module, in a list, by a bound argument, as a plain attribute; a kept activation is none of these."""
    module, linear, lean = body(), nn.Linear(16, 2), drawn(lambda: torch.randn(16, 2))
    module.bag, module.table = [nn.Linear(16, 2)], lean
    module.last = lean @ torch.ones(2, 2)

    def add_other_module(m, carried, fed):
        scores, after = step(m, carried, fed)
        return scores + linear(carried["h"]), after

    def add_from_list(m, carried, fed):
        scores, after = step(m, carried, fed)
        return scores + m.bag[0](carried["h"]), after

    def add_from_attribute(m, carried, fed):
        scores, after = step(m, carried, fed)
        return scores + carried["h"] @ m.table, after

    message = "rounds of 'mine' read weights of shape .* that none of its modules holds"
    for reads_beside in (add_other_module, add_from_list, add_from_attribute):
        refuses(message, unchecked(module, reads_beside).untrained, 0)
    weights_as_start = unchecked(initial=lambda m: {"h": nn.Parameter(torch.ones(16))})
    refuses("read weights of shape", weights_as_start.untrained, 0)
    machine = unchecked(module)
    assert machine.untrained(0).digest() != machine.digest()
    module.lean = nn.Parameter(torch.randn(4, dtype=torch.cfloat))
    refuses("keeps lean as no dense tensors of real numbers", adapted, module)


def test_a_number_that_a_module_keeps_is_in_its_digest():
    module = body()
    module.scale = 1.0
    machine = unchecked(module, lambda m, c, f: step(m, c, f, m.scale))
    before, module.scale = machine.digest(), 3.0
    assert machine.digest() != before


def test_tensors_with_a_past_are_copied_wherever_a_module_keeps_them():
    machine = unchecked()
    output = machine.module.read(torch.ones(1, 20))
    machine.module.bag, machine.module.table = [None, (output,)], {"last": {"scores": output}}
    again = copy.deepcopy(machine)
    assert again.module.bag[1][0].grad_fn is None
    assert torch.equal(again.module.table["last"]["scores"], output)
    untrained, untrained_again = machine.untrained(0), machine.untrained(0)
    assert untrained.digest() == untrained_again.digest()


# Relatives of what an adapter knows.


class _Reader(nn.Module):
    def __init__(self, core):
        super().__init__()
        self.core, self.read = core, nn.Linear(8, 2)


SIZES = {
    "vocab_size": len(LAYOUT.vocabulary),
    "hidden_size": 8,
    "state_size": 4,
    "num_hidden_layers": 2,
}


class _Scaled(MambaModel):
    def forward(self, **given):
        done = super().forward(**given)
        done.last_hidden_state = 1.01 * done.last_hidden_state
        return done


def test_a_relative_whose_state_cannot_be_put_in_is_refused():
    rounds = Embedded.tokens(LAYOUT, "core.embeddings")
    module = drawn(lambda: _Reader(_Scaled(MambaConfig(**SIZES))))
    ends = {"embedded": rounds, "read": lambda m, y, fed: m.read(y)}
    refuses("_Scaled takes none of cache, cache_params", state_space, module, LAYOUT, **ends)


def mamba():
    return drawn(lambda: learner("mamba", LAYOUT, width=6))


@pytest.mark.parametrize("make", [hrm, coconut, mamba])
def test_other_adapters_hold_themselves_against_the_library_as_well(make, monkeypatch):
    from interp.machines import sequences

    name = {hrm: "_run_cycles", coconut: "_run_gpt2", mamba: "_run_mixer"}[make]
    true = getattr(sequences, name)

    def slightly_off(*arguments, **options):
        return tuple(1.001 * part for part in true(*arguments, **options))

    monkeypatch.setattr(sequences, name, slightly_off)
    refuses("gives other numbers than this adapter's form of it", make)


# Mode, precision, inference mode.


@pytest.mark.filterwarnings("ignore:clean and corrupted are no pair")
@pytest.mark.parametrize("layer", [lambda: nn.Dropout(0.5), lambda: nn.BatchNorm1d(16)])
def test_rounds_run_in_evaluation_mode_and_a_module_stays_in_its_own(layer):
    module = body(layer()).train()
    module.read[0].eval()
    machine = adapted(module)
    flags = [part.training for part in module.modules()]
    in_training, in_evaluation = predicted(machine), predicted(machine.eval())
    patching.sweep(
        machine, EPISODES, experts.sample(6, 10, N_EXPERTS, seed=1), round=3, sites=("latent",)
    )
    assert torch.equal(in_training, in_evaluation)
    assert [part.training for part in module.modules()] == flags
    assert machine.train().module.read[0].training


def test_a_session_does_not_take_a_run_in_training_mode_for_one_in_evaluation_mode():
    machine = adapted(body(nn.Dropout(0.5)))
    alone = predicted(machine.eval())
    with session():
        in_training = predicted(machine.train())
        assert torch.equal(predicted(machine.eval()), alone)
    assert not torch.equal(in_training, alone)


@pytest.mark.filterwarnings("ignore:clean and corrupted are no pair")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_every_precision_gives_numbers(dtype):
    """Numbers that a step makes of tokens are of the machine's dtype."""
    machine = unchecked().to(dtype)
    effects = patching.sweep(
        machine, EPISODES, experts.sample(6, 10, N_EXPERTS, seed=1), round=3, sites=("latent",)
    )
    assert np.isfinite(effects.to_frame()["effect"]).all()
    assert predicted(machine).dtype == dtype
    scores = probes.sweep(machine, EPISODES, ["label"], n_untrained=0).to_frame()
    assert np.isfinite(scores["number"]).all()


def test_the_first_input_of_a_cell_may_be_of_any_precision_and_a_step_may_not_insist_on_one():
    def encode(m, fed):
        return torch.cat(read_round(fed), 1)

    def make_ones(m):
        return torch.ones(1, N_EXPERTS + 1)

    reads_ones_first = interp.machines.cell(
        body(),
        LAYOUT,
        core="cell",
        encode=encode,
        read=lambda m, h, f: h[:, :2],
        first_input=make_ones,
    )
    interp.check_machine(reads_ones_first, only=["it_runs_in_every_precision"])
    insists_on_float32 = unchecked(step=lambda m, c, f: step(m, {"h": c["h"].float()}, f))
    refuses(
        r"it_runs_in_every_precision: .*\.to\(fed\.values\)",
        interp.check_machine,
        insists_on_float32,
    )


@pytest.mark.parametrize("mode", [torch.inference_mode, lambda: torch.autocast("cpu")])
def test_loading_checks_and_runs_are_the_same_in_inference_mode_and_under_autocast(mode):
    plain, module = interp.load("wma-gru").digest(), body()
    run = predicted(adapted(module))
    with mode():
        machine = interp.load("wma-gru")
        assert torch.equal(predicted(adapted(module)), run)
        assert machine.digest() == plain
        interp.check_machine(adapted())
        interp.check_machine(machine, only=["predictions_are_probabilities", "steps_are_pure"])


# Points within structures.


class _Pair(NamedTuple):
    advice: torch.Tensor
    hidden: Any


@dataclass(frozen=True)
class _Record:
    advice: torch.Tensor
    hidden: Any


def in_a_tuple(advice, made):
    return advice, (made, made + 1)


def in_a_list(advice, made):
    return [advice, {"made": made}]


def in_a_named_tuple(advice, made):
    return _Pair(advice, (made, made))


def in_a_dict(advice, made):
    return {"advice": advice, "made": made}


def in_a_model_output(advice, made):
    return BaseModelOutput(advice, hidden_states=(made,))


KEPT = {
    "tuple": (in_a_tuple, (1, 0)),
    "list": (in_a_list, (1, "made")),
    "namedtuple": (in_a_named_tuple, ("hidden", 1)),
    "dataclass": (_Record, "hidden"),
    "dict": (in_a_dict, "made"),
    "ModelOutput": (in_a_model_output, ("hidden_states", 0)),
}
"""What a module gives, and where in it the tensor is."""


class _Keeps(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind, self.linear = kind, nn.Linear(16, 16)

    def forward(self, *, advice, state):
        return KEPT[self.kind][0](advice, self.linear(state))


@pytest.mark.parametrize("kind", KEPT)
def test_a_point_lies_within_a_structure_whose_kind_stays(kind):
    make, item = KEPT[kind]
    module = body()
    module.keeps = drawn(lambda: _Keeps(kind))
    point = interp.Point("keeps", item=item)

    def kept(m, carried, fed):
        kept_values = m.keeps(advice=read_round(fed)[0], state=carried["h"])
        assert type(kept_values) is type(make(None, torch.zeros(1)))
        for key in point.path:
            kept_values = (
                kept_values[key]
                if isinstance(key, int) or isinstance(kept_values, dict)
                else getattr(kept_values, key)
            )
        return step(m, {"h": kept_values}, fed)

    points = {"given": interp.Point("keeps", of="input", item="state"), "made": point}
    machine = adapted(module, kept, points=points)
    run = interp.rollout(machine, EPISODES, names_filter=["points.given", "points.made"])
    assert torch.equal(run.cache["points.given"], run.latents[:, :-1, 0])
    again = module.keeps.linear(run.cache["points.given"])
    assert_close(run.cache["points.made"], again.detach())
    for name in ("points.given", "points.made"):
        add_one = (name, lambda x, hook: x + 1)
        shifted = interp.rollout(machine, EPISODES, fwd_hooks=[add_one])
        assert (shifted.predictions - run.predictions).abs().max() > 1e-3
    nothing = {"made": interp.Point("keeps", item="nothing")}
    refuses("names nothing: there is", adapted, module, kept, points=nothing)
    first_item = {"made": interp.Point("keeps", item=0)}
    assert machine.digest() != unchecked(module, kept, points=first_item).digest()


@pytest.mark.long
def test_a_machine_is_held_against_the_models_own_forward_pass():
    machine = unchecked()

    def own(fed, late=0):
        carried = {"h": torch.zeros(len(fed.tokens), 16)}
        scores = []
        for t in range(fed.tokens.shape[1]):
            heard = t - late if t > 3 else t
            scores_of_round, carried = step(machine.module, carried, fed.take_round(heard))
            scores.append(scores_of_round)
        return torch.stack(scores, 1)

    interp.check_machine(machine, reference=own)
    is_late = functools.partial(own, late=1)
    refuses(
        "apart from those of reference=, from round 4 on",
        interp.check_machine,
        machine,
        reference=is_late,
    )
    refuses(
        r"= \(4, 50, 2\), got a Tensor of shape \(4, 49, 2\)",
        interp.check_machine,
        machine,
        reference=lambda fed: own(fed)[:, 1:],
    )
    refuses(
        "up to inf apart",
        interp.check_machine,
        machine,
        reference=lambda fed: own(fed) * torch.nan,
    )


def test_a_reference_runs_in_evaluation_mode_as_rounds_do():
    """A module in training mode with dropout is not random there; afterwards it is in training mode again."""
    module = nn.ModuleDict({"drop": nn.Dropout(0.5), "read": nn.Linear(16, 2)}).train()

    def read_ones(m, fed):
        return m["read"](m["drop"](torch.ones(len(fed.tokens), 16)))

    def constant(m, carried, fed):
        return read_ones(m, fed), carried

    machine = unchecked(module, constant)

    def own(fed):
        n_rounds = fed.tokens.shape[1]
        return read_ones(module, fed).unsqueeze(1).expand(-1, n_rounds, -1)

    only = ["predictions_are_those_of_the_reference"]
    assert interp.check_machine(machine, reference=own, only=only) == "1 check passed"
    assert module["drop"].training


# What a digest holds.


def test_a_digest_holds_what_a_machine_does():
    module = body()
    factors = {
        scale: unchecked(module, functools.partial(step, scale=scale)).digest()
        for scale in (1.0, 1.02, 2.0)
    }
    assert len(set(factors.values())) == 3
    assert unchecked(module, functools.partial(step, scale=2.0)).digest() == factors[2.0]
    module.register_buffer("scale", torch.ones(1), persistent=False)
    machine = unchecked(module, lambda m, c, f: step(m, c, f, m.scale))
    before = machine.digest()
    module.scale.add_(1e-6)
    assert machine.digest() != before
    scales, module = [1.0], body()
    module.plain, module.cell.name = torch.ones(1), "its own"

    def scaled_step(m, carried, fed):
        return step(m, carried, fed, scales[0] * m.plain)

    machine = unchecked(module, scaled_step)
    digests = [machine.digest()]
    scales[0] *= 2
    digests.append(machine.digest())
    module.plain.mul_(3)
    digests.append(machine.digest())
    assert len(set(digests)) == 3
    raises = ("hook_latents", lambda x, hook: 1 / 0)
    with machine.hooks(fwd_hooks=[raises]):
        assert machine.digest() == digests[2]
        assert machine.train().digest() == digests[2]
    assert (module.cell.name, hasattr(module.read, "name")) == ("its own", False)


def test_a_digest_looks_at_round_5():
    def add_late(offset):
        def then(scores, h, fed, late):
            return scores + offset * late * torch.arange(2), h

        return then

    unchanged = unchecked(body(), **_counting(add_late(0)))
    changed = unchecked(body(), **_counting(add_late(1)))
    assert unchanged.digest() != changed.digest()


def test_a_name_with_control_characters_is_printed_without_them():
    machine = unchecked(body(), name="\x1b[31m")
    assert "\x1b" not in repr(machine)
    assert "\x1b" not in repr(interp.rollout(machine, EPISODES))


# What is not a number, no probability, or not what was asked for.


def _counting(then):
    """A cell that counts its rounds, and does something else from round 5 on."""

    def counts(m, carried, fed):
        scores, after = step(m, {"h": carried["h"]}, fed)
        late = carried["n"] >= 5
        scores, h = then(scores, after["h"], fed, late)
        return scores, {"h": h, "n": carried["n"] + 1}

    return {"step": counts, "channels": [("h", (16,)), ("n", (1,))]}


def _no_state(scores, h, fed, late):
    is_third = late & (torch.arange(len(h)) == 2).unsqueeze(1)
    return scores, torch.where(is_third, torch.nan, h)


def _no_prediction(scores, h, fed, late):
    return torch.where(late, torch.inf, scores), h


def _truth(scores, h, fed, late):
    truth = read_round(fed)[1]
    certain = 5 * torch.cat([-truth, truth], 1)
    return torch.where(late, certain, scores), h


@pytest.mark.parametrize(
    ("then", "where"),
    [
        (_no_state, "'mine' (predicts|carries) .* from round [56] on, in episode 2 .in 1 of 6"),
        (_no_prediction, "5 on"),
    ],
)
@pytest.mark.parametrize("analysis", ["rollout", "sweep"])
def test_what_is_not_a_number_is_told_by_round_and_episode(then, where, analysis):
    machine = unchecked(**_counting(then))
    with pytest.raises(interp.InputError, match=f"not a number.*{where}|{where}"):
        if analysis == "rollout":
            interp.rollout(machine, EPISODES)
        else:
            patching.sweep(
                machine,
                EPISODES,
                experts.sample(6, 10, N_EXPERTS, seed=1),
                round=7,
                sites=("latent",),
            )


test_faults_of_late_rounds_are_found = refused(
    (_no_state, "not a number"),
    (_truth, "round 5 changes with 'y'"),
    by=lambda then: adapted(**_counting(then)),
)


@pytest.mark.parametrize("share", [(0.5, 0.65), (-0.1, 1.1)])
def test_probabilities_add_up_to_one(share):

    def answer_share(m, carried, fed):
        n_episodes = len(carried["h"])
        return torch.tensor(share).expand(n_episodes, 2), carried

    machine = unchecked(step=answer_share, output="probability")
    refuses(
        rf"no probabilities.* the least is {min(share):.4g} and a sum is",
        interp.rollout,
        machine,
        EPISODES,
    )


def _seeds(m, c, f):
    torch.manual_seed(0)
    return step(m, c, f)


def _writes_what_is_there(m, c, f):
    f.values.zero_()
    return step(m, c, f)


def _counts_in_a_buffer(m, c, f):
    m.read[1].table[0] += 1
    return step(m, c, f)


def _with_scores(change):
    """A step whose scores are changed."""

    def wrong(m, c, f):
        scores, after = step(m, c, f)
        return change(scores), after

    return wrong


def _three_outcomes(m, c, f):
    return torch.ones(len(c["h"]), 3), c


def _swapped(m, c, f):
    scores, after = step(m, c, f)
    return after, scores


def _array(m, c, f):
    scores, _ = step(m, c, f)
    return scores, {"h": c["h"].numpy()}


def _complex_start(m):
    return {"h": torch.ones(16) * 1j}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        pytest.param({"step": _seeds}, "changes the global generator", id="seeds torch"),
        pytest.param(
            {"step": _writes_what_is_there},
            "writes into what it was given",
            id="writes what is there",
        ),
        pytest.param(
            {"step": _counts_in_a_buffer, "module": body(_Table(0))},
            "the same round|read.1.table",
            id="counts in a buffer",
        ),
        pytest.param({"step": _three_outcomes}, r"each of q0, q1, got \[4, 3", id="three outcomes"),
        pytest.param(
            {"step": _with_scores(torch.squeeze)}, r"rows_do_not.* got \[2\]", id="squeezed"
        ),
        pytest.param(
            {"step": _with_scores(torch.Tensor.long)},
            "each of q0, q1, got .* torch.int64",
            id="scores that are no real numbers",
        ),
        pytest.param(
            {"step": lambda m, c, f: (1, 2, 3)},
            r"returns \(scores, carried\).* got 1, 2, 3",
            id="three things",
        ),
        pytest.param(
            {"step": lambda m, c, f: None},
            r"returns \(scores, carried\).* got None",
            id="nothing",
        ),
        pytest.param({"step": _swapped}, r"returns \(scores, carried\)", id="a swapped pair"),
        pytest.param({"step": _array}, "got an ndarray of shape", id="an array"),
        pytest.param({"initial": _complex_start}, "a tensor of real numbers", id="a complex start"),
        pytest.param(
            {"sizes": {"n_experts": 8}}, "a layout has its sizes", id="sizes beside a layout"
        ),
        pytest.param({"points": ["cell"]}, "points= names what to look at", id="a list of points"),
        pytest.param(
            {"points": {"read": interp.Point("read", item=1)}},
            "item=1. names nothing: there is 0$",
            id="an item of one tensor",
        ),
        pytest.param(
            {"points": {"c": interp.Point("cell", axes="pos", labels=("a",))}, "step": step},
            r"axes \[batch, pos, vector\]",
            id="labels of other places",
        ),
        pytest.param(
            {"channels": [("h", (16,)), ("c", (50, 16), 1), ("c_length", (1,))]},
            "of their own, got h, c, c_length, c",
            id="a channel named as the length of another",
        ),
        pytest.param(
            {"points": {3: "cell"}},
            "an identifier but 'latent', got 3",
            id="a point without a name",
        ),
        pytest.param({"module": body().to("meta")}, "where no numbers are", id="the device meta"),
        pytest.param({"channels": [("h", (10**12,))]}, "would take about", id="a huge channel"),
    ],
)
def test_what_was_taken_in_silence_or_raised_raw_is_told(options, sentence):
    refuses(sentence, adapted, **options)


of_cell = functools.partial(
    interp.machines.cell, body(), task=LAYOUT, core="cell", encode=len, read=len
)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"of": "out"}, "of must be 'output' or 'input'"),
        ({"times": True}, "times"),
        ({"times": 1.5}, "times"),
        ({"times": 10**6}, "times"),
        ({"labels": "ab"}, "labels must be a list"),
        ({"labels": ("a", "b")}, "name the places along an axis"),
        ({"item": (0, -1)}, "item of a Point must be an integer >= 0, got -1"),
    ],
)
def test_arguments_of_points_that_were_ignored_are_refused(options, sentence):
    refuses(sentence, interp.Point, "cell", **options)


@pytest.mark.parametrize("growing", [1.5, True, 9])
def test_an_axis_that_does_not_grow_is_refused(growing):
    refuses("grow", interp.Channel, "h", (8, 2), growing)


def test_a_shape_on_the_device_meta_is_refused():
    shape = torch.ones(2, device="meta").long()
    refuses("shape must be a list of which each is an int", interp.Channel, "h", shape)


@pytest.mark.parametrize(
    ("read", "sentence"),
    [
        (lambda tree: tree, "read= .* a tensor, got"),
        (lambda tree: 1 / 0, "read= raised ZeroDivision"),
    ],
    ids=["a tree", "an error"],
)
def test_readers_that_read_nothing_are_refused(read, sentence):
    refuses(sentence, unchecked(read=read).read_state, torch.zeros(2, 1, 16))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"task": "experts", "sizes": {"n_states": 4}}, "n_st"),
        ({"channels": ()}, "option of an adapter, beside its own 'channels'"),
        ({"name": 3}, "name must be a text, got 3"),
        (
            {"encode": lambda m, f: f.values.numpy(), "update": "before"},
            r"'cell' takes inputs of shape \[batch, 5\], which encode= and first_input= must return; got an ndarray",
        ),
    ],
    ids=["sizes", "channels", "name", "encode"],
)
def test_arguments_of_adapters_that_were_ignored_are_refused(options, sentence):
    refuses(sentence, of_cell, **options)


def test_arguments_of_models_that_were_ignored_are_refused():
    refuses("log_gamma must be a finite number", interp.load, "wma-handwired", log_gamma="a")
    refuses("the model has a name of more than 255 bytes", interp.load, "x" * 3000)
    model = interp.load("qlearning-handwired")
    refuses("acts in worlds", interp.play, model, EPISODES, 3, 0)


@pytest.mark.parametrize("battery", [0, -1, 10**7])
def test_a_battery_without_a_use_is_refused(battery):
    refuses("battery", Budget, battery=battery)


def test_a_negative_number_of_fits_is_refused():
    refuses("fits must be an integer >= 1, got -1", Workload, fits=-1)


def test_modules_that_are_used_twice_have_two_names_and_steps_need_no_name():
    shared = nn.Linear(16, 16)
    module = body(shared, nn.ReLU(), shared)
    for name in ("read.1", "read.3"):
        machine = unchecked(module, points={"shared": interp.Point(name, times=2)})
        assert machine.points["shared"].n_layers == 2

    class Steps:
        def __call__(self, m, carried, fed):
            return step(m, carried, fed)

    unnamed, named = unchecked(body(), Steps()), unchecked(body())
    assert torch.equal(predicted(unnamed), predicted(named))


@pytest.mark.parametrize(
    ("hook", "sentence"),
    [(lambda x, hook: x.double(), "in torch.float64"), (lambda x: x, "must take")],
)
def test_a_hook_of_another_precision_or_signature_is_told(hook, sentence):
    machine = unchecked(points={"cell": "cell"})
    refuses(sentence, interp.rollout, machine, EPISODES, fwd_hooks=[("points.cell", hook)])
