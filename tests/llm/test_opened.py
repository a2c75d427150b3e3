"""A model opened while it learns: the cache across rounds changes nothing, probes and patches work by round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import probes
from interp.errors import InputError
from interp.llm.local import answers, load_model, prompt_ids
from interp.llm.opened import CONDITION, Opened, OpenedRollout
from interp.llm.protocol import Session
from interp.llm.schemes import Condition
from interp.tasks import experts
from probes import targets
from tests.llm.tiny import write_tiny_chat

EPISODES = experts.sample(6, 5, 4, regime="uniform", seed=3)
HOOKS = ["blocks.0.hook_out", "blocks.1.hook_out"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_chat(tmp_path_factory.mktemp("hf") / "tiny")


@pytest.fixture(scope="module")
def opened(folder: Path) -> Opened:
    return Opened.load(str(folder), prompt="Predict.")


@pytest.fixture(scope="module")
def played(opened: Opened) -> OpenedRollout:
    return opened.play(EPISODES, HOOKS, batch=4)


def test_it_is_the_session_that_the_plain_model_plays(folder: Path, played: OpenedRollout) -> None:
    """Predictions and activations are those of the plain model that reads each whole conversation anew: the cache of
    keys and values, the batch and the bridge change nothing."""
    model, tokenizer = load_model(str(folder))
    begin, choices, texts = answers(tokenizer, Condition.parse(CONDITION))
    for episode in range(len(EPISODES)):
        session = Session(Condition.parse(CONDITION), "Predict.", EPISODES.advice[episode], EPISODES.labels[episode])
        for t in range(EPISODES.n_rounds):
            request = session.next()
            assert request is not None
            ids = prompt_ids(tokenizer, request.messages) + begin
            with torch.no_grad():
                out = model(torch.tensor([ids]), output_hidden_states=True)
            share = out.logits[0, -1, list(choices)].softmax(0)[1]
            assert torch.allclose(share, played.predictions[episode, t], atol=1e-5)
            assert torch.allclose(out.hidden_states[1][0, -1], played.at(HOOKS[0])[episode, t], atol=1e-4)
            text = tokenizer.decode(ids)
            for i, key in enumerate(("Expert_A", "Expert_B", "Expert_C", "Expert_D")):
                # One token is one byte here, so that the vote's place in the text is its token.
                place = text.rindex(f'"{key}": ') + len(f'"{key}": ')
                n = len(tokenizer(text[:place], add_special_tokens=False)["input_ids"])
                assert tokenizer.decode([ids[n]]) == str(EPISODES.advice[episode, t, i])
                assert torch.allclose(out.hidden_states[1][0, n], played.at(HOOKS[0], key)[episode, t], atol=1e-4)
            session.feed(texts[int(share > 0.5)])


def test_every_activation_has_a_round_axis_and_probes_take_it(opened: Opened, folder: Path) -> None:
    """Votes are decoded at their own tokens, with all controls; what happened before them is not at the first block."""
    many = experts.sample(16, 4, 4, regime="uniform", seed=9)
    run = opened.play(many, HOOKS)
    blank = Opened.load(str(folder), prompt="Predict.", untrained=1).play(many, HOOKS)
    assert run.cache[HOOKS[0]].shape == (16, 4, 5, 32) and run.predictions.shape == (16, 4)
    found = probes.fit(run.at(HOOKS[0], "Expert_C"), many.advice[..., 2].astype(float))
    assert found.r2 > 0.95
    state = probes.fit(run.at(HOOKS[1]), targets.get("counts")(many, "before"), untrained=blank.at(HOOKS[1]))
    assert set(state.controls) >= {"shuffled", "inputs", "untrained"}


def test_a_patch_of_a_vote_restores_all_of_it_before_it_is_read_and_nothing_after(opened: Opened) -> None:
    """At the embedding the patch is the opposite vote itself; after the last block nothing reads the vote's token."""
    result = opened.patch_vote(EPISODES, expert=1, round=3)
    assert result.names == ("embed.hook_out", *HOOKS) and np.abs(result.full).min() > 1e-4
    assert np.allclose(result.patched[0], result.full, atol=1e-5)
    assert not np.allclose(result.control[0], result.full, atol=1e-5), "another expert's vote is another place"
    assert np.allclose(result.patched[2], 0, atol=1e-5) and np.allclose(result.control[2], 0, atol=1e-5)
    table = result.to_frame()
    assert table["restored"].tolist() == pytest.approx([1, table["restored"][1], 0], abs=1e-3)
    assert (table["restored_low"] <= table["restored"]).all() and (table["restored"] <= table["restored_high"]).all()


def test_votes_that_are_words_are_patched_whole(folder: Path) -> None:
    """In the weather framing a vote is a word; here each of its letters is a token."""
    weather = Opened.load(str(folder), prompt="Predict.", condition="weather-no-note")
    table = weather.patch_vote(EPISODES, expert=0, round=2, names=["embed.hook_out", HOOKS[1]]).to_frame()
    assert table["restored"].tolist() == pytest.approx([1, 0], abs=1e-3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda o: Opened.load("nowhere", condition="weather-note"), "a condition without notes"),
        (lambda o: o.play(EPISODES, ["blocks.9.hook_out"]), "unknown hook point 'blocks.9.hook_out'"),
        (lambda o: o.patch_vote(EPISODES, 4, 0), r"expert must be in \[0, 3\], got 4"),
        (lambda o: o.patch_vote(EPISODES, 0, 5), r"round must be in \[0, 4\], got 5"),
    ],
)
def test_bad_input_is_told(make: Any, message: str, opened: Opened) -> None:
    with pytest.raises(InputError, match=message):
        make(opened)


def test_a_position_or_hook_that_was_not_kept_is_told(played: OpenedRollout) -> None:
    with pytest.raises(InputError, match="unknown position 'Expert_E'"):
        played.at(HOOKS[0], "Expert_E")
    with pytest.raises(InputError, match="unknown cached hook point"):
        played.at("blocks.0.hook_in")
