"""A report on a machine that is no transformer: every part stands, and what the machine lacks is said in its place."""

import re
from collections.abc import Mapping
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import circuits
import interp
import interp.machines.learners  # its own builders are registered outside the tests
from circuits.registry import RECORDS
from circuits.registry import build as circuit_of
from interp.core import catalog
from interp.model import checkpoints, library
from interp.results.measure import Measure
from interp.stats.intervals import Interval
from reports.blocks import Prose
from reports.build import write
from reports.part import Context, Part, require_components
from reports.parts import heads, interchange, overview, patching
from reports.tasks import default_parts, experts, parts_for
from tests import handmade
from tests.machines import cached, gru, loop, lstm
from tests.refusals import refuses
from tests.reports.conftest import SMALL
from tests.reports.test_build import rows, section, titles
from tests.shell import printed

OPTIONS = {**SMALL, "n_episodes": 12, "n_rounds": 10}
OF_HEADS = {"Circuits of edges", "Attention"}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A quick page of which no part failed, of a machine given in Python; and some parts of one by the command, of a
    machine whose builder is registered."""
    folder = tmp_path_factory.mktemp("machines")
    page = write(loop(), folder, **OPTIONS, quick=True)
    assert page.failures == {}
    with pytest.MonkeyPatch.context() as patch:
        few = [part for part in experts.parts() if part.key in ("summary", "reproduce")]
        patch.setattr("reports.tasks.experts.parts", lambda: few)
        patch.setattr(library, "BUILT", {})
        patch.setattr(checkpoints, "BUILDERS", {})
        interp.register_machine("own-gru", gru, description="a GRU of the tests", task="experts")
        printed(
            "report", "own-gru", "--quick", "--episodes", "12", "--rounds", "10", "--out", folder
        )
    paths = {"loop": page.path, "own-gru": folder / "own-gru-quick.html"}
    return {name: path.read_text("utf-8") for name, path in paths.items()}


def some(task: Any, *left_out: str) -> list[Part]:
    """The parts of a page, without some that another page here has."""
    return [part for part in parts_for(task) if part.key not in left_out]


def html_of(model: Any, folder: Path, **options: Any) -> str:
    """Write a page of which no part fails, and read it."""
    page = write(model, folder, **options)
    assert page.failures == {}
    return page.path.read_text("utf-8")


def text(html: str, title: str) -> str:
    """What a section says, without markup."""
    return " ".join(
        unescape(re.sub(r"<[^>]+>", " ", section(html, title.replace("'", "&#39;")))).split()
    )


@pytest.mark.long
def test_every_part_stands_and_what_is_lacking_is_said(written: dict[str, str]) -> None:
    """No part of the default report vanishes; those of heads hold one sentence, and no verdict is made of them."""
    html = written["loop"]
    expected = {part.title for part in default_parts()} - {"The state over time", "The circuit"}
    expected |= {"Weights over time", "Regret"}
    assert expected <= set(titles(html))
    lacking = {
        title for title in titles(html)[:-1] if "not applicable" in text(html, title).lower()
    }
    assert lacking == OF_HEADS
    for title in OF_HEADS:
        assert "Not applicable: loop has no attention heads." in text(html, title)
    assert not OF_HEADS & set(re.findall(r'<th scope="row">(.*?)</th>', html))
    assert (
        "http"
        not in re.sub(r'xmlns(:\w+)?="[^"]*"|<pre.*?</pre>', "", html, flags=re.DOTALL).split(
            "</style>"
        )[-1]
    )


@pytest.mark.long
def test_what_can_be_computed_is(written: dict[str, str]) -> None:
    """Behaviour, state, probes, patching, and moves of what is carried along a fitted direction: of any model."""
    html = written["loop"]
    for title in ("Weights over time", "Regret", "Probes", "Patching"):
        assert "<svg" in section(html, title) or 'class="track"' in section(html, title)
    assert "<table" in section(html, "Interchange interventions")
    assert "<svg" in section(html, "Steering")
    assert "thin lines are the machine's" in text(html, "Weights over time")
    assert "loop: a learned model of" in html
    assert "transformer" not in text(html, "What was found")


@pytest.mark.long
def test_a_single_number_has_no_random_direction(tmp_path: Path) -> None:
    """Its controls are absent, in the table and in the claim that the page opens with; a transformer's stay numbers."""
    parts = (overview.part(), interchange.INTERCHANGE)
    machine = reader_of(catalog.get("reachability").layout(6, 8), width=1)
    html = html_of(machine, tmp_path, n_episodes=8, parts=parts, quick=True)
    section = text(html, "Interchange interventions")
    assert (
        section.count("no other direction") == 4
    )  # accuracy and score, as the prediction and as the state show them
    assert "doing nothing" in text(html, "What was found")
    transformer = circuits.load("wma-handwired", n_experts=2)
    html = html_of(transformer, tmp_path, **SMALL, parts=parts, quick=True)
    assert "no other direction" not in html


