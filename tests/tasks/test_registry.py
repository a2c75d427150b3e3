"""The registry of tasks: looked up by key or by what belongs to a task, no name twice, and no task by default."""

import importlib
import itertools
import warnings
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import typer

import interp
from interp import tasks
from interp.cli import app
from interp.core import catalog
from interp.core.algorithm import AlgorithmRecord, Searched
from interp.core.task import Corruption
from interp.interventions.interchange import Claim
from interp.interventions.sites import resolve_site
from interp.tasks import Algorithms, Analysis, Data, Size, Task, experts, mdp
from interp.tasks.experts.layout import ExpertRound
from interp.training.goal import TrainingGoal
from tests.refusals import refuses


def own(key="pulls", **parts):
    sizes = (Size("n_arms", "arms", "number of arms"),)
    data = Data(ExpertRound, lambda *a, **k: None, lambda *a: None, sizes)
    return Task(key, f"the {key}", "", data, **parts)


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
    assert tasks.list_tasks()[-1] is record
    for taken in ("pulls", "experts"):
        refuses(f"a task '{taken}' is registered already", tasks.register, own(taken))
    assert tasks.get("experts").name == "expert advice"


def test_a_record_refuses_what_could_not_be_told_apart():
    refuses("a task's key must be an identifier, got 'two words'", own, "two words")
    refuses(
        "two sizes are called 'n_arms'",
        replace,
        own().data,
        sizes=(Size("n_arms", "arms", ""), Size("n_arms", "levers", "")),
    )
    first = AlgorithmRecord("a", "first", "1st", lambda: None)
    for changes, field in (
        ({"name": "first"}, "name"),
        ({"short_name": "1st"}, "short_name"),
        ({"key": "a"}, "key"),
    ):
        second = replace(AlgorithmRecord("b", "second", "2nd", lambda: None), **changes)
        refuses(
            f"algorithm of 'pulls' '[ab]' reuses the {field}",
            own(algorithms=Algorithms(lambda second=second: (first, second))).algorithm_records,
        )


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
            resolve_site(place.site, model, model.layout)
    outcomes_of_controls = {claim.outcome for claim in Claim.of(model) if claim.control}
    assert outcomes_of_controls == {"prediction", "state"}
    for variable, site in tasks.of(model).analysis.aligned(model):
        assert variable in algorithm.keys
        resolve_site(site, model, model.layout)


def test_unknown_parts_are_refused_with_the_nearest():
    task = tasks.get("experts")
    refuses("unknown algorithm of 'experts' 'bays'; did you mean 'bayes'", task.algorithm, "bays")
    refuses(
        "task 'pulls' registers no algorithm; give its record algorithms=",
        own().explains,
        interp.load("wma-handwired", n_experts=2),
    )


def test_two_corruptions_of_one_name_are_refused():
    first, second = (
        Corruption("flip", name, 0, lambda e, t: (e, e)) for name in ("a flip", "another flip")
    )
    refuses(
        "corruption of 'pulls' 'flip' reuses the key 'flip'",
        own(analysis=Analysis(corruptions=lambda: (first, second))).corruption,
        "flip",
    )


def test_episodes_are_drawn_to_a_model_s_sizes_and_rates():
    model = interp.load("qlearning-handwired", n_states=3, n_actions=2, alpha=0.3, gamma=0.5)
    episodes = tasks.of(model).sample_for(model, n_episodes=2, n_rounds=4, seed=1)
    expected = mdp.sample(2, 4, 3, 2, seed=1, alpha=0.3, gamma=0.5)
    assert (episodes.states == expected.states).all()
    assert (episodes.q_tables == expected.q_tables).all()
    assert tasks.of(model).sample_for(model, 2, 4, 1, regime="ladder").regime == "ladder"


# ------------------------------------------------------------------------------------------------ records that lie


def test_the_tasks_that_come_with_the_package_keep_what_they_say():
    for task in tasks.list_tasks():
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

    def encode(self, episodes):
        return change(pulls.PullRound.encode(self, episodes))

    return laid(pulls, encode=encode)


