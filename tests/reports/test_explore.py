"""A live page of a machine: what edits do, that a view's Python gives the same, and what its server refuses."""

import shlex
import socket
import urllib.error
import urllib.request
from dataclasses import replace
from functools import cache
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient

import interp
from interp.interventions.sites import Site
from interp.machines.learners import learner
from interp.stats.decoder import RIDGE
from interp.tasks import bandit
from reports.explore import Edit, Explorer, View, page, server
from reports.explore.server import make_app
from reports.explore.view import Written, score_decoder, write_script
from tests.cases import cases
from tests.refusals import refuses
from tests.shell import printed

TOKEN = "a-token"
INSIDE = ("patch 3 latent 5", "patch 2- latent 4", "mean 3 latent -", "zero 4 latent -")
EXPERTS = (
    "input 3 flip-vote expert=p_2",
    "input 3 flip-vote -",
    "input 2 flip-label -",
    "input 4 exchange-history -",
)
HEADS = (
    "zero 3 L1H0@p? -",
    "mean 2- L0H1 -",
    "patch 3 resid_pre[1]@p? 2",
    "zero 3 pattern[0.1] -",
)
POINTS = ("zero 3 reset -", "mean 2- update -", "patch 3 new 2", "patch 3- latent@h 2")
MOVES = ("move 3 counts.1 2.5", "move 2- counts.0 -1")
LABELS = ("remove-edges", "add-edge", "move-target", "change-root", "swap-candidates")
TWELVE_OF_EXPERTS = {
    "wma-handwired": (
        *EXPERTS,
        *HEADS[:2],
        *INSIDE,
        "move 3 log_weights.1 1.5",
        "move 2- log_weights.0 -90",
    ),
    "wma-gru": (*EXPERTS, *POINTS, *INSIDE[2:], *MOVES),
    "wma-learned-additive": (*EXPERTS[:3], *HEADS, *INSIDE[:3], *MOVES),
}
TWELVE_OF_OTHER_TASKS = {
    "qlearning-learned": (
        *(
            "input 3 change-reward -",
            "input 3 change-reward reward=0.9",
            "input 4 exchange-history -",
        ),
        *(
            "zero 3 L1H0@Select -",
            "mean 2- L0H1 -",
            "patch 3 resid_pre[1]@Select 2",
            "zero 3 pattern[0.1] -",
        ),
        *("move 3 table.1.2 0.5", "move 2- table.0.0 -3", *INSIDE[:3]),
    ),
    "reachability-learned": (
        *(f"input 1 {key} -" for key in LABELS),
        *HEADS,
        "move 2 reached.5 1",
        *INSIDE[:2],
    ),
}
TWELVE = {**TWELVE_OF_EXPERTS, **TWELVE_OF_OTHER_TASKS}
"""Twelve edits for a model of each kind, and for a machine without heads."""
SLOW = pytest.mark.slow(
    reason="a model a kind, twelve edits by the page and by Python: a minute of one core in all"
)


@cache
def explorer(name: str) -> Explorer:
    sizes = {"n_experts": 3} if name == "wma-handwired" else {}
    arguments = [repr(name), *(f"{size}={value}" for size, value in sizes.items())]
    origin = f"interp.load({', '.join(arguments)})"
    return Explorer(interp.load(name, **sizes), origin=origin, command=f"interp explore {name}")


