"""Rounds that keep the truth after the prediction, in as many tokens as it takes, and are read where they say."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import interp
from interp.core import catalog
from interp.core.algorithm import Algorithm, AlgorithmRecord, Variable
from interp.core.task import Algorithms, Data, Task
from interp.interventions.experiment import Outcome
from interp.interventions.interchange import interchange
from interp.interventions.patching import sweep
from interp.model.layout import EncodedRounds, RoundLayout
from interp.stats.decoder import Decoder
from interp.tasks.experts.layout import ExpertRound
from interp.tasks.qlearning.layout import QLearningRound
from interp.tasks.reachability.layout import ReachabilityRound
from interp.training.batches import RoundsLoss, encode
from interp.training.config import Stage, TrainingConfig
from interp.training.goal import TrainingGoal
from interp.training.trainer import train
from tests.machines import transformer
from tests.refusals import refuses


@dataclass(frozen=True, eq=False)
class ThreeAnswers:
    """Items and their three binary properties, Int[episode, round] and Int[episode, round, 3]."""

    items: np.ndarray
    answers: np.ndarray
    regime: str = "even"
    seed: int | None = None
    task: ClassVar[str] = "three_answers"

    @property
    def n_rounds(self) -> int:
        return self.items.shape[1]

    def __len__(self) -> int:
        return len(self.items)

    def select(self, rows: Any) -> ThreeAnswers:
        return replace(self, items=self.items[rows], answers=self.answers[rows])


def sample(n_episodes: int, n_rounds: int, *, seed: int = 0) -> ThreeAnswers:
    rng = np.random.default_rng(seed)
    return ThreeAnswers(
        rng.integers(2, size=(n_episodes, n_rounds)),
        rng.integers(2, size=(n_episodes, n_rounds, 3)),
    )


@dataclass(frozen=True)
class AnswersLast(RoundLayout):
    """The truth is told in three tokens; the first of them is predicted."""

    task: ClassVar[str] = "three_answers"
    labels = ("<w>", "<z>", "item", "p?", "l_1", "l_2", "l_3", "w?")
    vocabulary = ("<w>", "p?", "w?", "a*", "end", "item_1", "item_2", "no", "yes")
    outcomes = ("no", "yes")
    n_latents = 1

    def fit(self, episodes: Any) -> RoundLayout:
        return self

    def encode(self, episodes: ThreeAnswers) -> EncodedRounds:
        ids = self.token_ids
        fixed = [ids.get(label, 0) for label in self.labels]
        tokens = torch.tensor(fixed).repeat(*episodes.items.shape, 1)
        tokens[..., 2] = torch.from_numpy(episodes.items) + ids["item_1"]
        first = self.position("l_1")
        tokens[..., first : first + 3] = torch.from_numpy(episodes.answers) + ids["no"]
        values = torch.zeros(tokens.shape)
        slots = torch.zeros(tokens.shape[:2], dtype=torch.long)
        return EncodedRounds(tokens, values, slots)


class UpdateInside(AnswersLast):
    """The update is read before the last token."""

    labels = ("<w>", "<z>", "item", "p?", "l_1", "l_2", "l_3", "w?", "end")
    update_label = "w?"


class Committed(UpdateInside):
    """The model's own choice stands among what comes after the prediction."""

    labels = ("<w>", "<z>", "item", "p?", "l_1", "a*", "l_2", "l_3", "w?", "end")
    choice_label = "a*"

    def choice_token(self, choice: torch.Tensor) -> torch.Tensor:
        return choice + self.token_ids["no"]

    def encode(self, episodes: ThreeAnswers) -> EncodedRounds:
        rounds = super().encode(replace(episodes, answers=np.zeros_like(episodes.answers)))
        tokens = rounds.tokens.clone()
        answer_tokens = torch.from_numpy(episodes.answers) + self.token_ids["no"]
        for i in range(3):
            tokens[..., self.position(f"l_{i + 1}")] = answer_tokens[..., i]
        tokens[..., self.choice_position] = self.token_ids["a*"]
        return replace(rounds, tokens=tokens)


