"""Tables of choices as people keep them: what was on offer, what was missed, whose session, in which unit.

Players of Rescorla-Wagner (rate .4, inverse temperature 4) write tables of eleven kinds. The likelihood of what was
read is held against that of one loop, which knows nothing of the package; so is a fit where options change, and where
trials are forced.
"""

import gzip
import json
import zipfile

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from scipy import optimize

from interp.choices.explain import explain_choices
from interp.cli import options
from interp.tasks import bandit, experts, qlearning
from interp.tasks.table_file import MOST_BYTES
from tests.refusals import refuses

RATE, BETA = 0.4, 4.0
FAMILIES = [bandit.TASK.rivals()[key] for key in ("rescorla_wagner", "fixed_bias")]


def play(n_people=10, n_trials=80, pairs=((0, 1),), forced=0.0, seed=0):
    """Trials of players: whose, when, what was on offer, the arm, what it paid, whether it was forced."""
    rng = np.random.default_rng(seed)
    chances = np.array([0.8, 0.2, 0.7, 0.3])
    rows = []
    for person in range(n_people):
        values = np.zeros(4)
        for trial in range(n_trials):
            pair = pairs[rng.integers(len(pairs))]
            left, right = rng.permutation(pair).tolist()
            if trial % 20 == 0:
                chances = 1 - chances
            is_forced = rng.random() < forced
            gap = BETA * (values[right] - values[left])
            chance_of_left = 0.5 if is_forced else 1 / (1 + np.exp(gap))
            takes_left = rng.random() < chance_of_left
            arm = left if takes_left else right
            reward = float(rng.random() < chances[arm])
            values[arm] += RATE * (reward - values[arm])
            rows.append((f"s{person:02}", trial + 1, left, right, arm, reward, int(is_forced)))
    return pd.DataFrame(
        rows, columns=["subject", "trial", "left", "right", "arm", "reward", "forced"]
    )


def test_an_option_names_a_column_that_is_called_by_a_number(tmp_path):
    """--recorded FILE choice=1; a code of missed trials stays a number."""
    trials = play(n_people=2, n_trials=20).rename(columns={"arm": "1"})
    trials[["subject", "1", "reward"]].to_csv(tmp_path / "people.csv", index=False)
    words = [str(tmp_path / "people.csv"), "choice=1", "missed=-9"]
    assert options.read(bandit.TASK, words).counted.sum() == 40


def nats(point, trials, unit=1.0):
    """Nats of all free choices by one loop; a missed trial (reward NaN) is skipped, a forced one is learned from."""
    rate, beta = point
    total = 0.0
    for _, rows in trials.groupby("subject", sort=False):
        values = dict.fromkeys(range(4), 0.0)
        for row in rows.itertuples():
            if np.isnan(row.arm):
                continue
            alternative = row.left if row.arm == row.right else row.right
            if not row.forced:
                gap = beta * (values[alternative] - values[row.arm])
                total += np.log1p(np.exp(gap))
            if not np.isnan(row.reward):
                error = row.reward / unit - values[row.arm]
                values[row.arm] += rate * error
    return total


def likeliest(trials):
    """Rate and inverse temperature of the greatest likelihood, by scipy."""
    start, bounds = [0.4, 4.0], [(0.01, 1.0), (0.1, 40.0)]
    minimum = optimize.minimize(nats, start, trials, method="L-BFGS-B", bounds=bounds)
    return minimum.x


def lost(episodes):
    """Nats of all scored choices, by the package's family at a point."""
    algorithm = FAMILIES[0].make(rate=RATE, inverse_temperature=BETA)
    chances = algorithm.distribution(algorithm.run(episodes))
    chosen = np.take_along_axis(chances, episodes.choices[..., None], -1)[..., 0]
    nats_of_choices = -np.log(chosen)
    return nats_of_choices[episodes.scored].sum()


def fitted(episodes):
    """Rate and inverse temperature that the package fits."""
    result = explain_choices(episodes, episodes.choices, families=FAMILIES)
    assert result.closest == "rescorla_wagner"
    return [result.parameters["rate"], result.parameters["inverse_temperature"]]


@pytest.fixture
def written(tmp_path):
    """Write a table, and read it."""

    def read(table, **how):
        table.to_csv(tmp_path / "people.csv", index=False)
        return bandit.read(tmp_path / "people.csv", **how)

    return read


SIDES = play(pairs=((0, 1), (2, 3)))


def as_sides(trials):
    """The table of an experiment with two of four stimuli a trial, whose response is a key."""
    table = trials[["subject"]].copy()
    table["arm_left"] = trials["left"] + 1
    table["arm_right"] = trials["right"] + 1
    table["type"] = np.where(trials["left"] < 2, 12, 34)
    table["response"] = np.where(trials["arm"] == trials["left"], "left", "right")
    table["reward"] = trials["reward"]
    return table