def test_the_command_of_a_page_opens_the_same_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a reference, without which a view that takes over its state is refused, and with words that a shell would
    split or expand."""
    commands = []

    class Unserved:
        address = "http://127.0.0.1:1/"

        def __init__(self, explorer: Explorer, *_: Any) -> None:
            commands.append(explorer.command)

        def run(self) -> None:
            """Serve nothing."""

    monkeypatch.setattr(server, "Served", Unserved)
    words = ["--states", "3", "--reference", "qlearning-learned", "--set", "rewards=[0, 1.5]"]
    printed("explore", "qlearning-handwired", *words)
    (command,) = commands
    assert sorted(shlex.split(command)) == sorted(
        ["interp", "explore", "qlearning-handwired", *words]
    )


def of(*edits: str, **more: Any) -> View:
    query = View(**{"rounds": 6, "episode": 1, **more}).query()
    with_edits = urlencode([("edit", edit) for edit in edits])
    return View.of(f"{query}&{with_edits}")


def python(name: str, view: View) -> np.ndarray:
    scope: dict[str, Any] = {}
    exec(write_script(explorer(name).answer(view)[0].setup, view), scope)
    return scope["predictions"].double().numpy()


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    [n if n in ("wma-handwired", "wma-gru") else pytest.param(n, marks=SLOW) for n in TWELVE],
)
def test_twelve_edits_are_what_their_python_gives(name: str) -> None:
    edits = TWELVE[name]
    assert len(set(edits)) == 12
    views = [of(edit) for edit in edits]
    views += [of(edits[0], edits[-1]), of(edits[0], edits[-1], hold=True)]
    n_changed = 0
    for view in views:
        answer, _ = explorer(name).answer(view)
        before, after = answer.machine
        assert np.abs(after - python(name, view)).max() <= 1e-6, view
        first = min(edit.round for edit in view.edits)
        if "history" in view.query():
            first = 0
        assert np.array_equal(before[:first], after[:first]), view
        largest = answer.differences()["machine"].max()
        n_changed += bool(largest > 1e-4)
    assert n_changed >= 9


def test_what_edits_do_is_said_with_the_algorithm_and_controls_of_equal_size() -> None:
    """A handwired machine does as its algorithm under a moved state; random changes have the size of the edit's."""
    answer, _ = explorer("wma-handwired").answer(of("move 3 log_weights.1 1.5"))
    gaps = answer.differences()
    assert np.allclose(answer.machine[1], answer.algorithm[1], atol=1e-9)
    assert gaps["machine"][3] > 0.01
    assert answer.controls.shape == (4, 6, 2)
    assert answer.n_followed == 1
    before, after = (side["log_weights"] for side in answer.decoded)
    assert np.allclose(after[3:] - before[3:], [0, 1.5, 0], atol=1e-6)
    assert np.allclose(after[:3], before[:3])
    assert np.ptp(gaps["control_high"] - gaps["control_low"]) > 0
    assert not gaps["control_high"][:3].any()
    inputs, _ = explorer("wma-handwired").answer(of("input 3 flip-label -"))
    assert inputs.machine[1][3] == pytest.approx(inputs.machine[0][3])
    assert inputs.differences()["machine"][4] > 0.01
    assert inputs.truth[3] != answer.truth[3]
    assert inputs.truth[0] == answer.truth[0]
    assert inputs.truth[5] == answer.truth[5]
    held_answer, _ = explorer("wma-handwired").answer(of("move 3 log_weights.1 1.5", hold=True))
    held_gaps = held_answer.differences()
    assert held_gaps["machine"][3] == gaps["machine"][3]
    assert not held_gaps["machine"][4:].any()
    assert np.allclose(held_gaps["algorithm"], held_gaps["machine"], atol=1e-9)


def test_an_edit_from_a_round_on_acts_in_every_later_one_and_ablations_have_no_counterpart() -> (
    None
):
    answer, _ = explorer("wma-gru").answer(of("zero 2- reset -"))
    once, _ = explorer("wma-gru").answer(of("zero 2 reset -"))
    assert sorted(answer.hooks) == [2, 3, 4, 5]
    assert sorted(once.hooks) == [2]
    assert answer.n_followed == 0
    assert not answer.differences()["algorithm"].any()
    swapped, _ = explorer("wma-gru").answer(of("patch 3 latent@h 5"))
    setup = swapped.setup
    assert swapped.n_followed == 1
    assert np.array_equal(swapped.values_after["counts"][0, 3], setup.values["counts"][5, 3])
    latent_of_5 = setup.run.latents[5, 3]
    assert np.allclose(swapped.read_latents[0, 3], latent_of_5, atol=1e-6)