def test_the_overview_says_what_is_carried(written: dict[str, str]) -> None:
    """Channels with their shapes, points, number of weights, device and dtype."""
    summary = text(written["loop"], "What was found")
    weights = sum(int((p != 0).sum()) for p in loop().parameters())
    assert f"{weights:,}" in summary or str(weights) in summary
    assert "float32, on cpu" in summary
    assert "h [16]" in summary
    assert "latent, block (3 times a round)" in summary


def test_patching_restores_what_is_carried(tmp_path: Path) -> None:
    """Where only the history differs, the whole carried state restores the clean run; a gate of an LSTM does not."""
    swapped = patching.part([("Histories are swapped", "swap-histories", "")], n_episodes=8)
    parts = (overview.part(), swapped)
    html = html_of(lstm(), tmp_path, **SMALL, parts=parts)
    for place in ("latent@h", "latent@c", "forget", "output"):
        assert len(rows(html, place)) == 1
    assert "h [16]; c [16]" in text(html, "What was found")
    html = html_of(gru(), tmp_path, **SMALL, parts=parts)
    ((_, _, fraction, *_),) = rows(html, "latent@h")
    assert fraction == "1.000 [1.000, 1.000]"


@pytest.mark.long
def test_a_machine_made_by_hand_is_held_against_its_algorithm(tmp_path: Path) -> None:
    """Its state is read, not decoded; predictions and state are checked; what a circuit would say is not applicable."""
    parts = some(catalog.get("experts"), "patching", "probes", "edges", "regret")
    html = html_of(handmade.majority(), tmp_path, **OPTIONS, parts=parts)
    assert 'class="missing"' not in html
    assert "handmade: expert advice, wired by hand" in html
    assert "causal transformer" not in html
    assert "state, read from the latents exactly, without a probe" in text(
        html, "Weights over time"
    )
    checked = text(html, "Verification against the algorithm")
    assert "compared with Weighted Majority that forgets" in checked
    assert "carried state" in checked
    section = text(html, "What was found")
    for claim in ("computes the probability of every outcome exactly", "carries the state exactly"):
        assert re.search(rf"It {claim} .*; at most 1.0e−9 yes", section)


@pytest.mark.long
def test_a_cache_sets_how_many_rounds_a_report_runs(tmp_path: Path) -> None:
    """A machine with room for few rounds is run for as many, and refused where that is too few."""
    parts = some(catalog.get("experts"), "patching", "interchange", "steering")
    html = html_of(cached(n_rounds=12), tmp_path, n_episodes=12, quick=True, parts=parts)
    section = text(html, "What was found")
    assert "12 episodes of 12 rounds" in section
    assert "cache [12, 8], grows by 1 a round" in section
    refuses("needs at least 10 rounds an episode, got 6", write, cached(n_rounds=6), tmp_path)
    refuses(
        "'cached' has room for 12 rounds an episode, got 13",
        write,
        cached(n_rounds=12),
        tmp_path,
        n_rounds=13,
    )


@pytest.mark.long
@pytest.mark.parametrize(("task", "sizes"), [("qlearning", (2, 2)), ("reachability", (6, 8))])
def test_machines_of_the_other_tasks_get_their_pages(
    task: str, sizes: tuple[int, int], tmp_path: Path
) -> None:
    """Nothing of the task's own parts fails where a machine has no heads and no layers."""
    parts = some(catalog.get(task), "patching", "interchange", "steering")
    machine = reader_of(catalog.get(task).layout(*sizes))
    html = html_of(machine, tmp_path, n_episodes=8, quick=True, parts=parts)
    assert {part.title for part in default_parts()} & OF_HEADS <= set(titles(html))


def reader_of(layout: Any, width: int = 12) -> Any:
    """A GRU that reads a round of any task; it predicts from what comes before the prediction."""
    torch.manual_seed(0)
    first = layout.predict_position + 1
    parts = {
        "embed": nn.Embedding(len(layout.vocabulary), 4),
        "cell": nn.GRUCell(5 * layout.n_positions, width),
    }
    module = nn.ModuleDict(parts | {"read": nn.Linear(5 * first + width, layout.n_outputs)})

    def step(m: Any, carried: Mapping[str, Tensor], fed: Any) -> tuple[Tensor, dict[str, Tensor]]:
        seen = torch.cat([m["embed"](fed.tokens), fed.values.to(carried["h"]).unsqueeze(-1)], -1)
        scores = m["read"](torch.cat([seen[:, :first].flatten(1), carried["h"]], 1))
        return scores, {"h": m["cell"](seen.flatten(1), carried["h"])}

    return interp.adapt(
        module,
        layout,
        step=step,
        channels=[interp.Channel("h", (width,))],
        points={"new": "cell.new"},
    )


