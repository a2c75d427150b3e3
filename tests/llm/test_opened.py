"""A model opened while it learns: the cache across rounds changes nothing, probes and patches work by round."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import probes
from interp.llm.local import answers, load_model, prompt_ids
from interp.llm.opened import _CONDITION, Opened, _OpenedRollout
from interp.llm.protocol import Session
from interp.llm.schemes import Condition
from interp.tasks import experts
from probes import targets
from tests.llm.conftest import asked
from tests.llm.tiny import byte_tokenizer, write_count_reader, write_tiny_chat
from tests.refusals import refuses
from tests.shell import printed

EPISODES = experts.sample(6, 5, 4, regime="uniform", seed=3)
HOOKS = ["blocks.0.hook_out", "blocks.1.hook_out"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_chat(tmp_path_factory.mktemp("hf") / "tiny")


@pytest.fixture(scope="module")
def opened(folder: Path) -> Opened:
    return Opened.load(str(folder), prompt="Predict.")


@pytest.fixture(scope="module")
def played(opened: Opened) -> _OpenedRollout:
    return opened.play(EPISODES, HOOKS, batch=4)


def reread(model: Any, ids: list[int], choices: Any) -> tuple[Any, torch.Tensor]:
    """What the plain model makes of a whole conversation, and its share of the second of the choices."""
    with torch.no_grad():
        out = model(torch.tensor([ids]), output_hidden_states=True)
    return out, out.logits[0, -1, list(choices)].softmax(0)[1]


def test_it_is_the_session_that_the_plain_model_plays(
    folder: Path, opened: Opened, played: _OpenedRollout
) -> None:
    """Predictions and activations are those of the plain model that reads each whole conversation anew: the cache of
    keys and values, the batch and the bridge change nothing. Nor does it where the bridge reads no cache."""
    anew = Opened(opened.bridge, opened.tokenizer, opened.name, opened.prompt)
    anew.__dict__["reads_on"] = not opened.reads_on
    if opened.reads_on:  # no longer so from transformers 5.24 on
        assert torch.allclose(
            anew.play(EPISODES, HOOKS, batch=4).predictions, played.predictions, atol=1e-5
        )
    model, tokenizer = load_model(str(folder))
    begin, choices, texts = answers(tokenizer, Condition.parse(_CONDITION))
    for episode in range(len(EPISODES)):
        session = Session(
            Condition.parse(_CONDITION),
            "Predict.",
            EPISODES.advice[episode],
            EPISODES.labels[episode],
        )
        for t in range(EPISODES.n_rounds):
            request = asked(session)
            ids = prompt_ids(tokenizer, request.messages) + begin
            out, share = reread(model, ids, choices)
            assert torch.allclose(share, played.predictions[episode, t], atol=1e-5)
            hidden = out.hidden_states[1][0]
            at_last_token = played.at(HOOKS[0])[episode, t]
            assert torch.allclose(hidden[-1], at_last_token, atol=1e-4)
            text = tokenizer.decode(ids)
            for i, key in enumerate(("Expert_A", "Expert_B", "Expert_C", "Expert_D")):
                # One token is one byte here, so that the vote's place in the text is its token.
                place = text.rindex(f'"{key}": ') + len(f'"{key}": ')
                n = len(tokenizer(text[:place], add_special_tokens=False)["input_ids"])
                assert tokenizer.decode([ids[n]]) == str(EPISODES.advice[episode, t, i])
                at_vote = played.at(HOOKS[0], key)[episode, t]
                assert torch.allclose(hidden[n], at_vote, atol=1e-4)
            session.feed(texts[int(share > 0.5)])


def test_every_activation_has_a_round_axis_and_probes_take_it(opened: Opened, folder: Path) -> None:
    """Votes are decoded at their own tokens, with all controls; what happened before them is not at the first block."""
    many = experts.sample(16, 4, 4, regime="uniform", seed=9)
    run = opened.play(many, HOOKS)
    blank = Opened.load(str(folder), prompt="Predict.", untrained=1).play(many, HOOKS)
    assert run.cache[HOOKS[0]].shape == (16, 4, 5, 32)
    assert run.predictions.shape == (16, 4)
    votes = many.advice[..., 2].astype(float)
    probe = probes.fit(run.at(HOOKS[0], "Expert_C"), votes)
    assert probe.r2 > 0.95
    counts = targets.get("counts")(many, "before")
    state = probes.fit(run.at(HOOKS[1]), counts, untrained=blank.at(HOOKS[1]))
    assert set(state.controls) >= {"shuffled", "inputs", "untrained"}


def test_a_patch_of_a_vote_restores_all_of_it_before_it_is_read_and_nothing_after(
    opened: Opened,
) -> None:
    """At the embedding the patch is the opposite vote itself; after the last block nothing reads the vote's token."""
    result = opened.patch("vote", EPISODES, expert=1, round=3)
    assert result.names == ("embed.hook_out", *HOOKS)
    assert np.abs(result.full).min() > 1e-4
    assert np.allclose(result.patched[0], result.full, atol=1e-5)
    assert not np.allclose(result.control[0], result.full, atol=1e-5), (
        "another expert's vote is another place"
    )
    assert np.allclose(result.patched[2], 0, atol=1e-5)
    assert np.allclose(result.control[2], 0, atol=1e-5)
    table = result.to_frame()
    assert len(table) == 3
    assert table["restored"][0] == pytest.approx(1, abs=1e-3)
    assert table["restored"][2] == pytest.approx(0, abs=1e-3)
    assert (table["restored_low"] <= table["restored"]).all()
    assert (table["restored"] <= table["restored_high"]).all()


