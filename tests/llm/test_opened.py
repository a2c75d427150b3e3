"""A model opened while it learns: the cache across rounds changes nothing, probes and patches work by round."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import transformers

import probes
from interp.llm.local import load_model, render_prompt, tokenize, tokenize_answers
from interp.llm.notes import write_counts
from interp.llm.opened import Opened, OpenedRollout
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
def played(opened: Opened) -> OpenedRollout:
    return opened.play(EPISODES, HOOKS, batch=4)


def reread(model: Any, ids: list[int], choices: Any) -> tuple[Any, torch.Tensor]:
    """What the plain model makes of a whole conversation, and its share of the second of the choices."""
    with torch.no_grad():
        out = model(torch.tensor([ids]), output_hidden_states=True)
    return out, out.logits[0, -1, list(choices)].softmax(0)[1]


def find_token(tokenizer: Any, ids: list[int], mark: str) -> int:
    """Find the token behind the last place of a mark; one token is one byte here."""
    before, _, _ = tokenizer.decode(ids).rpartition(mark)
    return len(tokenizer(before + mark, add_special_tokens=False)["input_ids"])


@pytest.mark.long
@pytest.mark.parametrize("name", ["online-no-note", "online-note"])
def test_it_is_the_session_that_the_plain_model_plays(name: str, folder: Path) -> None:
    """Predictions and activations are those of the plain model that reads each whole conversation anew, with right
    counts in its notes: the cache of keys and values, the batch and the bridge change nothing."""
    condition = Condition.parse(name)
    run = Opened.load(str(folder), prompt="Predict.", condition=name).play(EPISODES, HOOKS, batch=4)
    model, tokenizer = load_model(str(folder))
    begin, choices, texts = tokenize_answers(tokenizer, condition)
    correct = EPISODES.correct.cumsum(1)
    for episode in (0, 5):  # of the first batch, and of the second
        session = Session(condition, "Predict.", EPISODES.advice[episode], EPISODES.labels[episode])
        for t in range(EPISODES.n_rounds):
            request = asked(session)
            ids = tokenize(tokenizer, render_prompt(tokenizer, request.messages)) + begin
            out, share = reread(model, ids, choices)
            assert torch.allclose(share, run.predictions[episode, t], atol=1e-5)
            hidden = out.hidden_states[1][0]
            tokens = {"answer": len(ids) - 1}
            for i, letter in enumerate("ABCD"):
                vote = find_token(tokenizer, ids, f'"Expert_{letter}": ')
                assert tokenizer.decode([ids[vote]]) == str(EPISODES.advice[episode, t, i])
                tokens[f"Expert_{letter}"] = vote
                if t > 0 and condition.has_note:
                    count = find_token(tokenizer, ids, f"{letter}:")
                    assert tokenizer.decode([ids[count]]) == str(correct[episode, t - 1, i])
                    tokens[f"count_{letter}"] = count
            for position, token in tokens.items():
                seen = run.at(HOOKS[0], position)[episode, t]
                assert torch.allclose(hidden[token], seen, atol=1e-4)
            session.feed(texts[int(share > 0.5)])
            if condition.has_note:
                session.feed(
                    json.dumps({"note": write_counts(correct[episode, t].tolist(), t + 1)})
                )


@pytest.mark.long
def test_results_say_the_prompt_and_the_seed_of_random_weights(
    opened: Opened, folder: Path
) -> None:
    first = EPISODES.select(slice(0, 1))
    run = opened.play(first, HOOKS[:1])
    assert run.settings["prompt"] == "Predict."
    assert run.settings["untrained"] is None
    assert run.settings["versions"]["transformers"] == transformers.__version__
    blank = Opened.load(str(folder), prompt="Other.", untrained=7)
    patch = blank.patch("vote", first, expert=0, round=1, names=HOOKS[:1])
    assert patch.settings["prompt"] == "Other."
    assert patch.settings["untrained"] == 7


@pytest.mark.long
def test_a_bridge_that_reads_no_cache_predicts_the_same(
    opened: Opened, played: OpenedRollout
) -> None:
    """From transformers 5.24 on no bridge reads one."""
    anew = Opened(opened.bridge, opened.tokenizer, opened.name, opened.prompt)
    anew.__dict__["can_use_cache"] = False
    predictions = anew.play(EPISODES, HOOKS, batch=4).predictions
    assert torch.allclose(predictions, played.predictions, atol=1e-5)


@pytest.mark.long
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


def test_votes_of_unequal_length_are_not_patched(tmp_path: Path) -> None:
    """Where "un" is one token, "sunny" has four and "rainy" five: what follows a vote would stand elsewhere."""
    folder = write_tiny_chat(tmp_path / "tiny")
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["un"] = vocabulary.pop(max(vocabulary))
    tokenizer["model"]["merges"] = [["u", "n"]]
    path.write_text(json.dumps(tokenizer))
    weather = Opened.load(str(folder), prompt="Predict.", condition="weather-no-note")
    message = "a vote and its opposite are not equally many tokens for this model"
    refuses(message, weather.patch, "vote", EPISODES, expert=0, round=2, batch=1)


NOTES = experts.sample(16, 9, 4, regime="uniform", seed=5)
COUNTS = targets.get("counts")(NOTES, "before").values


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that reads the count of expert C in every note, wherever notes begin with "A:3/9, B:8/9, "."""
    tokenizer, note = byte_tokenizer(), "A:3/9, B:8/9, C:7/9, D:2/9"
    condition = Condition.parse("online-note-only")
    request = Session(condition, "Predict.", NOTES.advice[0], NOTES.labels[0], note=note).next()
    assert request is not None
    prompt = render_prompt(tokenizer, request.messages)
    ids = tokenize(tokenizer, prompt) + tokenize_answers(tokenizer, condition)[0]
    # One token is one byte, but for the marks of a message.
    texts_up_to_a_token = [tokenizer.decode(ids[: i + 1]) for i in range(len(ids))]
    place = next(i for i, text in enumerate(texts_up_to_a_token) if text.endswith("C:7"))
    return write_count_reader(tmp_path_factory.mktemp("reader") / "model", place, len(ids) - 1)


@pytest.mark.long
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


@pytest.mark.long
def test_the_command_opens_a_condition_with_notes(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        Opened, "load", partial(Opened.load, prompt="Predict.")
    )  # ours are 2,000 tokens here
    options = "--episodes 10 --rounds 2 --condition online-note-only --every 3"
    printed("llm", "open", folder, *options.split(), "--out", tmp_path)
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
        (
            lambda o: o.play(EPISODES, ["blocks.0.attn.hook_pattern"]),
            "blocks.0.attn.hook_pattern have no axis of tokens after that of episodes",
        ),
        (
            lambda o: o.patch("vote", EPISODES, 4, 0),
            "expert must be an integer >= 0 and <= 3, got 4",
        ),
        (
            lambda o: o.patch("vote", EPISODES, 0, 5),
            "round must be an integer >= 0 and <= 4, got 5",
        ),
    ],
)
def test_bad_input_is_told(make: Any, message: str, opened: Opened) -> None:
    refuses(message, make, opened)


def test_a_position_or_hook_that_was_not_kept_is_told(played: OpenedRollout) -> None:
    refuses("unknown position 'Expert_E'", played.at, HOOKS[0], "Expert_E")
    refuses("unknown cached hook point", played.at, "blocks.0.hook_in")