@pytest.mark.long
def test_where_options_change_a_choice_is_of_what_was_on_offer(written):
    episodes = written(as_sides(SIDES), options=["arm_left", "arm_right"])
    assert episodes.arms == ("1", "2", "3", "4")
    assert (episodes.choices.ravel() == SIDES["arm"]).all()
    sides = SIDES[["left", "right"]].to_numpy()
    assert (episodes.offers.reshape(-1, 2) == sides).all()
    assert_allclose(fitted(episodes), likeliest(SIDES), rtol=0.01)
    assert (
        "A choice names a side: left is arm_left, right is arm_right." in episodes.reading.summary()
    )


def test_a_family_gives_no_chance_to_what_was_not_on_offer(written):
    episodes = written(as_sides(SIDES), options=["arm_left", "arm_right"])
    algorithm = FAMILIES[0].make(rate=RATE, inverse_temperature=BETA)
    chances = algorithm.distribution(algorithm.run(episodes))
    assert_allclose(chances.sum(-1), 1)
    assert (chances[~episodes.offered] == 0).all()
    assert lost(episodes) == pytest.approx(nats((RATE, BETA), SIDES))


def test_pairs_say_what_was_on_offer(written):
    table = as_sides(SIDES).assign(response=SIDES["arm"] + 1)
    episodes = written(table.drop(columns=["arm_left", "arm_right"]), pairs="type")
    assert lost(episodes) == pytest.approx(nats((RATE, BETA), SIDES))
    assert "On offer, by 'type': " in episodes.reading.summary()
    assert "34: 3 or 4" in episodes.reading.summary()


def test_columns_that_look_like_an_offer_are_named_where_they_are_not_used(written):
    summary = written(as_sides(SIDES)).reading.summary()
    assert "'arm_left', 'arm_right' look like what was on offer" in summary
    assert "--options arm_left arm_right" in summary


@pytest.mark.parametrize(("left", "right"), [("stimL", "stimR"), ("imgA", "img2")])
def test_columns_of_offers_are_known_by_camel_case_or_by_what_stands_in_them(written, left, right):
    table = as_sides(SIDES).rename(columns={"arm_left": left, "arm_right": right})
    summary = written(table.drop(columns="type")).reading.summary()
    assert f"give options={left} {right}" in summary


@pytest.mark.parametrize("response", ["side", "option"])
def test_a_column_of_pairs_that_is_not_used_is_named(written, response):
    table = as_sides(SIDES).drop(columns=["arm_left", "arm_right"])
    if response == "option":
        table["response"] = SIDES["arm"] + 1
    assert "give pairs=type (--pairs type)" in written(table).reading.summary()


def test_sides_are_no_options_of_pairs(written):
    refuses(
        "the choices are left, right in each of its pairs: they say a side",
        written,
        as_sides(SIDES),
        pairs="type",
    )


@pytest.mark.parametrize(
    ("sides", "labels"), [(["j", "f"], ("j", "f")), (None, (0, 1)), (None, ("L", "R"))]
)
def test_sides_are_known_by_name_by_number_or_as_they_are_given(written, sides, labels):
    key = np.where(SIDES["arm"] == SIDES["left"], *labels)
    table = as_sides(SIDES).assign(response=key)
    episodes = written(table, options=["arm_left", "arm_right"], sides=sides)
    assert (episodes.choices.ravel() == SIDES["arm"]).all()


def test_rewards_that_look_like_running_totals_are_named(written):
    """Logs of experiments often hold the points so far; a few rewards that rise by chance are no sign of that."""
    hint = "Rewards never fall from trial to trial: if the column holds running totals, give their differences."
    totals = PLAIN.assign(reward=PLAIN.groupby("subject")["reward"].cumsum())
    assert hint in written(totals).reading.summary()
    assert hint not in written(PLAIN).reading.summary()
    first_trials = totals[totals["trial"] <= 2]
    assert hint not in written(first_trials).reading.summary()


def test_a_choice_that_may_be_an_arm_or_a_side_is_named(written):
    trials = PLAIN.rename(columns={"arm": "choice"})
    summary = written(trials, options=["left", "right"]).reading.summary()
    assert "choices are read as arms; if they name sides, give sides=" in summary
    is_right = (PLAIN["arm"] == PLAIN["right"]).astype(int)
    episodes = written(trials.assign(choice=is_right), options=["left", "right"], sides=["0", "1"])
    assert lost(episodes) == pytest.approx(nats((RATE, BETA), PLAIN))


def test_sides_that_nobody_can_know_are_asked_for(written):
    key = np.where(SIDES["arm"] == SIDES["left"], "f", "j")
    table = as_sides(SIDES).assign(response=key)
    refuses(
        "'response' is none of the options .*give sides=",
        written,
        table,
        options=["arm_left", "arm_right"],
    )
    refuses(
        r"'response' is none of the sides f, k, got j; write .* or give missed=j \(--missed j\)",
        written,
        table,
        options=["arm_left", "arm_right"],
        sides=["f", "k"],
    )