def learning(pulls, change):
    """The pulls with training targets that ``change`` spoils."""

    def spoiled_targets(episodes):
        return change(np.eye(2)[episodes.rewards])

    goal = TrainingGoal(targets=spoiled_targets)
    return replace(pulls.PULLS, training=lambda: goal)


def computing(pulls, **changes):
    """The pulls with an algorithm that differs in fields, or ``varied``: key -> (parents, equation)."""
    varied = changes.pop("varied", {})
    make = lambda: replace(pulls.laplace().make_variant("laplace", "L", {}, varied), **changes)  # noqa: E731
    return replace(
        pulls.PULLS, algorithms=Algorithms(lambda: (AlgorithmRecord("laplace", "L", "L", make),))
    )


def put(rounds, name, index, value):
    tensor = getattr(rounds, name).clone()
    tensor[index] = value
    return replace(rounds, **{name: tensor})


def test_what_a_sampler_raises_is_told_as_its_own(pulls):
    raising = sampled(pulls, lambda episodes, free: {}["x"])
    refuses("sample raised KeyError: 'x'", raising.sample, 2, 3)


def refuse_to_register(record):
    """Each of these was registered, and trained or compared without a word, or raised deep in torch."""
    before = dict(catalog.REGISTERED)
    with pytest.raises(interp.InputError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tasks.register(record)
    assert before == catalog.REGISTERED


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda e, free: replace(e, arms=(e.arms + next(free)) % 2), id="unseeded"),
        pytest.param(lambda e, free: e.select(slice(0, 1)), id="other episodes"),
        pytest.param(
            lambda e, free: replace(e, arms=e.arms[:, 1:], rewards=e.rewards[:, 1:]),
            id="other rounds",
        ),
        pytest.param(lambda e, free: None, id="no episodes"),
        pytest.param(lambda e, free: 1 / 0, id="raises"),
        pytest.param(
            lambda e, free: tasks.get("experts").sample(2, 3, n_experts=2), id="of another task"
        ),
    ],
)
def test_a_record_whose_sampler_lies_is_not_registered(change, pulls):
    refuse_to_register(sampled(pulls, change))


VOCABULARY_WITH_A_DUPLICATE = ("<w>", "win?", "w?", "lose", "win", "arm_1", "arm_1")


