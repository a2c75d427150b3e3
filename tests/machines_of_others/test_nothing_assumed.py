"""Nothing is assumed of a module: what would give another number without a word is refused, or makes no difference."""

import copy
import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from transformers import (
    FalconMambaConfig,
    FalconMambaModel,
    Mamba2Config,
    Mamba2Model,
    MambaConfig,
    MambaModel,
)
from transformers.modeling_outputs import BaseModelOutput

import interp
import probes
from circuits.benchmark.material import Workload
from circuits.compare.question import Budget
from interp.interventions import patching
from interp.machines.sequences import Embedded, state_space
from interp.tasks import experts
from tests.machines import N_EXPERTS, RoundCell, read_round
from tests.machines_of_others.kinds import LAYOUT, coconut, drawn, hrm
from tests.refusals import refused, refuses

EPISODES = experts.sample(6, 10, N_EXPERTS, seed=0)


def body(*layers):
    """A cell whose readout is ``layers`` between two linear ones."""
    module = drawn(lambda: RoundCell(nn.GRUCell(N_EXPERTS + 1, 16)))
    module.read = drawn(lambda: nn.Sequential(nn.Linear(20, 16), *layers, nn.Linear(16, 2)))
    return module


def step(m, carried, fed, scale=1.0):
    advice, truth = read_round(fed)
    after = m.cell(torch.cat([advice, truth], 1), carried["h"])
    return scale * m.read(torch.cat([carried["h"], advice], 1)), {"h": after}


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
        assert machine.untrained(0).module.read[1].running_mean.abs().max() == 0
    assert not any(part.isnan().any() for part in module.state_dict().values())


def test_a_constant_stays_and_a_parametrized_transformer_is_refused():
    assert unchecked(body(_Table(0))).untrained(0).module.read[1].table.min() == 1
    wired = interp.load("wma-handwired", n_experts=2)
    nn.utils.parametrizations.weight_norm(wired.blocks[0].attn, "W_O")
    refuses(r"draw .*W_O\.original0", wired.untrained, 0)


def test_a_drawing_that_raises_or_draws_nothing_is_told():
    trained = body()
    for reset, sentence in (
        (lambda m: 1 / 0, "reset= raised ZeroDivisionError"),
        (lambda m: m.cell, "draw cell.weight"),
        (
            lambda m: setattr(m, "read", trained.read) or m.cell.reset_parameters(),
            "takes the trained weights",
        ),
    ):
        refuses(sentence, unchecked(trained, reset=reset).untrained, 0)
    with pytest.raises(interp.InputError, match="nothing says how to draw anything"):
        unchecked(nn.Module(), lambda m, c, f: (c["h"][:, :2], c)).untrained(0)


def test_weights_that_no_module_holds_are_told_before_they_are_in_a_control():
    """Of another module, in a list, by a bound argument, as a plain attribute; a kept activation is none of these."""
    module, linear, lean = body(), nn.Linear(16, 2), drawn(lambda: torch.randn(16, 2))
    module.bag, module.table, module.last = [nn.Linear(16, 2)], lean, lean @ torch.ones(2, 2)
    for beside in (lambda m, h: linear(h), lambda m, h: m.bag[0](h), lambda m, h: h @ m.table):
        machine = unchecked(
            module, lambda m, c, f, on=beside: (step(m, c, f)[0] + on(m, c["h"]), step(m, c, f)[1])
        )
        refuses(
            "rounds of 'mine' read weights of shape .* that none of its modules holds",
            machine.untrained,
            0,
        )
    refuses(
        "read weights of shape",
        unchecked(initial=lambda m: {"h": nn.Parameter(torch.ones(16))}).untrained,
        0,
    )
    assert unchecked(module).untrained(0).digest() != unchecked(module).digest()
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
    assert machine.untrained(0).digest() == machine.untrained(0).digest()


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


@pytest.mark.parametrize(
    "core",
    [
        lambda: FalconMambaModel(FalconMambaConfig(**SIZES)),
        lambda: Mamba2Model(Mamba2Config(**SIZES, num_heads=2, head_dim=8, n_groups=1)),
    ],
    ids=["falcon", "second"],
)
def test_a_relative_that_computes_otherwise_runs_by_its_own_pass(core):
    rounds = Embedded.tokens(LAYOUT, "core.embeddings")
    module = drawn(lambda: _Reader(core())).eval()
    machine = state_space(module, LAYOUT, embedded=rounds, read=lambda m, y, fed: m.read(y))
    run = interp.rollout(machine, experts.sample(2, 2, 4, seed=0))
    tokens = run.tokens.flatten(1)
    with torch.no_grad():
        whole = module.core(tokens, use_cache=False).last_hidden_state
        expected = module.read(whole[:, rounds.at :: rounds.n_pos]).softmax(-1)[..., 1]
    torch.testing.assert_close(run.predictions, expected, rtol=1e-4, atol=1e-5)