def test_rows_that_are_in_a_table_twice_are_named(written):
    """A file that was appended to itself, or joined with a table of two rows a person, counts each trial twice."""
    table = PLAIN[["subject", "arm", "reward"]]
    twice = pd.concat([table, table])
    in_pairs = table.loc[table.index.repeat(2)]
    for doubled in (twice, in_pairs):
        summary = written(doubled).reading.summary()
        n_copies = doubled.duplicated().sum()
        assert f"{n_copies} rows are equal to an earlier one, such as line" in summary
    assert "earlier one" not in written(table).reading.summary()


@pytest.mark.parametrize(("no", "yes"), [("false", "true"), ("FALSE", "TRUE"), ("False", "True")])
def test_rewards_that_are_truth_values_are_0_and_1_in_csv_as_in_json(written, tmp_path, no, yes):
    table = PLAIN[["subject", "arm"]]
    words = np.where(PLAIN["reward"] == 1, yes, no)
    lines = tmp_path / "people.jsonl"
    table.assign(reward=PLAIN["reward"] == 1).to_json(lines, orient="records", lines=True)
    by_csv = written(table.assign(reward=words))
    assert (by_csv.rewards.ravel() == PLAIN["reward"]).all()
    assert (by_csv.rewards == bandit.read(lines).rewards).all()


PLAIN = play()
MISSED = PLAIN["trial"] % 9 == 4
ARM_UNLESS_MISSED = PLAIN["arm"].where(~MISSED)
REWARD_UNLESS_MISSED = PLAIN["reward"].where(~MISSED)
AFTER_MISSED = PLAIN.assign(arm=ARM_UNLESS_MISSED, reward=REWARD_UNLESS_MISSED)


def with_code(choice, reward):
    """A table of keys 1 and 2 in which missed trials have a code."""
    table = PLAIN[["subject", "trial"]].astype(object)
    keys = PLAIN["arm"] + 1
    table["choice"] = keys.astype(object).where(~MISSED, choice)
    table["reward"] = PLAIN["reward"].astype(object).where(~MISSED, reward)
    return table


CODES = [(-999, -999), (-1, -1), (9, 9), ("miss", "miss"), ("timeout", 0), (".", "."), (0, 0)]


@pytest.mark.parametrize(("choice", "reward"), CODES, ids=[str(code[0]) for code in CODES])
def test_a_code_of_missed_trials_is_asked_about_then_missed(written, choice, reward):
    table = with_code(choice, reward)
    refuses(rf"is '{choice}' .*code of a missed trial.*\(--missed {choice}\)", written, table)
    episodes = written(table, missed=[choice])
    assert episodes.arms == ("1", "2")
    assert episodes.scale == 1
    assert episodes.reading.missed == MISSED.sum()
    assert lost(episodes) == pytest.approx(nats((RATE, BETA), AFTER_MISSED))


@pytest.mark.parametrize(
    ("code", "arms"),
    [
        (99.9, (1, 2)),
        (77, (1, 2)),
        (0, (49, 50)),
        (0, (-1, 1)),
        (-1, (0, 1)),
        (-1, ("left", "right")),
        ("undefined", ("left", "right")),
    ],
    ids=[
        "fraction",
        "far",
        "below keys",
        "between",
        "below",
        "number among words",
        "word of JavaScript",
    ],
)
def test_a_label_that_does_not_fit_the_others_is_asked_about(written, code, arms):
    table = with_code(code, 0)
    keys_and_code = np.array([*arms, code], object)
    keys = keys_and_code[np.where(MISSED, 2, PLAIN["arm"])]
    refuses(f"is '{code}' .*code of a missed trial", written, table.assign(choice=keys))


def test_a_rare_arm_that_always_pays_the_same_is_named(written):
    summary = written(with_code(3, 0)).reading.summary()
    assert f"'3' (in {MISSED.sum()} trials, all with one reward) may be the code" in summary


def test_blank_cells_are_missed_trials(written):
    episodes = written(with_code("", "NA"))
    assert episodes.reading.missed == MISSED.sum()
    n_played = (~MISSED).sum()
    assert int(episodes.counted.sum()) == n_played


def test_labels_that_only_look_like_codes_are_arms_where_the_user_says_so(written):
    assert written(with_code(-1, 0), missed="none").arms == ("-1", "1", "2")


def test_a_reward_that_looks_like_a_code_is_asked_about(written):
    reward = PLAIN["reward"].where(~MISSED, -999)
    table = PLAIN[["subject", "arm"]].assign(reward=reward)
    refuses("is -999 the code of a missed trial", written, table, choice="arm")


NUMBERED = PLAIN[["subject", "trial", "arm", "reward"]]
IS_GAP = PLAIN["subject"].isin(["s01", "s02"]) & PLAIN["trial"].isin([3, 4])
GAP_REMARK = (
    "'trial' leaves out numbers in 2 places, in 2 participants, such as after 2, before line 84: the trials on both "
    "sides count as successive. Add the rows of trials that were played; a row with empty cells is a missed trial, in "
    "which nothing is learned."
)

SESSIONS = play(n_people=20)


