"""What the documentation computes and states, beside the same numbers computed independently, with NumPy alone.

`tests/test_tutorials.py` checks that pages run; this file checks that what they compute is right.
"""

import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import interp
from interp.tasks import experts
from tests.test_tutorials import DOCS, PAGES, RUN

ROOT = DOCS.parent


@cache
def scope_of(page: str, last: str = "") -> dict[str, Any]:
    """Run the Python of a page, through the first block that holds ``last``, and return its variables."""
    scope: dict[str, Any] = {"__name__": "page"}
    for block in RUN.findall((DOCS / page).read_text(encoding="utf-8")):
        exec(compile(block, page, "exec", dont_inherit=True), scope)
        if last and last in block:
            break
    return scope


def count_hits(episodes: experts.ExpertEpisodes) -> np.ndarray:
    """Count how often each expert was right before each round and after the last: ``[episode, round + 1, expert]``."""
    right = episodes.advice == episodes.labels[..., None]
    none = np.zeros((len(episodes), 1, right.shape[-1]))
    return np.concatenate([none, right.cumsum(1)], axis=1)


def vote(episodes: experts.ExpertEpisodes, log_weights: np.ndarray) -> np.ndarray:
    """Return P(y = 1), the share of the weights of the experts who say 1: ``[episode, round]``."""
    weights = np.exp(log_weights)
    return (weights * episodes.advice).sum(-1) / weights.sum(-1)


def logit(p: np.ndarray) -> np.ndarray:
    """Return log P(y = 1) - log P(y = 0), each P at least 1e-6."""
    return np.log(p.clip(1e-6, 1)) - np.log((1 - p).clip(1e-6, 1))


# docs/howto/python.md


def recipe() -> dict[str, Any]:
    """Return the variables of the scikit-learn recipe."""
    return scope_of("howto/python.md", last="cross_val_score")


def test_the_scikit_learn_recipe_pairs_a_latent_with_the_hits_counted_after_its_round() -> None:
    scope = recipe()
    hits = count_hits(scope["episodes"])[:, 1:]
    assert np.array_equal(scope["y"], hits.reshape(-1, 4))  # a hit adds 1, at a gain of 1
    latents = scope["run"].latents.numpy(force=True)
    assert np.array_equal(scope["x"], latents[:, 1:].reshape(len(scope["y"]), -1))


def test_the_scikit_learn_recipe_scores_what_its_comment_says() -> None:
    assert [round(score, 2) for score in recipe()["scores"]] == [1, 1, 0.99, 1]


def test_one_round_off_the_recipe_would_score_less() -> None:
    """The wrong pairing, weights before the round, must not pass for the right one."""
    from sklearn.linear_model import Ridge
    from sklearn.model_selection import GroupKFold, cross_val_score

    scope = recipe()
    before = count_hits(scope["episodes"])[:, :-1].reshape(-1, 4)
    folds = {"groups": scope["groups"], "cv": GroupKFold(4)}
    assert cross_val_score(Ridge(), scope["x"], before, **folds).max() < 0.9


# docs/tutorials/patch.md: wma-handwired with 3 experts, whose log-weight rises by .5 a hit


def test_the_patched_vote_moves_the_logit_by_what_weighted_majority_says() -> None:
    scope = scope_of("tutorials/patch.md")
    clean, corrupted = (
        logit(vote(episodes, 0.5 * count_hits(episodes)[:, :-1])[:, 5])
        for episodes in (scope["clean"], scope["corrupted"])
    )
    table = scope["effects"].to_frame()
    assert table["effect"][0] == pytest.approx(abs(clean - corrupted).mean())
    assert table["site"][:4].tolist() == [
        *(f"resid_pre[{i}]@p_1" for i in range(3)),
        "attn_out[2]@p?",
    ]
    assert table["effect"][4:].abs().max() < 1e-9