def test_a_relative_whose_state_cannot_be_put_in_is_refused():
    rounds = Embedded.tokens(LAYOUT, "core.embeddings")
    module = drawn(lambda: _Reader(_Scaled(MambaConfig(**SIZES))))
    ends = {"embedded": rounds, "read": lambda m, y, fed: m.read(y)}
    refuses("_Scaled takes none of cache, cache_params", state_space, module, LAYOUT, **ends)


@pytest.mark.parametrize("make", [hrm, coconut])
def test_other_adapters_hold_themselves_against_the_library_as_well(make, monkeypatch):
    from interp.machines import sequences

    name = {hrm: "_refine", coconut: "_run_gpt2"}[make]
    true = getattr(sequences, name)
    monkeypatch.setattr(
        sequences, name, lambda *given: tuple(1.001 * part for part in true(*given))
    )
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


@pytest.mark.filterwarnings("ignore:clean and corrupted are no pair")
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_every_precision_gives_numbers(dtype):
    """Numbers that a step makes of tokens are of the machine's dtype; a step that insists on float32 is told so."""
    machine = unchecked().to(dtype)
    effects = patching.sweep(
        machine, EPISODES, experts.sample(6, 10, N_EXPERTS, seed=1), round=3, sites=("latent",)
    )
    assert np.isfinite(effects.to_frame()["effect"]).all()
    assert predicted(machine).dtype == dtype
    assert np.isfinite(
        probes.sweep(machine, EPISODES, ["label"], n_untrained=0).to_frame()["number"]
    ).all()
    # What a cell hears first is a number of a user's, too.
    readers = {"hear": lambda m, f: torch.cat(read_round(f), 1), "read": lambda m, h, f: h[:, :2]}
    first = interp.machines.cell(
        body(), LAYOUT, core="cell", first=lambda m: torch.ones(1, N_EXPERTS + 1), **readers
    )
    interp.check_machine(first, only=["it_runs_in_every_precision"])
    halves = unchecked(step=lambda m, c, f: step(m, {"h": c["h"].float()}, f))
    refuses(r"it_runs_in_every_precision: .*\.to\(fed\.values\)", interp.check_machine, halves)


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


def test_a_transposed_weight_is_one():
    module = body()
    module.read[0].weight = nn.Parameter(torch.randn(20, 16).T)
    interp.check_machine(adapted(module), only=["digest_moves_with_every_weight"])


# Points within structures.


class _Pair(NamedTuple):
    advice: torch.Tensor
    made: Any


@dataclass(frozen=True)
class _Record:
    advice: torch.Tensor
    made: Any


KEPT_IN_SEQUENCES = {
    "tuple": (lambda advice, made: (advice, (made, made + 1)), (1, 0)),
    "list": (lambda advice, made: [advice, {"made": made}], (1, "made")),
    "namedtuple": (lambda advice, made: _Pair(advice, (made, made)), ("made", 1)),
}
KEPT_BY_NAME = {
    "dataclass": (lambda advice, made: _Record(advice, made), "made"),
    "dict": (lambda advice, made: {"advice": advice, "made": made}, "made"),
    "ModelOutput": (
        lambda advice, made: BaseModelOutput(advice, hidden_states=(made,)),
        ("hidden_states", 0),
    ),
}
KEPT = {**KEPT_IN_SEQUENCES, **KEPT_BY_NAME}
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
    torch.testing.assert_close(run.cache["points.made"], again.detach())
    for name in ("points.given", "points.made"):
        shifted = interp.rollout(
            machine, EPISODES, fwd_hooks=[(name, lambda x, hook: x + 1)]
        ).predictions
        assert (shifted - run.predictions).abs().max() > 1e-3
    refuses(
        "names nothing: there is",
        adapted,
        module,
        kept,
        points={"made": interp.Point("keeps", item="nothing")},
    )
    assert (
        machine.digest()
        != unchecked(module, kept, points={"made": interp.Point("keeps", item=0)}).digest()
    )


