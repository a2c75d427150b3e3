"""The registry of tasks: looked up by key or by what belongs to a task, no name twice, and no task by default."""

import importlib
import itertools
import warnings
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import typer

import interp
from interp import tasks
from interp.cli import app
from interp.core import catalog
from interp.core.algorithm import AlgorithmRecord, Searched
from interp.core.task import _TAKEN, Corruption
from interp.interventions.interchange import Claim
from interp.interventions.sites import resolve
from interp.tasks import Algorithms, Analysis, Data, Size, Task, experts, mdp
from interp.tasks.experts.layout import ExpertRound
from interp.training.goal import TrainingGoal
from tests.refusals import refuses


def own(key="pulls", **parts):
    sizes = (Size("n_arms", "arms", "number of arms"),)
    return Task(
        key,
        f"the {key}",
        "",
        Data(ExpertRound, lambda *a, **k: None, lambda *a: None, sizes),
        **parts,
    )


@pytest.fixture
def pulls(registry):
    """examples/own_task.py, whose record keeps what it says."""
    return importlib.import_module("own_task")


def test_a_task_is_found_by_its_key_its_episodes_its_layout_and_its_model():
    model = interp.load("wma-handwired", n_experts=2)
    for subject in (experts.sample(1, 1, 2), model.layout, model):
        assert tasks.of(subject) is tasks.get("experts")
    assert tasks.of(mdp.sample(1, 1, 2, 2)).key == "qlearning"


def test_what_belongs_to_no_task_is_refused():
    @dataclass
    class Foreign:
        task: ClassVar[str] = "pulls"

    refuses("unknown task 'expert'; did you mean 'experts'", tasks.get, "expert")
    refuses("unknown task 'pulls'", tasks.of, Foreign())
    refuses(
        "expected episodes, a layout or a model of a registered task, got list", tasks.of, [1, 2]
    )


def test_a_task_of_ones_own_is_registered_once(pulls):
    record = tasks.register(pulls.PULLS)
    assert tasks.get("pulls") is record
    assert tasks.every()[-1] is record
    for taken in ("pulls", "experts"):
        refuses(f"a task '{taken}' is registered already", tasks.register, own(taken))
    assert tasks.get("experts").name == "expert advice"


def test_a_record_refuses_what_could_not_be_told_apart():
    refuses("a task's key must be an identifier, got 'two words'", own, "two words")
    with pytest.raises(interp.InputError, match="two sizes are called 'n_arms'"):
        replace(own().data, sizes=(Size("n_arms", "arms", ""), Size("n_arms", "levers", "")))
    first = AlgorithmRecord("a", "first", "1st", lambda: None)
    for changes, field in (
        ({"name": "first"}, "name"),
        ({"short_name": "1st"}, "short_name"),
        ({"key": "a"}, "key"),
    ):
        second = replace(AlgorithmRecord("b", "second", "2nd", lambda: None), **changes)
        with pytest.raises(
            interp.InputError, match=f"algorithm of 'pulls' '[ab]' reuses the {field}"
        ):
            own(algorithms=Algorithms(lambda second=second: (first, second))).algorithm_records()


MODELS = [
    f"{name}-{kind}"
    for name in ("wma", "qlearning", "reachability")
    for kind in ("learned", "handwired")
]


@pytest.mark.parametrize("name", MODELS)
def test_every_claim_and_subspace_names_what_exists(name):
    """Variables of the algorithm the model is held against, sites of the model; one control of each outcome."""
    model = interp.load(name)
    algorithm = tasks.of(model).explains(model)
    for claim in Claim.of(model):
        assert claim.variable in algorithm.keys
        for place in claim.places:
            resolve(place.site, model, model.layout)
    assert {claim.outcome for claim in Claim.of(model) if claim.control} == {"prediction", "state"}
    for variable, site in tasks.of(model).analysis.aligned(model):
        assert variable in algorithm.keys
        resolve(site, model, model.layout)


def test_unknown_parts_are_refused_with_the_nearest():
    task = tasks.get("experts")
    refuses("unknown algorithm of 'experts' 'bays'; did you mean 'bayes'", task.algorithm, "bays")
    with pytest.raises(
        interp.InputError, match="task 'pulls' registers no algorithm; give its record algorithms="
    ):
        own().explains(interp.load("wma-handwired", n_experts=2))