def test_a_reference_follows_edits_of_inputs_and_state_and_not_those_of_places() -> None:
    both_explorers = Explorer(interp.load("wma-handwired", n_experts=4), interp.load("wma-gru"))
    answer, reference_answer = both_explorers.answer(of("input 3 flip-label -", "zero 4 L1H0@p? -"))
    assert reference_answer is not None
    assert reference_answer.differences()["machine"][4] > 0
    assert sorted(reference_answer.hooks) == [3]
    assert "reference with" in both_explorers.page(answer.view)
    refuses(
        "of different tasks, 'experts' and 'qlearning'",
        interp.explore,
        interp.load("wma-gru"),
        "qlearning-handwired",
    )


@pytest.mark.parametrize(
    ("query", "why"),
    [
        *cases(__file__, "test_hostile_views_are_refused_in_a_sentence"),
        ("seed=" + "9" * 5000, "at most 4000 characters, got 5005"),
        ("&".join(["edit=input+1+flip-label+-"] * 25), "at most 24 edits, got 25"),
    ],
)
def test_hostile_views_are_refused_in_a_sentence(client: TestClient, query: str, why: str) -> None:
    query = query if "rounds" in query or len(query) > 500 else f"rounds=6&{query}"
    with pytest.raises(interp.InputError) as raised:
        explorer("wma-handwired").answer(View.of(query))[0].outcome  # noqa: B018
    assert why in str(raised.value)
    answer = client.get(f"/{TOKEN}/?{query}")
    assert answer.status_code == 400
    assert "Traceback" not in answer.text
    assert "<script>" not in answer.text


@pytest.fixture(scope="module")
def client() -> TestClient:
    app = make_app(explorer("wma-handwired"), TOKEN)
    return TestClient(
        app, "http://127.0.0.1", follow_redirects=False, raise_server_exceptions=False
    )


def test_a_page_is_given_for_its_token_and_host_alone(client: TestClient) -> None:
    query = of("input 3 flip-vote expert=p_2", "move 4 log_weights.0 -2", round=4).query()
    whole = client.get(f"/{TOKEN}/?{query}")
    assert whole.status_code == 200
    assert "2 edits change the prediction of round" in whole.text
    assert "default-src 'none'; script-src 'self'" in whole.headers["content-security-policy"]
    assert whole.headers["referrer-policy"] == "no-referrer"
    assert "http" not in whole.text.replace("http-equiv", "")
    for token in ("", "x", TOKEN[:-1], TOKEN + "x", "%00"):
        assert client.get(f"/{token}/?{query}").status_code in (403, 404)
    for host in ("evil.example", "127.0.0.1.evil.example", "", "127.0.0.1@evil.example"):
        assert client.get(f"/{TOKEN}/?{query}", headers={"Host": host}).status_code == 400
    assert client.get("/").status_code == 404
    assert client.post(f"/{TOKEN}/").status_code == 405
    old = client.get(f"/old-token/?{query}")
    assert old.status_code == 403
    assert "interp explore wma-handwired" in old.text
    assert "flip-vote" in old.text


@pytest.mark.long
def test_forms_lead_to_addresses_and_undo_is_one(client: TestClient) -> None:
    """Every state of the page is an address; what a form cannot add is refused before it is one."""
    form = {
        "view": "rounds=6&round=3",
        "kind": "move",
        "at": "2",
        "what": "log_weights.1",
        "value": "1.5",
        "on": "1",
    }
    added = client.get(f"/{TOKEN}/add", params=form)
    assert added.headers["location"] == "./?round=3&rounds=6&edit=move+2-+log_weights.1+1.5"
    page = client.get(f"/{TOKEN}/{added.headers['location']}").text
    assert (
        '<a href="./?round=3&amp;rounds=6" aria-label="Undo move 2- log_weights.1 1.5">undo</a>'
        in page
    )
    assert client.get(f"/{TOKEN}/add", params={**form, "what": "log_weights.7"}).status_code == 400
    inputs = {**form, "kind": "input", "what": "flip-vote expert=p_2", "value": ""}
    assert (
        client.get(f"/{TOKEN}/add", params=inputs)
        .headers["location"]
        .endswith("edit=input+2+flip-vote+expert%3Dp_2")
    )
    looked = {
        "view": "rounds=6&round=5&hold=1",
        "episode": "2",
        "outcome": "-1",
        "regime": "",
        "rounds": "4",
        "seed": "",
    }
    assert (
        client.get(f"/{TOKEN}/look", params=looked).headers["location"] == "./?episode=2&rounds=4"
    )
    numbered = Explorer(interp.load("qlearning-handwired", n_states=2, n_actions=2))
    change_form = {"kind": "input", "at": "1", "what": "change-reward reward=", "value": "0.25"}
    assert str(numbered.add_edit("", change_form).edits[0]) == "input 1 change-reward reward=0.25"


