"""docs/howto/errors.md: every message that the page explains is raised by a mistake that leads to it."""

import re

import numpy as np
import pytest
import torch
from torch import nn

import interp
import probes
from circuits import compare
from interp.interventions import interchange, patching
from interp.model import saved
from interp.tasks import experts, mdp
from interp.tasks.experts.analysis import flip_vote
from interp.training import config, goal, trainer
from tests.refusals import refuses
from tests.test_tutorials import DOCS

PAGE = (DOCS / "howto" / "errors.md").read_text(encoding="utf-8")
QUOTED = re.findall(r"^\| `(.+?)` \|", PAGE, re.MULTILINE)
EPISODES = experts.sample(8, 6, 3, seed=0)
OF_FOUR = experts.sample(4, 6, 4, seed=0)


def test_an_unknown_argument_is_answered_by_the_valid_ones():
    refuses(
        r"unknown argument of probe: 'target'; did you mean 'targets'.* Valid: .*targets",
        probes.probe,
        handwired(),
        EPISODES,
        target=["log_weights"],
    )


def handwired():
    return interp.load("wma-handwired", n_experts=3)


def sweep(model, episodes, site):
    """Patch ``site`` in a pair of episodes that differ in a vote."""
    clean, corrupted = flip_vote(episodes, round=3, expert="p_1")
    patching.sweep(model, clean, corrupted, round=3, sites=site)


def hook_that_drops_a_dimension():
    hooks = [("blocks.1.attn.hook_z", lambda z, hook: z[0])]
    interp.rollout(handwired(), EPISODES, fwd_hooks=hooks)


def exchange_with_fewer_episodes():
    model = handwired()
    algorithm = interp.tasks.of(model).explains(model)
    few = EPISODES.select(slice(0, 4))
    interchange.interchange(model, EPISODES, few, algorithm, "log_weights", "latent")


class Mine(nn.Module):
    def __init__(self):
        super().__init__()
        self.read = nn.Linear(8, 2)


def adapt_and_check(step):
    """Check a machine with one channel ``h`` of 8 numbers, whose round is ``step``."""
    torch.manual_seed(0)
    layout = experts.TASK.layout(n_experts=3)
    channels = [interp.Channel("h", (8,))]
    points = {"read": "read"}
    machine = interp.adapt(Mine(), layout, step=step, channels=channels, points=points, name="mine")
    interp.check_machine(machine)


def mix_rows(net, carried, fed):
    """Return a state that depends on the other rows of the batch."""
    heard = fed.tokens.float().mean(1, keepdim=True)
    state = 0.5 * carried["h"] + heard
    return net.read(state), {"h": state - state.mean(0)}


def one_score(net, carried, fed):
    """Return a score for one of two outcomes."""
    scores = net.read(carried["h"])
    return scores[:, :1], carried


def another_channel(net, carried, fed):
    """Return a state under another name than the channel's."""
    return net.read(carried["h"]), {"state": carried["h"]}


def undeclared_channel(net, carried, fed):
    """Read a state that no channel has."""
    return net.read(carried["c"]), carried


def read_a_sequence(net, carried, fed):
    """Give the submodule a sequence of one step."""
    return net.read(carried["h"].unsqueeze(1)).squeeze(1), carried


def train_a_machine_of_no_builder():
    layout = experts.TASK.layout(n_experts=3)
    channels = [interp.Channel("h", (8,))]
    machine = interp.adapt(
        Mine(),
        layout,
        step=lambda net, carried, fed: (net.read(carried["h"]), carried),
        channels=channels,
    )
    trainer.train(goal.preset("experts", "laptop"), "run", name="mine", machine=machine)


def change_in_place(net, carried, fed):
    """Change the state that was passed, where a new one is to be returned."""
    state = carried["h"]
    return net.read(state), {"h": state.add_(1)}


def hand_over_before_the_first_round():
    run = interp.rollout(handwired(), EPISODES)
    interp.hand_over(run, 0, handwired())


def probe_three_episodes():
    three = EPISODES.select(slice(0, 3))
    probes.probe(handwired(), three, ["log_weights"])


def fit_targets_of_another_shape():
    run = interp.rollout(handwired(), EPISODES)
    probes.fit(run, np.zeros((8, 5, 2)))


def fit_targets_that_never_vary():
    run = interp.rollout(handwired(), EPISODES)
    probes.fit(run, np.zeros((8, 6, 1)))


def read_the_state_of_a_learned_model():
    model = interp.load("wma-learned")
    model.read_state(torch.zeros(1, 1, 64))