def second_answers() -> Algorithm:
    """How often the second property was there: it says what the next round's first is."""

    def count_second(v):
        return v["count"] + v["answers"][..., 1]

    answers = Variable("answers", "l", "the three", "class", "input")
    count = Variable("count", "n", "how often the second was there", "rounds", "state")
    next_count = Variable(
        "next_count",
        "n'",
        "after the round",
        "rounds",
        parents=("count", "answers"),
        equation=count_second,
    )

    def distribution(v):
        p_no = 1 / (2 + v["count"])
        return np.stack([p_no, 1 - p_no], -1)

    return Algorithm(
        key="second",
        name="second",
        task="three_answers",
        parameters={},
        variables=(answers, count, next_count),
        inputs=lambda episodes: {"answers": episodes.answers},
        initial=lambda episodes: {"count": np.zeros(len(episodes))},
        distribution=distribution,
        memory="count",
        written="next_count",
    )


def losses(predictions: torch.Tensor, episodes: ThreeAnswers, rounds: slice) -> torch.Tensor:
    truth = torch.from_numpy(episodes.answers[:, rounds, 0])
    return AnswersLast().loss(predictions, truth)


def one_hot_answers(episodes: ThreeAnswers) -> np.ndarray:
    return np.eye(2)[episodes.answers[..., 0]]


SECOND = AlgorithmRecord("second", "second", "second", second_answers)
TASK = Task(
    key="three_answers",
    name="three answers",
    what="predict the first of three",
    data=Data(layout=AnswersLast, sample=sample, losses=losses),
    algorithms=Algorithms(lambda: (SECOND,)),
    training=lambda: TrainingGoal(targets=one_hot_answers),
)


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(catalog.REGISTERED, "three_answers", TASK)


def made(layout: RoundLayout) -> Any:
    return transformer(layout, init_std=0.5).double()


@pytest.mark.parametrize("layout", [AnswersLast(), UpdateInside(), Committed()])
def test_a_round_is_read_at_its_label_before_the_truth(layout):
    """The last position but two of the first of these is l_2: read there, the prediction moves with the truth."""
    assert layout.labels[layout.predict_position] == "p?"
    assert layout.labels[layout.update_position] == "w?"
    model, episodes = made(layout), sample(5, 4, seed=1)
    plain = interp.rollout(model, episodes)
    others = replace(episodes, answers=1 - episodes.answers)
    run_of_others = interp.rollout(model, others)
    assert torch.equal(plain.predictions[:, 0], run_of_others.predictions[:, 0])
    change = plain.predictions[:, 1] - run_of_others.predictions[:, 1]
    assert change.abs().min() > 0
    interp.check_machine(model)


class ReadAfter(AnswersLast):
    """What the default was: it says p?, and is read at l_2."""

    predict_position = 5


def test_a_layout_that_is_read_after_its_label_leaks_and_is_found():
    refuses(
        "the prediction of round 0 changes with 'l_1', which comes after 'p\\?'",
        interp.check_machine,
        made(ReadAfter()),
        only=["predictions_do_not_see_the_truth"],
    )


def test_shipped_layouts_are_read_where_they_were():
    for layout in (
        ExpertRound(3),
        ExpertRound(1),
        QLearningRound(4, 2),
        ReachabilityRound(5, 4, marks=True),
    ):
        n = layout.n_positions
        assert layout.predict_position == n - 3
        assert layout.n_from_prediction == 3
        assert layout.update_position == n - 1
        assert layout.n_from_update == 1
    assert QLearningRound(2, 2).predict_label == "Select"


def variant(**changes: Any) -> RoundLayout:
    return type("Changed", (AnswersLast,), changes)()


