"""What tests share: built pages, a page with a block of every kind, and a real Chromium."""

import fcntl
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import interp
import probes
from interp import tasks
from interp.core import catalog
from interp.evaluation.experts import by_regime
from interp.interventions import ablation, causal_tables
from interp.model.checkpoints import save_checkpoint
from interp.model.config import LatentTransformerConfig
from interp.model.layout import RoundLayout
from interp.model.transformer import HookedLatentTransformer
from interp.results import figures
from interp.results.measure import UNTRAINED, Control, Measure
from interp.stats.intervals import Interval
from interp.tasks.experts.layout import ExpertRound
from interp.tasks.qlearning.layout import QLearningRound
from reports import part
from reports.attention import AttentionView
from reports.blocks import Code, Figure, Measures, NotComputed, Prose, Summary, Table
from reports.build import write
from reports.page import Report, Section
from reports.tasks import parts_for
from tests.reports.browser import Browser, chromium, executable

SMALL: dict[str, Any] = {"n_episodes": 8, "n_rounds": 10, "seed": 0}
SHARES = (0.05, 1.0)


def tiny(layout: RoundLayout) -> HookedLatentTransformer:
    """A learned model that learned nothing."""
    torch.manual_seed(0)
    config = LatentTransformerConfig(
        layout, d_model=8, n_layers=2, n_heads=2, d_head=4, d_mlp=8, name="tiny"
    )
    model = HookedLatentTransformer(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def fewer(patch: pytest.MonkeyPatch) -> None:
    """One temperature, half of the pairs, few circuits, one way to ablate, short long episodes and two probes do."""
    nodes: dict[str, Any] = {}

    def scored(scorer: Any, keep: Any, **options: Any) -> Any:
        return ablation.evaluate(scorer, keep, **options | {"n_random": 2, "n_sets": 1})

    def ablated(scorer: Any) -> Any:
        if scorer.ablation == "resample":
            nodes["seen"] = ablation.ablate(scorer)
        return nodes["seen"].assign(ablation=scorer.ablation)

    patch.setattr(probes, "probe", partial(probes.probe, n_untrained=1))
    for key, probed in {
        "experts": ("log_weights_centred", "label"),
        "qlearning": ("table", "reward"),
    }.items():
        task = tasks.get(key)
        changed = replace(task, analysis=replace(task.analysis, probed=probed))
        patch.setitem(catalog.REGISTERED, key, changed)
    patch.setattr(part, "_CAUSAL_EPISODES", 12)
    patch.setattr(causal_tables, "evaluate", scored)
    patch.setattr(causal_tables, "ablate", ablated)
    patch.setattr(
        causal_tables,
        "faithfulness_curve",
        partial(ablation.faithfulness_curve, shares=SHARES, n_random=1),
    )
    patch.setattr(
        "interp.evaluation.experts.by_regime.fitting_regimes", lambda model: ["uniform", "flat"]
    )
    patch.setattr(by_regime, "over_lengths", partial(by_regime.over_lengths, n_rounds=30))


KINDS: dict[str, Any] = {
    "wma-handwired": (),
    "qlearning-handwired": (
        "summary",
        "verification",
        "interchange",
    ),
    "wma-learned-additive": (
        "summary",
        "interchange",
        "reproduce",
    ),
    "qlearning-learned": (),
}
"""The parts of a page that tests look at; two pages are whole, and hold every other part, too."""


def written(kind: str, folder: Path, keys: Sequence[str] = ()) -> Path:
    """A page of a small model: whole, or some of its parts."""
    subject: Any = (
        kind
        if kind == "wma-handwired"
        else interp.load("qlearning-handwired", n_states=2, n_actions=2)
    )
    if "-learned" in kind:
        layout = ExpertRound(2) if kind == "wma-learned-additive" else QLearningRound(2, 2)
        subject = str(save_checkpoint(tiny(layout), folder / kind / "tiny"))
    task = tasks.get("experts" if kind.startswith("wma") else "qlearning")
    return write(
        subject, folder, **SMALL, parts=[p for p in parts_for(task) if p.key in keys or not keys]
    ).path


class Pages(dict[str, Path]):
    """The page of a small model of each kind, built when it is first asked for, by the first worker that needs it."""

    def __init__(self, base: Path) -> None:
        self.folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "pages"
        self.folder.mkdir(exist_ok=True)

    def __missing__(self, kind: str) -> Path:
        built = self.folder / f"{kind}.path"
        with (self.folder / "lock").open("w") as lock, pytest.MonkeyPatch.context() as patch:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not built.is_file():
                fewer(patch)
                built.write_text(str(written(kind, self.folder, KINDS[kind])))
        return Path(built.read_text())


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Pages:
    return Pages(tmp_path_factory.getbasetemp())


LABELS = ("<w>", "<z>", "e_1", "p_1", "p?", "y", "w?")


@pytest.fixture(scope="session")
def small_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with a block of every kind, written without a model."""
    pattern = np.tril(np.ones((3, 7, 7))) / np.arange(1, 8)[:, None]
    names = ("1.1", "1.2", "1.3")
    views = [
        AttentionView([pattern[None, None]], LABELS, [names], f"View {i}", opened=i == 0)
        for i in range(2)
    ]
    weights = figures.trajectories(np.eye(4), np.eye(4), list("abcd"), ylabel="weight")
    grid = figures.heatmaps(
        {"": pd.DataFrame(np.eye(4), list("abcd"), list("wxyz"))}, label="effect"
    )
    controls = {UNTRAINED: Control(0.2), "chance": Control(0.3), "weaker": Control(0.1)}
    claim = Measure(
        "one", "Claim", Interval(0.5, 0.4, 0.6), 0.3, unit="R2", controls={"chance": Control(0.1)}
    )
    no, open_ = replace(claim, threshold=0.9, controls=controls), replace(claim, threshold=0.5)
    measures = [
        claim,
        no,
        open_,
        replace(claim, lacking="it has no heads"),
        replace(claim, is_share=False),
    ]
    wide = pd.DataFrame({f"a_column_{i}": ["a long word or two"] * 4 for i in range(12)})
    scores = pd.DataFrame(
        {"name": ["a", "b"], "score": [-1e-9, 0.5], "low": [-0.1, 0.4], "high": [0.1, 0.6]}
    )
    tables = [Table(scores, "Scores"), Table(wide, "Wide"), Table(wide, "Folded", collapsed=True)]
    sections = [
        Section(
            "What was found",
            [Measures(measures, "Found.", [("weights", "Weights")] * 5), Summary({"Model": "one"})],
        ),
        Section(
            "Weights",
            [Prose("Text."), Figure(weights, "Weights", data=scores), Figure(grid, "Effects")],
        ),
        Section("Tables", tables),
        Section(
            "Missing",
            [NotComputed("one is too few", "Traceback\n  line"), Code("interp models", "Code")],
        ),
        Section("Attention", views),
    ]
    report = Report("Offline", "A page.", sections, {"seed": 0}, sentence="It does what it does.")
    return report.write(tmp_path_factory.mktemp("page") / "page.html")


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """One Chromium for this room's tests. Missing: a failure in CI, elsewhere a skip with the reason."""
    path = executable()
    if path is None:
        message = (
            "no chromium, chromium-browser or google-chrome on PATH: the pages were not opened"
        )
        if os.environ.get("CI"):
            pytest.fail(message + "; CI must install one (see .ci/run)")
        pytest.skip(message)
    with chromium(path) as opened:
        yield opened