def test_votes_that_are_words_are_patched_whole(folder: Path) -> None:
    """In the weather framing a vote is a word; here each of its letters is a token."""
    weather = Opened.load(str(folder), prompt="Predict.", condition="weather-no-note")
    table = weather.patch(
        "vote", EPISODES, expert=0, round=2, names=["embed.hook_out", HOOKS[1]]
    ).to_frame()
    assert table["restored"].tolist() == pytest.approx([1, 0], abs=1e-3)


NOTES = experts.sample(16, 9, 4, regime="uniform", seed=5)
COUNTS = targets.get("counts")(NOTES, "before").values


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that reads the count of expert C in every note, wherever notes begin with "A:3/9, B:8/9, "."""
    tokenizer, note = byte_tokenizer(), "A:3/9, B:8/9, C:7/9, D:2/9"
    condition = Condition.parse("online-note-only")
    request = Session(condition, "Predict.", NOTES.advice[0], NOTES.labels[0], note=note).next()
    assert request is not None
    ids = prompt_ids(tokenizer, request.messages) + answers(tokenizer, condition)[0]
    # One token is one byte, but for the marks of a message.
    texts_up_to_a_token = [tokenizer.decode(ids[: i + 1]) for i in range(len(ids))]
    place = next(i for i, text in enumerate(texts_up_to_a_token) if text.endswith("C:7"))
    return write_count_reader(tmp_path_factory.mktemp("reader") / "model", place, len(ids) - 1)


def test_a_model_that_reads_one_count_of_its_note_is_seen_to(reader: Path) -> None:
    """A planted reader of C's count: probes find that count at its token and, after the block that reads it, at the
    answer, and no other count there; a patch of it moves the choice until it has been read, a patch of A's never."""
    opened = Opened.load(str(reader), prompt="Predict.", condition="online-note-only")
    run = opened.play(NOTES, names := opened.residuals())
    assert run.positions[5:] == ("count_A", "count_B", "count_C", "count_D")
    assert run.at(names[0], "count_C")[:, 0].isnan().all(), "the first round has no note"
    assert np.array_equal(run.predictions[:, 1:].numpy() > 0.5, COUNTS[:, 1:, 2] > 4.5)
    counts = targets.get("counts")(NOTES, "before").rounds(8, 9)
    for hook, place, read in (
        (names[1], "count_C", True),
        (names[1], "answer", False),
        (names[2], "answer", True),
    ):
        fitted = probes.fit(run.at(hook, place)[:, 8:], counts)
        a, b, c, d = (score.estimate for score in fitted.by_output.values())
        where = (hook, place, fitted.by_output)
        assert (c > 0.9) == read, where
        assert read or c < 0.2, where
        assert max(a, b, d) < 0.2, where
    table = opened.patch("count", NOTES, expert=2, round=8).to_frame()
    assert table["restored"].tolist() == pytest.approx([1, 1, 0], abs=1e-3)
    moved_share = (COUNTS[:, 8, 2] != 4).mean()  # 4 of 8 becomes 0 of 8, which is on the same side
    assert moved_share > 0.7
    assert table["restored_moves"].tolist() == [moved_share, moved_share, 0]
    assert (table["full_moves"] == moved_share).all()
    assert table["control"].abs().max() < 1e-3
    assert (table["control_moves"] == 0).all()
    unread = opened.patch("count", NOTES, expert=0, round=8).to_frame()
    assert unread["full"].max() < 1e-6
    assert unread["restored"].isna().all()
    assert (unread["full_moves"] == 0).all()