def test_two_corruptions_of_one_name_are_refused():
    first, second = (
        Corruption("flip", name, 0, lambda e, t: (e, e)) for name in ("a flip", "another flip")
    )
    with pytest.raises(
        interp.InputError, match="corruption of 'pulls' 'flip' reuses the key 'flip'"
    ):
        own(analysis=Analysis(corruptions=lambda: (first, second))).corruption("flip")


def test_episodes_are_drawn_to_a_model_s_sizes_and_rates():
    model = interp.load("qlearning-handwired", n_states=3, n_actions=2, alpha=0.3, gamma=0.5)
    episodes = tasks.of(model).sample_for(model, n_episodes=2, n_rounds=4, seed=1)
    expected = mdp.sample(2, 4, 3, 2, seed=1, alpha=0.3, gamma=0.5)
    assert (episodes.states == expected.states).all()
    assert (episodes.q_tables == expected.q_tables).all()
    assert tasks.of(model).sample_for(model, 2, 4, 1, regime="ladder").regime == "ladder"


# ------------------------------------------------------------------------------------------------ records that lie


def test_the_tasks_that_come_with_the_package_keep_what_they_say():
    for task in tasks.every():
        interp.check_task(task)


def sampled(pulls, change):
    """The pulls with episodes that ``change`` spoils: (episodes, a count of the draws, which no seed fixes)."""
    free = itertools.count()
    draw = pulls.sample
    sample = lambda n, rounds, **how: change(draw(n, rounds, **how), free)  # noqa: E731
    return replace(pulls.PULLS, data=replace(pulls.PULLS.data, sample=sample))


def laid(pulls, **members):
    """The pulls with a layout that differs in ``members``."""
    members.setdefault("__annotations__", {})
    layout = dataclass(frozen=True)(type("Spoiled", (pulls.PullRound,), members))
    return replace(pulls.PULLS, data=replace(pulls.PULLS.data, layout=layout))


def encoded(pulls, change):
    """The pulls with rounds that ``change`` spoils."""
    return laid(pulls, encode=lambda self, episodes: change(pulls.PullRound.encode(self, episodes)))


def learning(pulls, change):
    goal = TrainingGoal(targets=lambda episodes: change(np.eye(2)[episodes.rewards]))
    return replace(pulls.PULLS, training=lambda: goal)


def computing(pulls, **changes):
    """The pulls with an algorithm that differs in fields, or ``varied``: key -> (parents, equation)."""
    varied = changes.pop("varied", {})
    make = lambda: replace(pulls.laplace().varied("laplace", "L", {}, varied), **changes)  # noqa: E731
    return replace(
        pulls.PULLS, algorithms=Algorithms(lambda: (AlgorithmRecord("laplace", "L", "L", make),))
    )


def put(rounds, name, index, value):
    tensor = getattr(rounds, name).clone()
    tensor[index] = value
    return replace(rounds, **{name: tensor})