def test_a_machine_is_held_against_the_models_own_forward_pass():
    machine = unchecked()

    def own(fed, late=0):
        carried = {"h": torch.zeros(len(fed.tokens), 16)}
        scores = []
        for t in range(fed.tokens.shape[1]):
            inputs, carried = step(machine.module, carried, fed.at(max(0, t - late * (t > 3))))
            scores.append(inputs)
        return torch.stack(scores, 1)

    interp.check_machine(machine, reference=own)
    for reference, sentence in (
        (lambda fed: own(fed, late=1), "apart from those of reference=, from round 4 on"),
        (lambda fed: own(fed)[:, 1:], r"= \(4, 50, 2\), got a Tensor of shape \(4, 49, 2\)"),
        (lambda fed: own(fed) * torch.nan, "up to inf apart"),
    ):
        refuses(sentence, interp.check_machine, machine, reference=reference)


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
    machine = unchecked(module, lambda m, c, f: step(m, c, f, scales[0] * m.plain))
    seen = [
        machine.digest(),
        scales.append(scales.pop() * 2),
        machine.digest(),
        module.plain.mul_(3),
        machine.digest(),
    ]
    assert len({seen[0], seen[2], seen[4]}) == 3
    with machine.hooks(fwd_hooks=[("hook_latents", lambda x, hook: 1 / 0)]):
        assert machine.digest() == seen[4]
        assert machine.train().digest() == seen[4]
    late = [
        lambda scores, h, fed, late, by=offset: (scores + by * late * torch.arange(2), h)
        for offset in (0, 1)
    ]
    assert (
        len({unchecked(body(), **_counting(then)).digest() for then in late}) == 2
    )  # round 5 is looked at
    assert "\x1b" not in repr(
        interp.rollout(odd := unchecked(body(), name="\x1b[31m"), EPISODES)
    ) + repr(odd)
    assert (module.cell.name, hasattr(module.read, "name")) == ("its own", False)


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
    return torch.where(late, 5 * torch.cat([-truth, truth], 1), scores), h


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
    machine = adapted(
        step=lambda m, c, f: (torch.tensor(share).expand(len(c["h"]), 2), c),
        output="probability",
        check=False,
    )
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


SILENT_EFFECTS = {
    "seeds torch": ({"step": _seeds}, "changes the global generator"),
    "writes what is there": ({"step": _writes_what_is_there}, "writes into what it was given"),
    "counts in a buffer": (
        {"step": _counts_in_a_buffer, "module": body(_Table(0))},
        "the same round|read.1.table",
    ),
}
OTHER_SCORES = {
    "three outcomes": (
        {"step": lambda m, c, f: (torch.ones(len(c["h"]), 3), c)},
        r"each of q0, q1, got \[4, 3",
    ),
}
SQUEEZED_SCORES = {
    "squeezed": (
        {"step": lambda m, c, f: (step(m, c, f)[0].squeeze(), step(m, c, f)[1])},
        r"rows_do_not.* got \[2\]",
    ),
}
NO_PAIR = {
    "three things": (
        {"step": lambda m, c, f: (1, 2, 3)},
        r"returns \(scores, carried\).* got 1, 2, 3",
    ),
    "nothing": ({"step": lambda m, c, f: None}, r"returns \(scores, carried\).* got None"),
    "a swapped pair": (
        {"step": lambda m, c, f: step(m, c, f)[::-1]},
        r"returns \(scores, carried\)",
    ),
}
NO_STATE = {
    "an array": (
        {"step": lambda m, c, f: (step(m, c, f)[0], {"h": c["h"].numpy()})},
        "got an ndarray of shape",
    ),
    "a complex start": (
        {"initial": lambda m: {"h": torch.ones(16) * 1j}},
        "a tensor of real numbers",
    ),
}
NO_POINTS = {
    "sizes beside a layout": ({"sizes": {"n_experts": 8}}, "a layout has its sizes"),
    "a list of points": ({"points": ["cell"]}, "points= names what to look at"),
    "an item of one tensor": (
        {"points": {"read": interp.Point("read", item=1)}},
        "item=1. names nothing: there is 0$",
    ),
    "labels of other places": (
        {"points": {"c": interp.Point("cell", axes="pos", labels=("a",))}, "step": step},
        r"axes \[batch, pos, vector\]",
    ),
    "a scripted point": ({"module": None, "points": {"read": "read"}}, "calls no hooks"),
}
NO_REAL_SCORES = {
    "scores that are no real numbers": (
        {"step": lambda m, c, f: (step(m, c, f)[0].long(), step(m, c, f)[1])},
        "each of q0, q1, got .* torch.int64",
    ),
}
NO_CHANNELS = {
    "a channel named as the length of another": (
        {"channels": [("h", (16,)), ("c", (50, 16), 1), ("c_length", (1,))]},
        "of their own, got h, c, c_length, c",
    ),
    "a point without a name": ({"points": {3: "cell"}}, "an identifier but 'latent', got 3"),
    "the device meta": ({"module": body().to("meta")}, "where no numbers are"),
    "a huge channel": ({"channels": [("h", (10**12,))]}, "would take about"),
}
TAKEN = {
    **SILENT_EFFECTS,
    **OTHER_SCORES,
    **SQUEEZED_SCORES,
    **NO_PAIR,
    **NO_STATE,
    **NO_POINTS,
    **NO_REAL_SCORES,
    **NO_CHANNELS,
}


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
@pytest.mark.parametrize("fault", TAKEN)
def test_what_was_taken_in_silence_or_raised_raw_is_told(fault):
    options, sentence = TAKEN[fault]
    if fault == "a scripted point":
        options["module"] = body()
        options["module"].read = torch.jit.script(options["module"].read)
    refuses(sentence, adapted, **options)