def cache_of_a_gru():
    run = interp.rollout(interp.load("wma-gru"), OF_FOUR)
    run.activation_cache(round=2)


MISTAKES = {}
"""A mistake for each message, by how the message begins."""

MISTAKES["unknown model"] = lambda: interp.load("wma-handwird")
MISTAKES["no checkpoint folder"] = lambda: interp.load("output/training/nothing/model")
MISTAKES["unknown argument"] = lambda: interp.load("wma-handwired", n_expert=3)
MISTAKES["unknown hook point"] = lambda: interp.rollout(
    handwired(), EPISODES, names_filter=["blocks.1.attn.hook_patern"]
)
MISTAKES["unknown component"] = lambda: sweep(handwired(), EPISODES, "resid_middle")
MISTAKES["site '...'"] = lambda: sweep(handwired(), EPISODES, "resid_post[9]@p?")
MISTAKES["unknown target"] = lambda: probes.probe(handwired(), EPISODES, ["log_weight"])
MISTAKES["episodes have"] = lambda: interp.rollout(interp.load("wma-learned"), EPISODES)
MISTAKES["this model reads"] = lambda: interp.rollout(handwired(), mdp.sample(4, 4, 3, 2, seed=0))
MISTAKES["episodes must be"] = lambda: interp.rollout(handwired(), np.zeros((3, 4)))
MISTAKES["'...' is called"] = lambda: handwired()(torch.zeros(3))
MISTAKES["'wma-handwired' is a model"] = lambda: interp.play(
    handwired(), EPISODES, n_rounds=3, seed=0
)
MISTAKES["'qlearning-handwired' is"] = lambda: compare.machines(handwired(), "qlearning-handwired")
MISTAKES["round 9"] = lambda: interp.rollout(handwired(), EPISODES, rounds=[9])
MISTAKES["unknown cached"] = lambda: interp.rollout(handwired(), EPISODES).cache["hook_embed"]
MISTAKES["the hook filter"] = lambda: interp.rollout(
    handwired(), EPISODES, names_filter=lambda name: False
)
MISTAKES["the hook at"] = hook_that_drops_a_dimension
MISTAKES["round must"] = hand_over_before_the_first_round
MISTAKES["5 folds"] = probe_three_episodes
MISTAKES["activations have"] = fit_targets_of_another_shape
MISTAKES["target 'target' is"] = fit_targets_that_never_vary
MISTAKES["base and source"] = exchange_with_fewer_episodes
MISTAKES["'wma-learned' is"] = read_the_state_of_a_learned_model
MISTAKES["not applicable"] = lambda: sweep(interp.load("wma-gru"), OF_FOUR, "head")
MISTAKES["'wma-gru' has"] = cache_of_a_gru
MISTAKES["'mine': scores"] = lambda: adapt_and_check(one_score)
MISTAKES["channel 'h'"] = lambda: adapt_and_check(another_channel)
MISTAKES["unknown channel"] = lambda: adapt_and_check(undeclared_channel)
MISTAKES["the point"] = lambda: adapt_and_check(read_a_sequence)
MISTAKES["steps_are_pure"] = lambda: adapt_and_check(change_in_place)
MISTAKES["rollout_is_step"] = lambda: adapt_and_check(mix_rows)
MISTAKES["'...' does"] = train_a_machine_of_no_builder
MISTAKES["unknown preset"] = lambda: goal.preset("experts", "latop")
MISTAKES["unknown training"] = lambda: config.replace_fields(
    goal.preset("experts", "laptop"), {"learning_rate": 1}
)
MISTAKES["cannot read"] = lambda: experts.read("missing.csv")
MISTAKES["no file"] = lambda: saved.load("run.safetensors")


def test_every_message_of_the_page_has_a_mistake_that_raises_it():
    assert len(QUOTED) == len(MISTAKES) >= 20
    for quoted, start in zip(QUOTED, MISTAKES, strict=True):
        assert quoted.startswith(start)


@pytest.mark.parametrize(
    ("quoted", "mistake"),
    list(zip(QUOTED, MISTAKES.values(), strict=True)),
    ids=MISTAKES,
)
def test_the_message_is_raised_as_it_is_quoted(quoted, mistake):
    """``...`` on the page stands for any text."""
    pattern = ".*".join(re.escape(part) for part in quoted.split("..."))
    pattern = pattern.replace(r"\ 0\.1\ ", r" \S+ ")  # a measured number
    refuses(pattern, mistake)