def test_a_wrong_hypothesis_agrees_where_other_weights_change_no_answer() -> None:
    scope = scope_of("tutorials/patch.md")
    episodes, others = scope["episodes"], scope["others"]
    own = vote(episodes, 0.5 * count_hits(episodes)[:, :-1]) > 0.5
    exchanged = vote(episodes, 0.5 * count_hits(others)[:, :-1]) > 0.5
    assert scope["wrong"].iia == pytest.approx((own == exchanged).mean())
    assert (scope["true"].iia, scope["true"].iia_informative) == (1, 1)


def test_an_exchanged_state_moves_p_as_weighted_majority_with_exchanged_weights() -> None:
    """Exchanged before round 3, the log-weights go on by the hits of the base episodes."""
    scope = scope_of("tutorials/patch.md")
    episodes, others = scope["episodes"], scope["others"]
    own = 0.5 * count_hits(episodes)
    exchanged = own + 0.5 * (count_hits(others) - count_hits(episodes))[:, [3]]
    change = vote(episodes, exchanged[:, :-1]) - vote(episodes, own[:, :-1])
    expected = abs(change[:, 3:8]).mean(0)
    assert scope["left"]["mean"].to_numpy() == pytest.approx(expected)
    text = (DOCS / "tutorials" / "patch.md").read_text(encoding="utf-8")
    assert ", ".join(f"{size:.2f}".lstrip("0") for size in expected) in text


# docs/tutorials/look-inside.md


def test_the_latent_of_the_handwired_machine_holds_half_of_each_experts_hits() -> None:
    scope = scope_of("tutorials/look-inside.md")
    hits = count_hits(scope["episodes"])[:, :-1]
    gain = scope["algorithm"].parameters["gain"]
    assert np.array_equal(scope["state"], gain * hits)


# names of models


def learned_names() -> set[str]:
    """Return the names of the learned models that ship."""
    return {model.name for model in interp.models() if model.kind == "learned"}


def test_learned_models_are_said_to_ship_where_interp_load_takes_them() -> None:
    """Every model that the page names ships, or is a folder of lab/checkpoints."""
    text = (DOCS / "results" / "learned-models.md").read_text(encoding="utf-8")
    named = set(
        re.findall(r"`((?:wma|qlearning|reachability)-[a-z]+(?:-wide|-additive)?(?:-\d)?)`", text)
    )
    in_a_checkout = {folder.name for folder in (ROOT / "lab" / "checkpoints").iterdir()}
    not_shipped = named - learned_names() - {"wma-roles"}  # the recipe that trained wma-tied
    assert not_shipped <= in_a_checkout
    said = text.split("Their other seeds are in a checkout alone.")[1].split("\n\n")[0]
    assert set(re.findall(r"`([a-z]+-[a-z-]+-\d)`", said)) <= in_a_checkout
    assert learned_names() <= named


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=lambda page: page.name)
def test_models_that_a_page_loads_by_name_ship(page: Path) -> None:
    shipped = {model.name for model in interp.models()}
    text = page.read_text(encoding="utf-8")
    loaded = re.findall(r"interp\.load\(\"((?:wma|qlearning|reachability)-[\w-]+)\"", text)
    commands = re.findall(
        r"^interp (?:report|compare|probe|patch|audit|evaluate|explore) (\w+-\w+[\w-]*)", text, re.M
    )
    assert {*loaded, *commands} <= shipped


# README.md


def test_the_readmes_finding_is_in_the_table_of_its_page() -> None:
    """Every number of the finding stands on the page, and tests/test_replaced_latents.py checks it."""
    page = (DOCS / "results" / "replaced-or-added.md").read_text(encoding="utf-8")
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    finding = text[text.index("**A finding.**") :].split("\n\n")[0]
    numbers = re.findall(r"(?<![\w.])\.\d+", finding)
    assert len(set(numbers)) == 3
    assert set(numbers) <= set(re.findall(r"(?<![\w.])\.\d+", page))