def test_notes_stand_in_the_conversation_and_nothing_else_changes(folder: Path) -> None:
    """With its history, too, an opened model is the plain one that reads each conversation with right counts in it."""
    condition, few = Condition.parse("online-note"), EPISODES.select(slice(0, 2))
    run = Opened.load(str(folder), prompt="Predict.", condition=condition.name).play(few, HOOKS[:1])
    model, tokenizer = load_model(str(folder))
    begin, choices, texts = answers(tokenizer, condition)
    for episode, counts in enumerate(targets.get("counts")(few, "before").values.astype(int)):
        session = Session(condition, "Predict.", few.advice[episode], few.labels[episode])
        for t in range(3):
            request = asked(session)
            ids = prompt_ids(tokenizer, request.messages) + begin
            out, share = reread(model, ids, choices)
            assert torch.allclose(share, run.predictions[episode, t], atol=1e-5)
            for letter, count in zip("ABCD", counts[t], strict=True):
                text = tokenizer.decode(ids)
                before = text[: text.rindex(f"{letter}:{count}/{t}") + 2] if t else ""
                place = len(tokenizer(before, add_special_tokens=False)["input_ids"])
                seen = run.at(HOOKS[0], f"count_{letter}")[episode, t]
                if t == 0:
                    assert seen.isnan().all()
                else:
                    assert torch.allclose(out.hidden_states[1][0, place], seen, atol=1e-4)
            session.feed(texts[int(share > 0.5)])
            right = few.advice[episode] == few.labels[episode][:, None]
            right_so_far = right[: t + 1].sum(0)
            note = ", ".join(
                f"{letter}:{n}/{t + 1}" for letter, n in zip("ABCD", right_so_far, strict=True)
            )
            session.feed(f'{{"note": "{note}"}}')


def test_the_command_opens_a_condition_with_notes(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        Opened, "load", partial(Opened.load, prompt="Predict.")
    )  # ours are 2,000 tokens here
    options = [
        "--episodes",
        "10",
        "--rounds",
        "2",
        "--condition",
        "online-note-only",
        "--every",
        "3",
    ]
    printed("llm", "open", folder, *options, "--out", tmp_path)
    assert set(pd.read_csv(tmp_path / "patch.csv")["of"]) == {"vote", "count"}
    assert {"answer", "count_A", "count_D"} < set(pd.read_csv(tmp_path / "probe.csv")["position"])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda o: Opened.load("nowhere", condition="weather-notes"),
            "unknown condition 'weather-notes'",
        ),
        (
            lambda o: o.patch("count", EPISODES, 0, 1),
            "counts stand in notes, and online-no-note has none",
        ),
        (
            lambda o: o.play(EPISODES, ["blocks.9.hook_out"]),
            "unknown hook point 'blocks.9.hook_out'",
        ),
        (lambda o: o.patch("vote", EPISODES, 4, 0), r"expert must be in \[0, 3\], got 4"),
        (lambda o: o.patch("vote", EPISODES, 0, 5), r"round must be in \[0, 4\], got 5"),
    ],
)
def test_bad_input_is_told(make: Any, message: str, opened: Opened) -> None:
    refuses(message, make, opened)


def test_a_position_or_hook_that_was_not_kept_is_told(played: _OpenedRollout) -> None:
    refuses("unknown position 'Expert_E'", played.at, HOOKS[0], "Expert_E")
    refuses("unknown cached hook point", played.at, "blocks.0.hook_in")
