"""Measure the paper's claims on several models, part by part, and write them as one page.

A part is one claim measured on one model. Finished parts are stored as JSON in the ledger's folder,
under the model's digest and the sizes. An interrupted run therefore continues with the next part,
and a changed model is measured again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

import interp.tasks
from interp.core.machine import Machine
from interp.results.measure import Measure, Result
from interp.support.checks import checked, checked_result
from interp.support.errors import require, require_known
from interp.support.files import folder_to_write, write_csv, write_json
from interp.support.provenance import provenance
from interp.support.session import Finished, session
from interp.support.workers import bar, one_thread
from reports.blocks import Measures, Prose, Table
from reports.ledger import experts, qlearning
from reports.ledger.claims import CLAIMS, HANDWIRED, LEARNED, PaperClaim
from reports.ledger.sizes import Sizes, measure_exactness
from reports.page import Report, Section, write_with_index

Measurement = Callable[[Machine, Sizes], list[Measure]]

MEASUREMENTS: Mapping[str, Measurement] = {
    "exact weights": partial(measure_exactness, key="exact weights"),
    "regret": experts.regret_like_weighted_majority,
    "needs latent": experts.needs_latent,
    "log-weights": experts.log_weights,
    "latent attended": experts.measure_attention_to_latent,
    "three good experts": experts.three_good_experts,
    "correlated experts": experts.correlated_experts,
    "language models": experts.language_models,
    "exact table": partial(measure_exactness, key="exact table"),
    "agreement": qlearning.agrees_with_the_table,
    "agreement under shift": qlearning.agrees_under_shift,
    "long horizon": qlearning.long_horizon,
    "reward": qlearning.earns_the_reward,
    "update decoded": qlearning.decode_update,
    "table decoded": qlearning.decode_table,
    "update attends": qlearning.update_attends,
}
"""How each claim is measured, by its key."""

MODELS = (
    "wma-handwired",
    "wma-learned",
    "wma-learned-additive",
    "qlearning-handwired",
    "qlearning-learned",
)
"""The models that the ledger measures by default."""


@dataclass(frozen=True, eq=False)
@checked_result
class Ledger(Result):
    """The claims of the paper, and what measurements of models say about them.

    Attributes:
        entries: key of a claim -> its measures (number and verdict), of all models.
        settings: seed, sizes, versions and digests.
    """

    entries: Mapping[str, Sequence[Measure]]
    settings: Mapping[str, Any]

    @cached_property
    def measures(self) -> list[Measure]:
        """The measures of all claims and models, in the order of the paper."""
        return [measure for measures in self.entries.values() for measure in measures]

    @property
    def sentence(self) -> str:
        """A sentence with the numbers of claims and measures, and how many measures have each
        verdict.
        """
        verdicts = pd.Series([measure.verdict for measure in self.measures])
        counts = ", ".join(f"{n} {verdict}" for verdict, n in verdicts.value_counts().items())
        return f"{len(self.entries)} claims of the paper, {len(self.measures)} measures: {counts}."

    def to_frame(self) -> pd.DataFrame:
        """Return a table with one row per measure.

        The columns are:

        * place: the place of the claim in the paper;
        * paper: the sentence of the paper;
        * key: the key of the claim;
        * the columns of a measure, such as number and verdict
          (:meth:`~interp.results.measure.Measure.row`).
        """
        rows = []
        for claim in CLAIMS:
            for measure in self.entries.get(claim.key, ()):
                claim_columns = {"place": claim.place, "paper": claim.sentence, "key": claim.key}
                rows.append({**claim_columns, **measure.row()})
        return pd.DataFrame(rows)


@checked
@one_thread()
def make(
    models: Sequence[Machine],
    folder: str | Path,
    *,
    sizes: Sizes | None = None,
    claims: Sequence[str] = (),
    shard: str = "",
) -> Ledger:
    """Measure the paper's claims on some models; results that are stored in ``folder`` are not
    measured again.

    Args:
        models: handwired and learned models of the paper's tasks.
        folder: folder that stores the measures of each pair of a claim and a model.
        sizes: how many episodes and rounds are measured; ``Sizes()`` when None.
        claims: keys of the claims to measure; all when empty.
        shard: which share of the pairs to measure, such as "2/64" for the second of 64 shares; ""
            for all (:func:`interp.support.shares.divide`). With "" and the same ``folder``, a later
            call reads the pairs of all shares.

    Returns:
        The measures of every claim, of all models that it is about (only the pairs of the share).

    Raises:
        InputError: an unknown claim, or no model that any claim is about.
    """
    sizes = sizes or Sizes()
    digests: dict[str, str] = {}
    for model in models:
        digest = digests.setdefault(model.name, model.digest())
        require(
            digest == model.digest(),
            f"two different models are called {model.name!r}, and results name a model; give one of them",
        )
    parts = _list_parts(claims, models, digests)
    finished = Finished(folder_to_write(folder) / "parts", {"sizes": asdict(sizes)})
    # The names of all parts of the share; those that are stored are read again, not measured.
    names = finished.divide(parts, list[Measure], shard)
    entries: dict[str, list[Measure]] = defaultdict(list)
    with bar("measuring the paper's claims", len(names)) as advance, session():
        for name in names:
            claim, model = parts[name]
            measure = partial(MEASUREMENTS[claim.key], model, sizes)
            entries[claim.key] += finished.part(name, list[Measure], measure)
            advance(1)
    settings = provenance(sizes=asdict(sizes), models=digests)
    return Ledger(dict(entries), settings)


@checked
def write(ledger: Ledger, folder: str | Path) -> list[Path]:
    """Write the ledger as a page, a table and its settings.

    Args:
        ledger: the claims with their measures.
        folder: the folder to write ``ledger.html``, ``ledger.csv`` and ``ledger.json`` into.

    Returns:
        The paths of the files.
    """
    folder = Path(folder)
    return [
        write_with_index(_page(ledger), folder / "ledger.html"),
        write_csv(folder / "ledger.csv", ledger.to_frame()),
        write_json(folder / "ledger.json", {"settings": dict(ledger.settings)}),
    ]


def _list_parts(
    claims: Sequence[str], models: Sequence[Machine], digests: Mapping[str, str]
) -> dict[str, tuple[PaperClaim, Machine]]:
    """Return {name: (claim, model)} for every claim and every model that the claim is about. The
    name is the one under which their result is stored.

    Args:
        claims: keys of claims; all when empty.
        models: the models.
        digests: digests of the models, by name.

    Raises:
        InputError: an unknown claim, or no model that any claim is about.
    """
    for key in claims:
        require_known("claim", key, MEASUREMENTS, limit=20)
    chosen = [claim for claim in CLAIMS if not claims or claim.key in claims]
    parts = {}
    for claim, model in product(chosen, models):
        kind = HANDWIRED if model.is_handwired else LEARNED
        if (claim.task, claim.of) == (interp.tasks.of(model).key, kind):
            parts[f"{claim.key}.{model.name} {digests[model.name][:8]}"] = claim, model
    tested = ", ".join(digests)
    require(parts, f"none of these claims is about {tested or 'no model'}")
    return parts


def _page(ledger: Ledger) -> Report:
    """Make the page of the ledger: an overview, then a section for each claim."""
    entries = ledger.entries
    overview = ledger.to_frame()[["place", "paper", "about", "number", "verdict", "reason"]]
    sections = [Section("Overview", [Table(overview, "Every claim, model by model")])]
    for claim in CLAIMS:
        if claim.key in entries:
            blocks = _make_blocks(claim, entries[claim.key])
            sections.append(Section(f"{claim.place}: {claim.key}", blocks))
    description = {
        "kind": "ledger",
        "run": f"{len(entries)} claims",
        "sentence": ledger.sentence,
    }
    return Report(
        title="The claims of the paper, measured",
        lead=(
            "Each claim of the paper, with the results for the models measured here, and the "
            "command that gives more details."
        ),
        sections=sections,
        provenance=dict(ledger.settings),
        about=description,
        sentence=ledger.sentence,
    )


def _make_blocks(claim: PaperClaim, measures: Sequence[Measure]) -> list[object]:
    """Return the blocks of a claim's section: the paper's sentence with notes and the shell command
    that prints all numbers, and the measures.

    Args:
        claim: the claim.
        measures: its measures, one or several per model.
    """
    cautions = {measure.caution for measure in measures if measure.caution}
    notes = [f"{measure.about}: {measure.note}." for measure in measures if measure.note]
    text = f"The paper: {claim.sentence} {' '.join(notes)} In full: `{claim.command}`."
    if cautions:
        text += f" Not evidence of more than {'; '.join(sorted(cautions))}."
    return [Prose(text), Measures(measures, "What was measured.")]