@pytest.mark.parametrize(
    "members",
    [
        pytest.param({"n_latents": 2}, id="two latents over an observation"),
        pytest.param({"n_latents": 0}, id="no latent"),
        pytest.param({"n_latents": 9}, id="all latents"),
        pytest.param({"n_latents": 1.5}, id="a half latent"),
        pytest.param({"labels": ("<w>", "<z>", "arm", "win?", "arm", "w?")}, id="duplicate labels"),
        pytest.param({"vocabulary": VOCABULARY_WITH_A_DUPLICATE}, id="duplicate vocabulary"),
        pytest.param({"vocabulary": ()}, id="empty vocabulary"),
        pytest.param({"outcomes": ("win",)}, id="one outcome"),
        pytest.param({"outcomes": ("win", "win")}, id="duplicate outcomes"),
        pytest.param({"task": "experts"}, id="another task's layout"),
        pytest.param({"fit": lambda self, episodes: None}, id="fit gives nothing"),
    ],
)
def test_a_record_whose_layout_lies_is_not_registered(members, pulls):
    refuse_to_register(laid(pulls, **members))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda r: put(r, "tokens", (0, 0, 2), 7), id="tokens beyond"),
        pytest.param(lambda r: put(r, "tokens", (0, 0, 2), -1), id="negative tokens"),
        pytest.param(
            lambda r: replace(r, tokens=r.tokens.float()), id="tokens that are no integers"
        ),
        pytest.param(
            lambda r: replace(r, tokens=r.tokens[..., :-1]), id="tokens of other positions"
        ),
        pytest.param(lambda r: put(r, "values", (0, 0, 2), float("nan")), id="NaN payloads"),
        pytest.param(lambda r: put(r, "values", (0, 0, 2), 0.5), id="payloads of nothing"),
        pytest.param(lambda r: put(r, "slots", (0, 0), 1), id="slots beyond"),
        pytest.param(lambda r: put(r, "tokens", (0, 0, 1), 3), id="a latent over a token"),
        pytest.param(lambda r: r.tokens, id="encodes a tensor"),
    ],
)
def test_a_record_whose_rounds_lie_is_not_registered(change, pulls):
    refuse_to_register(encoded(pulls, change))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda t: 2 * t - 0.5, id="negative targets"),
        pytest.param(lambda t: t * 0.5, id="targets that do not add up"),
        pytest.param(lambda t: t * np.nan, id="NaN targets"),
        pytest.param(lambda t: [[1.0], [0.5, 0.5]], id="ragged targets"),
        pytest.param(lambda t: t[..., :1], id="targets of one outcome"),
        pytest.param(lambda t: t[:, 1:], id="targets of other rounds"),
    ],
)
def test_a_record_whose_targets_lie_is_not_registered(change, pulls):
    refuse_to_register(learning(pulls, change))


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"layout": lambda: 3}, id="no layout"),
        pytest.param({"losses": lambda p, e, r: p}, id="losses of a shape"),
        pytest.param({"losses": lambda p, e, r: p[..., 0] * float("nan")}, id="NaN losses"),
        pytest.param({"losses": lambda p, e, r: {}[0]}, id="losses raise"),
    ],
)
def test_a_record_whose_data_lie_is_not_registered(changes, pulls):
    data = replace(pulls.PULLS.data, **changes)
    refuse_to_register(replace(pulls.PULLS, data=data))


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(
            {"varied": {"chances": (("wins",), lambda v: v["wins"] / v["pulls"])}},
            id="an undeclared parent",
        ),
        pytest.param(
            {
                "varied": {
                    "next_wins": (
                        ("wins",),
                        lambda v: np.concatenate([v["wins"], v["wins"]], -1),
                    )
                }
            },
            id="growing state",
        ),
        pytest.param({"inputs": lambda episodes: {"arm": episodes.arms}}, id="a missing input"),
        pytest.param(
            {"inputs": lambda episodes: {"arm": episodes.arms.T, "reward": episodes.rewards.T}},
            id="inputs of other rounds",
        ),
        pytest.param({"initial": lambda episodes: {}}, id="a missing state"),
    ],
)
def test_a_record_whose_algorithm_lies_is_not_registered(changes, pulls):
    refuse_to_register(computing(pulls, **changes))


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"default_corruption": "x"}, id="an unknown corruption"),
        pytest.param({"probed": ("x",)}, id="an unknown variable"),
    ],
)
def test_a_record_whose_analysis_lies_is_not_registered(changes, pulls):
    analysis = replace(pulls.PULLS.analysis, **changes)
    refuse_to_register(replace(pulls.PULLS, analysis=analysis))


@pytest.mark.parametrize(
    "option", ["n 4", "", "--x", "out", "seed", "Arms", "class", "1x", "_x", "a-b", None, 3]
)
def test_a_size_whose_option_no_command_could_have_is_refused(option):
    """Registered, it made the whole command line fail to import."""
    refuses(r"option (of a size )?must be", Size, "n_arms", option, "arms")
    refuses(r"minimum|default", Size, "n_arms", "arms", "arms", minimum=3, default=2)


def test_what_commands_take_is_what_sizes_may_not_be_called():
    sizes = {size.option for task in tasks.list_tasks() for size in task.sizes}
    commands = typer.main.get_command(app).commands.values()
    for command in (
        subcommand
        for entry in commands
        for subcommand in getattr(entry, "commands", {"": entry}).values()
    ):
        taken = {param.name for param in command.params}
        for param in command.params:
            taken |= {word.lstrip("-").replace("-", "_") for word in param.opts}
        if sizes & taken:
            for option in taken - sizes:
                refuses("the option of a size must be", tasks.Size, "n_cups", option, "cups")


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


def test_a_task_is_printed_by_its_key():
    """Its fields are functions, whose addresses would fill a page."""
    assert repr(tasks.get("experts")) == "Task('experts')"