def test_the_page_of_a_machine_by_name_says_the_command_that_writes_it_again(
    written: dict[str, str],
) -> None:
    assert "interp report own-gru --quick --episodes 12 --rounds 10 --seed 0" in written["own-gru"]


def test_a_part_that_is_lacking_is_not_computed(tmp_path: Path) -> None:
    """It makes no finding, is left in a quick report, and refuses with its sentence who reads its result."""
    computed: list[str] = []

    def compute(context: Context) -> str:
        computed.append(context.model.name)
        return context.model.name

    def said(value: Any, context: Context) -> list[Measure]:
        return [Measure("a", "A claim", Interval(1, 1, 1), 0.5, needs_control=False)]

    of_heads = Part(
        "of-heads",
        "Of heads",
        compute,
        lambda value, context: [Prose(value)],
        summary=said,
        slow=True,
    )
    lacking = replace(of_heads, lacking=require_components("pattern"))
    reads = Part(
        "reads",
        "Reads",
        lambda context: context.result("of-heads"),
        lambda value, context: [Prose(value)],
    )
    parts = (overview.part(), lacking, reads)
    with pytest.warns(
        UserWarning, match="Reads, because not applicable: gru has no attention heads"
    ):
        html = write(gru(), tmp_path, **SMALL, parts=parts, quick=True).path.read_text("utf-8")
    assert computed == []
    assert "A claim" not in html
    assert titles(html)[:-1] == ["What was found", "Of heads", "Reads"]
    assert "Not applicable: gru has no attention heads." in text(html, "Of heads")
    html = html_of("wma-handwired", tmp_path, **SMALL, parts=(overview.part(), of_heads))
    assert computed == ["wma-handwired"]
    assert "A claim" in html


def without_edges(n_experts: int = 4) -> Any:
    """Weighted Majority, of which nobody wrote down which head reads which, or what carries its variables."""
    whole = circuit_of("wma-handwired", n_experts=n_experts)
    arguments = {"n_experts": n_experts}
    return replace(whole, name="bare", arguments=arguments, edges=(), carried=(), not_carried={})


def without_sites(n_experts: int = 4) -> Any:
    """The same, of which nobody wrote down where its variables are either."""
    return replace(without_edges(n_experts), sites={}, partial={})


def load_bare(builder: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Load the circuit that a function of this module makes, of two experts."""
    record = replace(RECORDS["wma-handwired"], key="bare", builder=f"{__name__}:{builder}")
    monkeypatch.setitem(RECORDS, "bare", record)
    return circuits.load("bare", n_experts=2)


def test_a_circuit_without_sites_is_verified_by_what_it_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its predictions and its state, as of any machine; what needs a site says that none is listed."""
    wanted = [part for part in experts.parts() if part.key in ("verification", "circuit")]
    html = html_of(load_bare("without_sites", monkeypatch), tmp_path, **SMALL, parts=wanted)
    assert "carried state" in text(html, "Verification against the algorithm")
    assert "lists no sites" in text(html, "The circuit")


def test_a_circuit_with_other_arguments_is_verified_with_them(tmp_path: Path) -> None:
    """With softmax heads that hardly choose, the model is not its algorithm, though the default model is."""
    model = interp.load("wma-handwired", n_experts=2, eta=60.0, match_logit=3.0)
    wanted = [part for part in experts.parts() if part.key == "verification"]
    html = html_of(model, tmp_path, **SMALL, parts=wanted)
    assert "wma-handwired is Weighted Majority exactly" not in html


def test_a_circuit_without_edges_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue 35: its section died of a bare KeyError, 'positions' or 'source'."""
    parts = (overview.part(), interchange.INTERCHANGE, heads.CIRCUIT)
    html = html_of(load_bare("without_edges", monkeypatch), tmp_path, **SMALL, parts=parts)
    assert "lists no edges" in text(html, "The circuit")
    assert "L0H0 bind" in section(html, "The circuit")
    assert "log_weights" in section(html, "The circuit")
    assert "says of no variable which places carry it" in text(html, "Interchange interventions")