def in_sessions(trials, run, trial):
    """Two players as two sessions of one person each."""
    person = trials["subject"].str[1:].astype(int)
    table = pd.DataFrame({"subject": person // 2, run: person % 2 + 1, trial: trials["trial"]})
    return table.assign(key=trials["arm"], reward=trials["reward"])


@pytest.mark.parametrize(
    ("run", "trial"),
    [("run", "trialNum"), ("block_num", "trial_index"), ("Session", "trial number")],
)
def test_sessions_and_order_are_known_by_their_usual_names(written, run, trial):
    table = in_sessions(SESSIONS, run, trial).sample(frac=1, random_state=0)
    episodes = written(table)
    assert episodes.reading.columns["session"] == (run,)
    assert episodes.reading.columns["order"] == (trial,)
    assert (episodes.reading.participants, episodes.reading.sessions) == (10, 20)
    assert lost(episodes) == pytest.approx(nats((RATE, BETA), SESSIONS))


def test_columns_that_nobody_spells_so_are_named(written):
    table = in_sessions(SESSIONS, "part", "n")
    assert "'n' counts up and restarts within a participant" in written(table).reading.summary()
    assert len(written(table, session="part", order="n")) == 20
    refuses(
        "comes a second time in a session; name the column of sessions, such as 'part'",
        written,
        table,
        order="n",
    )


@pytest.mark.parametrize("unit", ["s", "ms"])
def test_reaction_times_are_not_proposed_as_sessions(written, unit):
    """A trial number stands in two rows, which differ in their reaction times."""
    times = np.random.default_rng(0).uniform(0.2, 0.9, len(PLAIN))
    milliseconds = (1000 * times).round().astype(int)
    column = {"s": times, "ms": milliseconds}[unit]
    timed = PLAIN[["subject", "trial", "arm", "reward"]].assign(RT=column)
    again = timed.iloc[3:5].assign(RT=column[:2])
    rows = pd.concat([timed, again])
    refuses("comes a second time in a session; name the column of sessions with", written, rows)


def test_a_column_that_stays_the_same_for_many_trials_is_named(written):
    table = in_sessions(SESSIONS, "day", "n").assign(age=30)
    summary = written(table).reading.summary()
    assert "'day' stays the same for 80 trials and is not used" in summary
    assert "'age'" not in summary


def test_a_name_that_stands_for_two_people_is_named(written):
    """Both groups have persons of the same names, and the rows of the second group follow the first."""
    table = (
        in_sessions(SESSIONS, "group", "n").drop(columns="n").sort_values("group", kind="stable")
    )
    (remark,) = written(table).reading.remarks
    assert remark.startswith("'group' stays the same for 80 trials and is not used")


def test_a_column_of_sessions_is_named_where_the_rows_of_participants_alternate(written):
    table = NUMBERED.assign(day=PLAIN["trial"] // 41).sort_values("trial", kind="stable")
    (remark,) = written(table.drop(columns="trial")).reading.remarks
    assert remark.startswith("'day' stays the same for 40 trials and is not used")


def test_a_column_that_counts_with_gaps_is_named(written):
    table = NUMBERED[~IS_GAP].rename(columns={"trial": "n"})
    (remark,) = written(table).reading.remarks
    assert remark.startswith("'n' counts up within a participant and is not used")
    assert written(table, order="n").reading.remarks == (GAP_REMARK.replace("trial'", "n'"),)


def test_an_empty_column_of_choices_is_refused(written):
    refuses("must hold two arms or more, got", written, NUMBERED.assign(arm=np.nan))


def test_a_label_of_a_session_that_returns_is_a_new_session(written):
    is_second = (PLAIN["trial"] - 1) // 20 % 2
    block = np.where(is_second, "B", "A")
    table = PLAIN[["subject", "trial", "arm", "reward"]].assign(block=block)
    episodes = written(table)
    assert len(episodes) == 4 * 10
    assert set(episodes.lengths) == {20}
    assert (
        "returns 20 times after another one; each time is a new session"
        in episodes.reading.summary()
    )


def test_a_label_that_alternates_is_no_session(written):
    table = PLAIN[["subject", "trial", "arm", "reward"]].assign(block=PLAIN["trial"] % 2)
    refuses("changes after 1 trials on average and returns", written, table)
    assert len(written(table, session="none")) == 10


def test_one_large_loss_does_not_move_the_unit(written):
    table = PLAIN[["subject", "arm"]].assign(reward=PLAIN["reward"] * 100)
    table.loc[79, "reward"] = -1150  # in the last trial of a player, who learns no more
    episodes = written(table)
    assert episodes.scale == 100
    assert "A reward of 1 is 100 of reward." in episodes.reading.summary()
    trials = PLAIN.assign(reward=table["reward"])
    assert lost(episodes) == pytest.approx(nats((RATE, BETA), trials, unit=100.0))


FORCED = play(n_trials=120, forced=0.3)


@pytest.mark.long
def test_forced_trials_are_learned_from_and_not_scored(written):
    table = FORCED[["subject", "arm", "reward", "forced"]]
    episodes = written(table, forced="forced")
    assert_allclose(fitted(episodes), likeliest(FORCED), rtol=0.01)


@pytest.mark.parametrize("name", ["instructed", "free", "trial_type"])
def test_a_column_of_forced_trials_that_is_not_used_is_named(written, name):
    table = FORCED[["subject", "arm", "reward"]].assign(**{name: FORCED["forced"]})
    if name == "trial_type":
        table[name] = np.where(FORCED["forced"], "forced", "free")
    assert f"give forced={name} (--forced {name})" in written(table).reading.summary()


def test_a_column_of_free_trials_says_which_were_forced(written):
    table = FORCED[["subject", "arm", "reward"]].assign(free=1 - FORCED["forced"])
    episodes = written(table, forced="free")
    assert (episodes.forced.ravel() == FORCED["forced"]).all()


def test_the_word_forced_means_forced_whatever_the_column_is_called(written):
    words = np.where(FORCED["forced"], "forced", "free")
    table = FORCED[["subject", "arm", "reward"]].assign(free_or_forced=words)
    episodes = written(table, forced="free_or_forced")
    assert (episodes.forced.ravel() == FORCED["forced"]).all()


def test_gains_and_losses_are_summed(written):
    gain = PLAIN["reward"] * 10
    loss = np.where(PLAIN["reward"], 0, -5)
    table = PLAIN[["subject", "arm"]].assign(gain=gain, loss=loss)
    episodes = written(table, reward=["gain", "loss"])
    points = episodes.rewards * episodes.scale
    assert set(np.unique(points)) == {-5, 10}
    turned = written(table.assign(loss=-table["loss"]))
    points = turned.rewards * turned.scale
    assert set(np.unique(points)) == {-5, 10}
    assert "'loss' is subtracted from the reward" in turned.reading.summary()


def test_a_choice_without_a_reward_keeps_the_choice(written):
    unpaid = PLAIN["trial"] % 7 == 3
    trials = PLAIN.assign(reward=PLAIN["reward"].where(~unpaid))
    episodes = written(trials[["subject", "trial", "arm", "reward"]])
    assert int(episodes.scored.sum()) == len(PLAIN)
    assert lost(episodes) == pytest.approx(nats((RATE, BETA), trials))


@pytest.mark.parametrize(
    ("names", "alike"),
    [(("001", "01"), "'001' and '01'"), (("1e5", "100000"), "'100000' and '1e5'")],
)
def test_names_are_texts_and_lookalikes_are_asked_about(written, names, alike):
    table = PLAIN[["subject", "trial", "arm", "reward"]]
    table = table.replace({"subject": {"s00": names[0], "s01": names[1]}})
    refuses(f"{alike} look alike; give lookalikes=same", written, table)
    assert written(table, lookalikes="different").reading.participants == 10


def test_lookalike_labels_are_one_arm_where_the_user_says_so(written):
    spellings = np.where(PLAIN["trial"] % 2, "L", "l")
    labels = np.where(PLAIN["arm"] == 0, spellings, "r")
    table = PLAIN[["subject", "reward"]].assign(choice=labels)
    refuses("'L' and 'l' look alike", written, table)
    assert len(written(table, lookalikes="same").arms) == 2


def test_times_are_no_choices(written):
    times = 0.3 + np.arange(len(PLAIN)) % 13 / 1000
    table = PLAIN[["subject", "reward"]].assign(response=times, key=PLAIN["arm"])
    assert written(table).reading.columns["choice"] == ("key",)
    refuses("13 different numbers, as measurements do", written, table, choice="response")
    in_ms = table.assign(response=(times * 1000).round().astype(int))
    assert written(in_ms).reading.columns["choice"] == ("key",)
    refuses("13 different numbers", written, in_ms.drop(columns="key"))


def test_many_arms_are_refused_unless_told(written):
    choice = [f"a{i % 25}" for i in range(len(PLAIN))]
    table = PLAIN[["subject", "reward"]].assign(choice=choice)
    refuses(r"holds 25 arms, more than 20; .*--most-arms 25", written, table)
    assert len(written(table, most_arms=25).arms) == 25


def test_a_column_that_is_named_is_not_guessed_for_another_role(written):
    table = PLAIN[["subject", "trial", "arm", "reward"]].assign(block=PLAIN["forced"])
    columns = written(table, forced="block").reading.columns
    assert columns["forced"] == ("block",)
    assert "session" not in columns


def test_an_id_of_rows_is_no_participant(written):
    table = PLAIN[["arm", "reward"]].assign(id=range(len(PLAIN)))
    refuses("differs in every row, so that each participant would have one trial", written, table)
    assert len(written(table, participant="none")) == 1


@pytest.mark.parametrize("cell", ["inf", "9" * 400])
def test_a_reward_that_is_not_finite_is_refused_with_its_line(written, cell):
    table = PLAIN[["subject", "arm", "reward"]].astype(object)
    table.loc[3, "reward"] = cell
    refuses("line 5 of .*: 'reward' must be a finite number, got", written, table)


@pytest.mark.parametrize(
    ("read", "names", "message"),
    [
        (qlearning.read, {"state": 1}, "state must be a text or a list of .*, got 1"),
        (experts.read, {"advice": [1, 2]}, r"advice must be a text or a list of .*, got \[1, 2\]"),
    ],
)
def test_a_column_that_is_named_by_a_number_is_refused_by_its_role(tmp_path, read, names, message):
    PLAIN.to_csv(tmp_path / "people.csv", index=False)
    refuses(message, read, tmp_path / "people.csv", **names)


def test_the_index_of_a_data_frame_is_no_column(tmp_path):
    table = PLAIN[["subject", "arm", "reward"]]
    table.to_csv(tmp_path / "people.csv")
    reading = bandit.read(tmp_path / "people.csv").reading
    assert reading.unused == ()
    assert reading.remarks == ()


def test_a_trial_that_is_in_the_table_twice_is_refused(written):
    twice = pd.concat([PLAIN, PLAIN.iloc[3:5]])
    message = "comes a second time in a session.*in the table twice, delete one of its rows"
    refuses(message, written, twice[["subject", "trial", "arm", "reward"]])


def test_a_trial_that_is_twice_in_a_table_with_sessions_is_no_session_of_its_own(written):
    """The second row of the trial stands after rows of other sessions, and has its block's label."""
    table = in_sessions(SESSIONS, "block", "trial")
    twice = pd.concat([table, table.iloc[3:4]])
    refuses("'trial' comes a second time in a session.*delete one of its rows", written, twice)


def test_a_row_that_is_in_a_table_without_order_twice_is_named(written):
    """The response times tell the other rows apart; without them equal rows are no surprise."""
    timed = PLAIN[["subject", "arm", "reward"]].assign(rt=np.arange(len(PLAIN)) / 1000)
    (remark,) = written(pd.concat([timed, timed.iloc[3:4]])).reading.remarks
    assert f"1 rows are equal to an earlier one, such as line {len(timed) + 2}:" in remark
    untimed = timed.drop(columns="rt")
    assert written(pd.concat([untimed, untimed.iloc[3:4]])).reading.remarks == ()


def test_trial_numbers_with_gaps_are_named(written):
    """Trials 3 and 4 of two participants are no rows: trial 5 would follow trial 2 without a word."""
    table = NUMBERED[~IS_GAP]
    assert written(table).reading.remarks == (GAP_REMARK,)
    assert written(table, order="none").reading.remarks == (GAP_REMARK,)
    shuffled = table.sample(frac=1, random_state=0)
    (remark,) = written(shuffled).reading.remarks
    assert "in 2 places, in 2 participants, such as after 2" in remark
    with_empty_cells = NUMBERED.astype(object)
    with_empty_cells.loc[IS_GAP, ["arm", "reward"]] = np.nan
    assert written(NUMBERED).reading.remarks == ()
    assert written(with_empty_cells).reading.missed == 4
    assert written(with_empty_cells).reading.remarks == ()


def test_a_session_that_begins_late_has_a_gap_before_it(written):
    is_late = (PLAIN["subject"] == "s02") & (PLAIN["trial"] <= 5)
    (remark,) = written(NUMBERED[~is_late]).reading.remarks
    assert "in 1 places, in 1 participants, such as after 0, before line 162:" in remark


@pytest.mark.parametrize(
    "kind", ["from 0", "every second", "over sessions", "over people", "times"]
)
def test_other_ways_to_number_trials_have_no_gap(written, kind):
    """Numbers may continue in the next session or person, and may be times."""
    trial = PLAIN["trial"]
    milliseconds = 1500 * trial + np.random.default_rng(0).integers(0, 900, len(PLAIN))
    numbers = {
        "from 0": trial - 1,
        "every second": 2 * trial,
        "over sessions": trial,
        "over people": np.arange(len(PLAIN)),
        "times": milliseconds,
    }
    table = NUMBERED.assign(trial=numbers[kind])
    if kind == "over sessions":
        table["block"] = (trial - 1) // 20
    assert written(table).reading.remarks == ()


def test_practice_trials_are_named(written):
    practice = PLAIN["trial"] - 4
    numbers = practice.where(practice > 0, practice - 1)  # -4, ..., -1, 1, ...
    (remark,) = written(NUMBERED.assign(trial=numbers)).reading.remarks
    assert remark == (
        "'trial' is 0 or less in 40 rows, such as line 2, as in practice trials: they count as ordinary trials; to "
        "leave them out, delete their rows."
    )


def test_trial_numbers_that_do_not_rise_are_named_where_they_are_not_used(written):
    """Trial 3 is twice in the table, with two rewards, so that no row is a copy of another one."""
    third = NUMBERED.iloc[2:3]
    again = third.assign(reward=1 - third["reward"])
    twice = pd.concat([NUMBERED.iloc[:3], again, NUMBERED.iloc[3:]])
    (remark,) = written(twice, order="none").reading.remarks
    assert remark.startswith("'trial' does not rise in 1 rows, such as line 5:")
    assert remark.endswith("delete what is in the table twice, and sort rows by time.")


@pytest.mark.parametrize(("name", "length"), [("run", 1), ("block", 2)])
def test_sessions_of_few_trials_are_named(written, name, length):
    """A column that counts trials or pairs of trials is called as columns of sessions are."""
    table = NUMBERED.assign(**{name: np.arange(len(PLAIN)) // length})
    (remark,) = written(table).reading.remarks
    assert remark == (
        f"Sessions by '{name}' have {length} trials on average, and learning begins anew in each: if that is not "
        "meant, name the column of sessions with session=, or give session=none."
    )


def test_participants_who_call_the_same_arms_differently_are_named(written):
    """Half of them have the arms 0 and 1, the other half 1 and 2: nobody has all three."""
    is_late = PLAIN["subject"] >= "s05"
    (remark,) = written(NUMBERED.assign(arm=PLAIN["arm"] + is_late)).reading.remarks
    assert remark.startswith("No session has choices of all 3 arms: if not all were on offer, give")
    sides = as_sides(SIDES).drop(columns="type")
    assert written(sides, options=["arm_left", "arm_right"]).reading.remarks == (
        "A choice names a side: left is arm_left, right is arm_right.",
    )


def test_decimals_of_which_all_have_three_digits_are_no_thousands(written):
    rewards = PLAIN["reward"].map({0.0: "1.500", 1.0: "2.000"})
    episodes = written(NUMBERED.assign(reward=rewards))
    assert episodes.scale == 2
    beside_a_whole = PLAIN["reward"].map({0.0: "1.500", 1.0: "2"})
    episodes = written(NUMBERED.assign(reward=beside_a_whole), decimal=".")
    assert episodes.scale == 2


def test_a_separator_of_thousands_is_no_decimal_point(written):
    rewards = PLAIN["reward"].map({0.0: "0,5", 1.0: "1.000"})
    table = PLAIN[["subject", "arm"]].assign(reward=rewards)
    refuses("'reward' must be a number, got 1.000", written, table, decimal=",")


@pytest.mark.parametrize(("decimal", "cell"), [(",", ".5"), (".", ",5")])
def test_the_other_mark_before_a_fraction_is_refused(written, decimal, cell):
    rewards = PLAIN["reward"].map({0.0: cell, 1.0: "1"})
    table = PLAIN[["subject", "arm"]].assign(reward=rewards)
    refuses(f"'reward' must be a number, got {cell}", written, table, decimal=decimal)


def test_two_sentences_state_what_was_read(written):
    table = PLAIN[["subject", "trial", "arm", "reward"]].assign(rt=0.5)
    summary = written(table).reading.sentences
    n = PLAIN["arm"].value_counts()
    assert summary[0] == (
        "Read from people.csv (UTF-8): participant from 'subject', choice from 'arm', reward from 'reward', "
        "order from 'trial'; not used: rt."
    )
    assert (
        summary[1]
        == f"10 participants; 10 sessions; 800 trials; 0 missed; 2 arms: 0 ({n[0]}), 1 ({n[1]})."
    )


def test_choices_of_episodes_that_are_left_out_are_not_counted(written):
    """The last person was paid nothing that is known."""
    unpaid = PLAIN["subject"] == PLAIN["subject"].iloc[-1]
    table = PLAIN[["subject", "trial", "arm"]].assign(reward=PLAIN["reward"].where(~unpaid))
    with pytest.warns(UserWarning, match="1 of 10 episodes"):
        reading = written(table).reading
    of_arms = reading.labels["arm"]
    assert reading.trials == 720
    assert sum(of_arms.values()) == 720


# Files.

TEXT = "Sübject;choice;reward \nann;a;0,5\nann;b;1,5\nann;a;0,0\nann;b;1,5\n"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("utf16.csv", TEXT.encode("utf-16")),
        ("utf16le.csv", TEXT.encode("utf-16-le")),
        ("utf32.csv", TEXT.encode("utf-32")),
        ("latin.csv", TEXT.encode("latin-1")),
        ("bom.csv", TEXT.encode("utf-8-sig")),
        ("packed.csv.gz", gzip.compress(TEXT.encode(), mtime=0)),
        ("packed.csv", gzip.compress(TEXT.encode(), mtime=0)),
        ("tabs.txt", TEXT.replace(";", "\t").encode()),
        ("blanks.txt", TEXT.replace(" ", "").replace(";", "  ").encode()),
        ("windows.csv", TEXT.replace("\n", "\r\n").encode()),
    ],
    ids=[
        "utf16",
        "utf16le",
        "utf32",
        "latin",
        "bom",
        "gz",
        "gz named csv",
        "tabs",
        "blanks",
        "windows",
    ],
)
def test_files_are_read_as_they_are(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    episodes = bandit.read(tmp_path / name, participant="Sübject")
    assert episodes.choices.tolist() == [[0, 1, 0, 1]]
    points = episodes.rewards * episodes.scale
    assert points.tolist() == [[0.5, 1.5, 0.0, 1.5]]


def test_json_lines_are_a_table(tmp_path):
    rows = [{"subject": "01", "choice": "ab"[i % 2], "reward": i / 2} for i in range(4)]
    (tmp_path / "people.jsonl").write_text("\n".join(map(json.dumps, rows)))
    episodes = bandit.read(tmp_path / "people.jsonl")
    assert episodes.participants.tolist() == ["01"]
    assert episodes.choices.tolist() == [[0, 1, 0, 1]]


def test_an_archive_is_never_unpacked_beyond_the_stated_size(tmp_path):
    with gzip.open(tmp_path / "bomb.csv.gz", "wb", compresslevel=1) as stream:
        for _ in range(MOST_BYTES // 2**20 + 2):
            stream.write(bytes(2**20))
    refuses(
        "more than 256 MB once unpacked, the most that is read",
        bandit.read,
        tmp_path / "bomb.csv.gz",
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"subject,choice,reward\n", "has a header and no row below it"),
        (b"PAR1\x00\x00", "is Parquet data, no table of text; save it as CSV in UTF-8"),
        (b"a,b\nx\x00,y\n", "holds bytes that are no text"),
        (
            b"subject,choice,reward\nann,a,1\nann,b,1,7\n",
            "line 3 of .* has more fields than the header has names",
        ),
        (
            b"subject trial choice reward\nann 1 2 0\nann 2  1\nann 3 1 1\n",
            "line 3 of .* has fewer fields than the header has names; .* write a word such as NA",
        ),
        (
            b'subject,choice,reward,note\nann,a,1,"x\n\ny"\nann,b,won,\n',
            "line 5 of .*: 'reward' must be a number, got won; write a number, or give missed=won",
        ),
        (
            b"subject,choice,gain,loss\nann,a,1,\nann,b,,1\n",
            "has choice and reward; write 0 where an empty cell means 0",
        ),
        (
            b'{"subject": 1}\n{"subject"',
            r"must hold a JSON object in every line; line 2 holds none \(Expecting ':' delimiter\)",
        ),
        (
            b'{"subject": 1}\n\n{"subject": }',
            r"must hold a JSON object in every line; line 3 holds none \(Expecting value\)",
        ),
        (
            b'subject,choice,reward\n\n"ann, bob, cem, dan\n",a,1\nann,b,1,7\n',
            "line 5 of .* has more fields than the header has names",
        ),
        (
            b'subject,choice,reward\n\nann,a,"1\n2"\nann,"b,0\nann,b,0\n',
            "line 5 of .* has a quotation mark that is not closed",
        ),
        (
            b'[{"subject": 1,\n "choice": "a"},\n{"subject": 2,\n "choice": "b",\n "reward": "x"}]',
            "object 2 of .*: 'reward' must be a number, got x",
        ),
        (
            b"subject;choice;reward\nann;a;1,150\nann;b;2,300\n",
            r"holds 1,150: give decimal=, \(--decimal ,\)",
        ),
        (
            b"subject;choice;reward\nann;a;1.150\nann;b;900\n",
            r"holds 1.150: give decimal=. \(--decimal .\)",
        ),
    ],
    ids=[
        "empty",
        "parquet",
        "binary",
        "long row",
        "short row",
        "broken line",
        "gap",
        "json",
        "json after a blank line",
        "long row after a row of two lines",
        "open quotation mark",
        "json list",
        "thousands",
        "thousands with points",
    ],
)
def test_a_file_that_cannot_be_read_is_refused_in_a_sentence(tmp_path, content, message):
    (tmp_path / "people.csv").write_bytes(content)
    refuses(message, bandit.read, tmp_path / "people.csv")


def test_a_workbook_is_to_be_saved_as_text(tmp_path):
    with zipfile.ZipFile(tmp_path / "people.xlsx", "w") as archive:
        archive.writestr("[Content_Types].xml", "<Types/>")
    refuses(
        "is a workbook of a spreadsheet; save it as CSV in UTF-8",
        bandit.read,
        tmp_path / "people.xlsx",
    )


def test_an_encoding_is_named(tmp_path):
    (tmp_path / "people.csv").write_bytes(TEXT.encode("latin-1"))
    refuses(
        "is not in utf-8 .*give another encoding=",
        bandit.read,
        tmp_path / "people.csv",
        encoding="utf-8",
    )
    refuses("encoding 'utf-9' is not known", bandit.read, tmp_path / "people.csv", encoding="utf-9")


def test_a_choice_outside_its_offer_is_refused():
    message = r"the choice 2 of episode 0, round 1, is none of its offers \[0, 1\]"
    offers = [[[0, 1], [0, 1]]]
    refuses(message, bandit.BanditEpisodes, [[0, 2]], [[1, 0]], n_arms=3, offers=offers)