LIES_ABOUT_SEEDS: dict[str, Any] = {
    "unseeded": lambda b: sampled(b, lambda e, free: replace(e, arms=(e.arms + next(free)) % 2)),
}
LIES_ABOUT_EPISODES: dict[str, Any] = {
    "other episodes": lambda b: sampled(b, lambda e, free: e.select(slice(0, 1))),
}
LIES_ABOUT_ROUNDS: dict[str, Any] = {
    "other rounds": lambda b: sampled(
        b, lambda e, free: replace(e, arms=e.arms[:, 1:], rewards=e.rewards[:, 1:])
    ),
}
LIES_ABOUT_SAMPLES: dict[str, Any] = {
    "no episodes": lambda b: sampled(b, lambda e, free: None),
    "raises": lambda b: sampled(b, lambda e, free: 1 / 0),
}
LIES_ABOUT_TASKS: dict[str, Any] = {
    "of another task": lambda b: sampled(
        b, lambda e, free: interp.tasks.get("experts").sample(2, 3, n_experts=2)
    ),
}
LIES_ABOUT_LATENTS: dict[str, Any] = {
    "two latents over an observation": lambda b: laid(b, n_latents=2),
    "no latent": lambda b: laid(b, n_latents=0),
    "all latents": lambda b: laid(b, n_latents=9),
    "a half latent": lambda b: laid(b, n_latents=1.5),
}
LIES_ABOUT_LABELS: dict[str, Any] = {
    "duplicate labels": lambda b: laid(b, labels=("<w>", "<z>", "arm", "win?", "arm", "w?")),
    "duplicate vocabulary": lambda b: laid(
        b, vocabulary=("<w>", "win?", "w?", "lose", "win", "arm_1", "arm_1")
    ),
    "empty vocabulary": lambda b: laid(b, vocabulary=()),
    "one outcome": lambda b: laid(b, outcomes=("win",)),
    "duplicate outcomes": lambda b: laid(b, outcomes=("win", "win")),
    "another task's layout": lambda b: laid(b, task="experts"),
}
LIES_ABOUT_LAYOUTS: dict[str, Any] = {
    "no layout": lambda b: replace(b.PULLS, data=replace(b.PULLS.data, layout=lambda: 3)),
    "fit gives nothing": lambda b: laid(b, fit=lambda self, episodes: None),
}
LIES_ABOUT_TOKENS: dict[str, Any] = {
    "tokens beyond": lambda b: encoded(b, lambda r: put(r, "tokens", (0, 0, 2), 7)),
    "negative tokens": lambda b: encoded(b, lambda r: put(r, "tokens", (0, 0, 2), -1)),
}
LIES_ABOUT_SHAPES_OF_TOKENS: dict[str, Any] = {
    "tokens that are no integers": lambda b: encoded(
        b, lambda r: replace(r, tokens=r.tokens.float())
    ),
    "tokens of other positions": lambda b: encoded(
        b, lambda r: replace(r, tokens=r.tokens[..., :-1])
    ),
}
LIES_ABOUT_VALUES: dict[str, Any] = {
    "NaN payloads": lambda b: encoded(b, lambda r: put(r, "values", (0, 0, 2), float("nan"))),
    "payloads of nothing": lambda b: encoded(b, lambda r: put(r, "values", (0, 0, 2), 0.5)),
}
LIES_ABOUT_SLOTS: dict[str, Any] = {
    "slots beyond": lambda b: encoded(b, lambda r: put(r, "slots", (0, 0), 1)),
    "a latent over a token": lambda b: encoded(b, lambda r: put(r, "tokens", (0, 0, 1), 3)),
    "encodes a tensor": lambda b: encoded(b, lambda r: r.tokens),
}
LIES_ABOUT_TARGETS: dict[str, Any] = {
    "negative targets": lambda b: learning(b, lambda t: 2 * t - 0.5),
    "targets that do not add up": lambda b: learning(b, lambda t: t * 0.5),
}
LIES_ABOUT_NUMBERS_OF_TARGETS: dict[str, Any] = {
    "NaN targets": lambda b: learning(b, lambda t: t * np.nan),
    "ragged targets": lambda b: learning(b, lambda t: [[1.0], [0.5, 0.5]]),
}
LIES_ABOUT_SHAPES_OF_TARGETS: dict[str, Any] = {
    "targets of one outcome": lambda b: learning(b, lambda t: t[..., :1]),
    "targets of other rounds": lambda b: learning(b, lambda t: t[:, 1:]),
}
LIES_ABOUT_SHAPES_OF_LOSSES: dict[str, Any] = {
    "losses of a shape": lambda b: replace(
        b.PULLS, data=replace(b.PULLS.data, losses=lambda p, e, r: p)
    ),
}
LIES_ABOUT_NUMBERS_OF_LOSSES: dict[str, Any] = {
    "NaN losses": lambda b: replace(
        b.PULLS, data=replace(b.PULLS.data, losses=lambda p, e, r: p[..., 0] * float("nan"))
    ),
}
LIES_ABOUT_LOSSES: dict[str, Any] = {
    "losses raise": lambda b: replace(
        b.PULLS, data=replace(b.PULLS.data, losses=lambda p, e, r: {}[0])
    ),
}
LIES_ABOUT_PARENTS: dict[str, Any] = {
    "an undeclared parent": lambda b: computing(
        b, varied={"chances": (("wins",), lambda v: v["wins"] / v["pulls"])}
    ),
}
LIES_ABOUT_STATES: dict[str, Any] = {
    "growing state": lambda b: computing(
        b, varied={"next_wins": (("wins",), lambda v: np.concatenate([v["wins"], v["wins"]], -1))}
    ),
}
LIES_ABOUT_INPUTS: dict[str, Any] = {
    "a missing input": lambda b: computing(b, inputs=lambda episodes: {"arm": episodes.arms}),
    "inputs of other rounds": lambda b: computing(
        b, inputs=lambda episodes: {"arm": episodes.arms.T, "reward": episodes.rewards.T}
    ),
}
LIES_ABOUT_STARTS: dict[str, Any] = {
    "a missing state": lambda b: computing(b, initial=lambda episodes: {}),
}
LIES_ABOUT_ANALYSES: dict[str, Any] = {
    "an unknown corruption": lambda b: replace(
        b.PULLS, analysis=replace(b.PULLS.analysis, default_corruption="x")
    ),
    "an unknown variable": lambda b: replace(
        b.PULLS, analysis=replace(b.PULLS.analysis, probed=("x",))
    ),
}
LIES: dict[str, Any] = {
    **LIES_ABOUT_SEEDS,
    **LIES_ABOUT_EPISODES,
    **LIES_ABOUT_ROUNDS,
    **LIES_ABOUT_SAMPLES,
    **LIES_ABOUT_TASKS,
    **LIES_ABOUT_LATENTS,
    **LIES_ABOUT_LABELS,
    **LIES_ABOUT_LAYOUTS,
    **LIES_ABOUT_TOKENS,
    **LIES_ABOUT_SHAPES_OF_TOKENS,
    **LIES_ABOUT_VALUES,
    **LIES_ABOUT_SLOTS,
    **LIES_ABOUT_TARGETS,
    **LIES_ABOUT_NUMBERS_OF_TARGETS,
    **LIES_ABOUT_SHAPES_OF_TARGETS,
    **LIES_ABOUT_SHAPES_OF_LOSSES,
    **LIES_ABOUT_NUMBERS_OF_LOSSES,
    **LIES_ABOUT_LOSSES,
    **LIES_ABOUT_PARENTS,
    **LIES_ABOUT_STATES,
    **LIES_ABOUT_INPUTS,
    **LIES_ABOUT_STARTS,
    **LIES_ABOUT_ANALYSES,
}