def test_a_cell_of_the_table_is_set() -> None:
    """To a value, by one edit, whatever it was before; to what it is without, by none; others stay."""
    looked = Explorer(interp.load("qlearning-handwired", n_states=2, n_actions=2))
    view = "rounds=4&edit=zero+0+L0H0+-"
    cell = {"kind": "move", "at": "2", "what": "table.1.0"}
    for value in (0.5, -0.25):
        set_to = looked.add_edit(view, {**cell, "to": str(value)})
        table = looked.answer(set_to)[0].decoded[1]["table"]
        view = set_to.query()
        assert len(set_to.edits) == 2
        assert table[2, 1, 0] == pytest.approx(value)
        assert table[2, 0, 1] != value
    only_zeroed, _ = looked.answer(View.of("rounds=4&edit=zero+0+L0H0+-"))
    without = float(only_zeroed.decoded[1]["table"][2, 1, 0])
    set_back = looked.add_edit(view, {**cell, "to": repr(without)})
    assert [edit.kind for edit in set_back.edits] == ["zero"]
    refuses("got 'much'", looked.add_edit, view, {**cell, "to": "much"})
    assert 'name="to" id="tile-table.1.0" value="-0.25"' in looked.page(View.of(f"{view}&round=2"))


def test_what_is_kept_says_the_same_as_the_page(client: TestClient) -> None:
    view = of("input 3 flip-vote expert=p_2")
    answers = {
        name: client.get(f"/{TOKEN}/keep/{name}?{view.query()}")
        for name in ("data.csv", "figure.svg", "view.py")
    }
    answer, _ = explorer("wma-handwired").answer(view)
    header, *rows = [line.split(",") for line in answers["data.csv"].text.splitlines()]
    column = header.index("model_after")
    after = [float(row[column]) for row in rows]
    assert np.allclose(np.reshape(after, (6, 2)), answer.machine[1])
    assert answers["figure.svg"].text.count("<svg") == 1
    assert answers["view.py"].text == write_script(answer.setup, view)
    assert client.get(f"/{TOKEN}/keep/passwd").status_code == 400


@pytest.mark.long
def test_the_attention_of_a_round_is_a_part_of_the_page(client: TestClient) -> None:
    view = of("move 3 log_weights.1 1.5", round=4)
    assert "data-control" in client.get(f"/{TOKEN}/part/attention?{view.query()}").text
    assert client.get(f"/{TOKEN}/part/layers?{view.query()}").status_code == 400


@pytest.mark.parametrize(
    ("name", "kind"), [("wma-handwired", "input"), ("qlearning-handwired", "patch")]
)
def test_a_page_opens_at_a_round_where_an_edit_is_seen(name: str, kind: str) -> None:
    """A flipped vote moves a prediction at once; no reward moves a hard policy, so a state is taken from elsewhere."""
    looked = explorer(name)
    (edit,) = (view := looked.choose_opening_view(View(rounds=8))).edits
    shown = looked.answer(view)[0]
    gaps = shown.differences()["machine"]
    assert (edit.kind, edit.round) == (kind, 4)
    assert gaps[view.round] == gaps.max() > 0.1
    assert len(shown.controls)
    assert looked.choose_opening_view(view) == view
    assert looked.choose_opening_view(View(round=2)) == View(round=2)


def test_the_drawn_number_of_the_state_is_one_that_the_edit_moves() -> None:
    """Elapsed moves by 4e-5 of a round, and the counts only by rounding; from round to round both vary far more."""
    answer, _ = explorer("wma-learned-additive").answer(View.of("edit=move+5+elapsed+0.00004"))
    before, after = answer.decoded
    assert np.abs(after["counts"] - before["counts"]).max() < 1e-5
    noun = answer.setup.algorithm.variable("elapsed").noun.removeprefix("the ")
    assert page.figure(answer).axes[2].get_ylabel().startswith(noun)