@pytest.mark.parametrize(
    ("attributes", "sentence"),
    [
        (
            {"labels": ("<w>", "<z>", "ask", "w?")},
            r"predict_label 'p\?' of a round of 'three_answers' stands at 0 of its positions, and must stand at one; "
            r"set predict_label in Changed to one of its labels: <w>, <z>, ask, w\?",
        ),
        ({"labels": ("<w>", "<z>", "p?", "p?", "w?")}, r"stands at 2 of its positions"),
        ({"update_label": "u"}, r"update_label 'u' of a round .* stands at 0"),
        (
            {"update_label": "item"},
            r"update_label of a round of 'three_answers' must come after 'p\?', where it",
        ),
        (
            {"choice_label": "item"},
            r"choice_label of a round of 'three_answers' must come after 'p\?'",
        ),
        ({"kind": "classses"}, "unknown kind of prediction of 'three_answers' 'classses'"),
        (
            {"kind": "mean", "choice_label": "l_1"},
            r"predicts a real number \('mean'\), which no token stands for",
        ),
    ],
    ids=[
        "no place of the prediction",
        "two places of the prediction",
        "no place of the update",
        "update before prediction",
        "choice before prediction",
        "unknown kind",
        "choice of a number",
    ],
)
def test_rounds_that_do_not_say_where_they_are_read_are_refused(attributes, sentence):
    refuses(sentence, variant, **attributes)


@pytest.mark.parametrize("layout", [AnswersLast(), UpdateInside()])
def test_each_token_of_feedback_is_patched_by_itself(layout):
    """Only l_2 of round 2 differs: patched there, the next round is as clean; anywhere else, as corrupted."""
    model, clean = made(layout), sample(6, 5, seed=2)
    changed = clean.answers.copy()
    changed[:, 2, 1] = 1 - changed[:, 2, 1]
    corrupted = replace(clean, answers=changed)
    sites_read = ["embed@l_1", "embed@l_2", "embed@l_3", "resid_post[1]@w?"]
    swept = sweep(model, clean, corrupted, 2, sites=sites_read, read_round=3)
    assert swept.fractions() == pytest.approx([0, 1, 0, 1], abs=1e-9)
    now = sweep(model, clean, corrupted, 2, sites=sites_read, metric="state")
    assert now.fractions() == pytest.approx([0, 1, 0, 1], abs=1e-9)
    assert (
        sweep(model, clean, corrupted, 2, sites=sites_read).values == 0
    ).all()  # the prediction came before


def test_feedback_is_interchanged_and_shows_in_the_state_alone():
    model, base, source = made(UpdateInside()), *(sample(8, 5, seed=seed) for seed in (3, 4))
    run = interp.rollout(model, base)
    answers_effect = interchange(model, base, source, second_answers(), "answers", "embed@l_2")
    assert (
        np.abs(answers_effect.effect).max() < 1e-15
    )  # a CPU may round products of other shapes otherwise
    assert answers_effect.wanted.max() == 0
    counts = second_answers().run(base)["next_count"]
    decode = Decoder.fit(run.latents[:, 1:], counts, ridge=1e-3)
    state_effect = interchange(
        model,
        base,
        source,
        second_answers(),
        "answers",
        "embed@l_2",
        outcome=Outcome("state", decode),
    )
    differs = base.answers[..., 1] != source.answers[..., 1]
    assert (np.abs(state_effect.wanted[..., 0]) == differs).all()
    is_moved = np.abs(state_effect.effect[..., 0]) > 1e-9
    assert (is_moved == differs).all()


@pytest.mark.parametrize("layout", [AnswersLast(), UpdateInside(), Committed()])
@pytest.mark.parametrize("commit", ["own", "target"])
def test_the_loss_of_training_is_that_of_the_rollout(layout, commit):
    model, episodes = made(layout), sample(6, 4, seed=5)
    batch = encode(episodes, layout)
    loss, latents = RoundsLoss(model, commit)(batch)
    run = interp.rollout(model, episodes, commit=commit)
    truth = torch.from_numpy(episodes.answers[..., :1])
    log_probabilities = run.predictions.gather(-1, truth).log()
    expected = -log_probabilities.mean()
    assert loss.item() == pytest.approx(expected.item(), abs=1e-6)
    assert_close(latents, run.latents[:, -1], atol=1e-9, rtol=0)


def test_such_a_task_is_trained(tmp_path):
    sizes = {
        "d_model": 8,
        "n_layers": 1,
        "n_heads": 2,
        "d_mlp": 8,
        "batch_size": 4,
        "eval_episodes": 4,
    }
    config = TrainingConfig(
        task="three_answers", stages=(Stage(n_rounds=3, steps=2),), eval_rounds=3, **sizes
    )
    model = interp.load(str(train(config, tmp_path / "run", name="three")))
    interp.check_machine(model)