def test_what_a_sampler_raises_is_told_as_its_own(pulls):
    refuses(
        "sample raised KeyError: 'x'", sampled(pulls, lambda episodes, free: {}["x"]).sample, 2, 3
    )


@pytest.mark.parametrize("lie", LIES)
def test_a_record_that_lies_is_not_registered(lie, pulls):
    """Each of these was registered, and trained or compared without a word, or raised deep in torch."""
    before = dict(catalog._REGISTERED)
    with pytest.raises(interp.InputError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tasks.register(LIES[lie](pulls))
    assert before == catalog._REGISTERED


@pytest.mark.parametrize(
    "option", ["n 4", "", "--x", "out", "seed", "Arms", "class", "1x", "_x", "a-b", None, 3]
)
def test_a_size_whose_option_no_command_could_have_is_refused(option):
    """Registered, it made the whole command line fail to import."""
    refuses(r"option (of a size )?must be", Size, "n_arms", option, "arms")
    refuses(r"minimum|default", Size, "n_arms", "arms", "arms", minimum=3, default=2)


def test_what_commands_take_is_what_sizes_may_not_be_called():
    sizes = {size.option for task in tasks.every() for size in task.sizes}
    commands = typer.main.get_command(app).commands.values()
    for command in (
        subcommand
        for entry in commands
        for subcommand in getattr(entry, "commands", {"": entry}).values()
    ):
        taken = {param.name for param in command.params}
        taken |= {
            word.lstrip("-").replace("-", "_") for param in command.params for word in param.opts
        }
        assert not sizes & taken or taken - sizes <= _TAKEN, command.name


@pytest.mark.parametrize(
    "grid", [(float("nan"),), (0.0, float("nan")), (0.0, float("inf")), (), ("a",), (1.0, 0.0)]
)
def test_a_grid_holds_ascending_finite_numbers(grid):
    refuses(
        r"must be (ascending numbers|a list of which each is a finite number)",
        Searched,
        "rate",
        grid,
    )