of_cell = functools.partial(
    interp.machines.cell, body(), task=LAYOUT, core="cell", hear=len, read=len
)
test_arguments_of_points_that_were_ignored_are_refused = refused(
    *(
        (lambda of=direction: interp.Point("cell", of=of), "of must be 'output' or 'input'")
        for direction in ("out", None)
    ),
    *((lambda n=n: interp.Point("cell", times=n), "times") for n in (True, 1.5, "2", None, 10**6)),
    (lambda: interp.Point("cell", labels="ab"), "labels must be a list"),
)
test_labels_of_points_without_an_axis_are_refused = refused(
    (lambda: interp.Point("cell", labels=("a", "b")), "name the places along an axis"),
)
test_arguments_of_channels_that_were_ignored_are_refused = refused(
    *((lambda n=n: interp.Channel("h", (8, 2), n), "grow") for n in (1.5, True, 9)),
)
test_readers_that_read_nothing_are_refused = refused(
    (
        lambda: unchecked(read=lambda tree: tree).read_state(torch.zeros(2, 1, 16)),
        "read= .* a tensor, got",
    ),
    (
        lambda: unchecked(read=lambda tree: 1 / 0).read_state(torch.zeros(2, 1, 16)),
        "read= raised ZeroDivision",
    ),
)
test_arguments_of_adapters_that_were_ignored_are_refused = refused(
    (lambda: of_cell(task="experts", sizes={"n_states": 4}), "n_st"),
    (lambda: of_cell(channels=()), "option of an adapter, beside its own 'channels'"),
    (lambda: of_cell(name=3), "name must be a text, got 3"),
    (
        lambda: of_cell(hear=lambda m, f: f.values.numpy(), hears="before"),
        r"'cell' hears \[batch, 5\].* an ndarray",
    ),
)
test_arguments_of_models_that_were_ignored_are_refused = refused(
    (lambda: interp.load("wma-handwired", log_gamma="a"), "log_gamma must be a finite number"),
    (lambda: interp.load("x" * 3000), "the model has a name of more than 255 bytes"),
    (lambda: interp.Point("cell", item=(0, -1)), "item of a Point must be an integer >= 0, got -1"),
    (lambda: interp.play(interp.load("qlearning-handwired"), EPISODES, 3, 0), "acts in worlds"),
)
test_budgets_and_devices_that_were_ignored_are_refused = refused(
    *((lambda n=n: Budget(battery=n), "battery") for n in (0, -1, 10**7)),
    (lambda: Workload(fits=-1), "fits must be an integer >= 1, got -1"),
    (
        lambda: interp.Channel("h", torch.ones(2, device="meta").long()),
        "shape must be a list of which each is an int",
    ),
)


def test_modules_that_are_used_twice_have_two_names_and_steps_need_no_name():
    shared = nn.Linear(16, 16)
    module = body(shared, nn.ReLU(), shared)
    for name in ("read.1", "read.3"):
        assert (
            unchecked(module, points={"shared": interp.Point(name, times=2)})
            .points["shared"]
            .n_layers
            == 2
        )

    class Steps:
        def __call__(self, m, carried, fed):
            return step(m, carried, fed)

    assert torch.equal(predicted(unchecked(body(), Steps())), predicted(unchecked(body())))


@pytest.mark.parametrize(
    ("hook", "sentence"),
    [(lambda x, hook: x.double(), "in torch.float64"), (lambda x: x, "must take")],
)
def test_a_hook_of_another_precision_or_signature_is_told(hook, sentence):
    machine = unchecked(points={"cell": "cell"})
    refuses(sentence, interp.rollout, machine, EPISODES, fwd_hooks=[("points.cell", hook)])