def test_an_edit_that_moves_no_prediction_says_what_it_moves() -> None:
    shown = explorer("qlearning-handwired").answer(
        View.of("rounds=8&edit=input+4+change-reward+-")
    )[0]
    assert shown.differences()["machine"].max() == 0
    assert page.template_variables(shown, None)["sentence"].startswith(
        "The edit (change the reward) changes no prediction by 0.001 or more; the decoded "
    )
    (before, after), t = shown.decoded, 5
    distance = page.template_variables(shown, None)["sentence"].rpartition("changes by ")[2]
    changes = after["table"] - before["table"]
    largest = max(changes.ravel(), key=abs)
    assert distance == f"{largest:.3f}, in round {t}."


def test_a_notebook_serves_a_page_until_it_is_closed() -> None:
    served = interp.explore(interp.load("wma-gru"), view="rounds=6&edit=input+3+flip-label+-")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        text = opener.open(served.address).read().decode()
        with socket.create_connection(
            ("127.0.0.1", served.port), timeout=30
        ) as client:  # it has said all that it will
            client.sendall(f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\n\r\n".encode())
            client.shutdown(socket.SHUT_WR)
            assert client.recv(4) == b"HTTP"
    finally:
        served.close()
    assert "The edit (flip the label) changes the prediction" in text
    assert "the machine that was given" in text
    assert served.address in repr(served)
    with pytest.raises(urllib.error.URLError):
        opener.open(served.address)


def test_a_page_of_recorded_episodes_shows_one_half_and_decodes_by_the_other_and_its_python_too() -> (
    None
):
    """It is served from what was in use when it began, and goes on after that."""
    people = replace(
        bandit.sample(12, 9, 2, "reversal", seed=0), participants=[*"abcdef"] * 2, regime="recorded"
    )
    algorithm = bandit.TASK.rivals()["two_rates"].make(gain=0.7, loss=0.2, inverse_temperature=4.0)
    with interp.tasks.using(people, algorithm):
        served = interp.explore(
            learner("gru", "bandit", width=3), view="round=4&edit=input+3+flip-reward+-"
        )
    try:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        text = opener.open(served.address).read().decode()
        code = opener.open(served.address.replace("?", "keep/view.py?")).read().decode()
    finally:
        served.close()
    assert "recordings of 6 participants" in text
    assert "algorithm is Rescorla-Wagner with two rates (gain" in code
    setup = served.explorer.answer(View.of("round=4&edit=input+3+flip-reward+-"))[0].setup
    shown_participants = set(setup.episodes.participants)
    assert sorted(setup.episodes.participants)[::2] == sorted(shown_participants)
    assert len(setup.decoder_episodes) == 6
    assert shown_participants | set(setup.decoder_episodes.participants) == set("abcdef")
    scope = {"people": people, "algorithm": algorithm, "model": served.explorer.model}
    exec(code, scope)
    answer, _ = served.explorer.answer(served.view)
    by_the_code = scope["predictions"].double().numpy()
    assert np.abs(answer.machine[1] - by_the_code).max() <= 1e-6


def test_edits_at_their_bounds() -> None:
    longest = f"zero 1 {'x' * 191} -"
    assert len(longest) == 200
    assert str(Edit.parse(longest)) == longest
    refuses("is no edit", Edit.parse, longest.replace("x ", "xx "))
    setup = explorer("wma-handwired").answer(View(rounds=6))[0].setup
    edits = "&".join(["edit=zero+1+latent+-"] * 24)
    assert View.of(f"seed=100000000&episode=0&{edits}").seed == 10**8
    for seed in ("100000001", "0100000000"):
        refuses("seed is a (whole )?number", View.of, f"seed={seed}")
    learned = explorer("wma-gru").answer(View(rounds=6))[0].setup
    assert (setup.n_decoder_episodes, setup.ridge) == (240 / 6, 0)
    assert (learned.n_decoder_episodes, learned.ridge) == (
        1440 / 6,
        RIDGE,
    )
    assert Edit.parse("patch 1 latent 0").get_source_episode(setup) == 0
    assert Edit.parse("patch 1 latent 15").get_source_episode(setup) == 15
    _, step = Edit.parse("move 1 log_weights.2 1e12").get_state_change(setup)
    assert step.tolist() == [0, 0, 1e12]
    table = (
        Explorer(interp.load("qlearning-handwired", n_states=2, n_actions=3))
        .answer(View(rounds=4))[0]
        .setup
    )
    _, step = Edit.parse("move 1 table.1.2 3").get_state_change(table)
    assert step.tolist() == [[0, 0, 0], [0, 0, 3]]
    for number in ("table.2.0", "table.0.3", "table.0", "table.0.0.0"):
        refuses(
            r"the shape \(2, 3\); write table.0.0",
            Edit.parse(f"move 1 {number} 3").get_state_change,
            table,
        )
    assert setup.name_numbers("log_weights") == [f"log_weights: e_{i}" for i in (1, 2, 3)]
    assert setup.decoder_scores == {"log_weights": pytest.approx(1)}
    truth, read = np.random.default_rng(0).normal(size=(2, 4, 3, 2))
    error = ((truth - read) ** 2).sum()
    total = ((truth - truth.mean((0, 1))) ** 2).sum()
    assert score_decoder(truth, read) == pytest.approx(1 - error / total)
    constant = np.full((2, 4, 2), 3.0)
    assert score_decoder(constant, constant) == 1
    assert score_decoder(constant, constant + 1) == 0
    written = Written(Site("latent"), {4: torch.arange(6)}, is_added=True)
    new = written.edit_activation(torch.ones(2, 2, 3), 4)
    assert new.tolist() == [[[1, 2, 3], [4, 5, 6]]] * 2


@pytest.mark.long
def test_a_memory_is_taken_over_from_the_reference_and_the_algorithm_gets_it_too() -> None:
    """As `interp.hand_over` has it: of its own episode, of another one, and with nothing remembered."""
    receiver, giver = interp.load("wma-handwired", n_experts=4), interp.load("wma-gru")
    both_explorers = Explorer(receiver, giver)
    taken, _ = both_explorers.answer(of("memory 3 reference 1"))
    another, _ = both_explorers.answer(of("memory 3 reference 0"))
    anew, _ = both_explorers.answer(of("memory 3 start 1"))
    algorithm = taken.setup.algorithm
    run_of_giver = interp.rollout(giver, taken.setup.episodes)
    handed = interp.hand_over(run_of_giver, 3, to=receiver, via=algorithm)
    assert np.allclose(taken.machine[1][3:], handed.handed_over[1], atol=1e-6)
    assert np.allclose(anew.machine[1][3:], handed.starts_anew[1], atol=1e-6)
    run_of_two = interp.rollout(giver, taken.setup.episodes.select([0, 1]))
    rolled = interp.hand_over(run_of_two, 3, to=receiver, via=algorithm)
    assert np.allclose(another.machine[1][3:], rolled.another_episode[1], atol=1e-6)
    for run in (taken, another, anew):
        assert run.n_followed == 1
        assert np.allclose(run.machine[1], run.algorithm[1], atol=1e-6)
    by_the_code = python_of(both_explorers, taken, giver=giver)
    assert np.abs(by_the_code - taken.machine[1]).max() <= 1e-6
    by_the_code = python_of(both_explorers, anew)
    assert np.abs(by_the_code - anew.machine[1]).max() <= 1e-6
    refuses("--reference MODEL", explorer("wma-handwired").answer, of("memory 3 reference 1"))
    refuses("leave out the '-'", Edit.parse, "memory 3- start 1")
    refuses(
        "must be from 1, the first that has a memory",
        both_explorers.answer,
        of("memory 0 reference 1"),
    )
    assert "Take over the state of another machine" in both_explorers.page(taken.view)


def python_of(explorer_: Explorer, shown: Any, **names: Any) -> np.ndarray:
    scope: dict[str, Any] = {"model": explorer_.model, **names}
    exec(write_script(shown.setup, shown.view), scope)
    return scope["predictions"].double().numpy()
