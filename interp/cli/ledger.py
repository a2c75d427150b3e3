"""``interp ledger``: measure every claim of the paper on models."""

from __future__ import annotations

from pathlib import Path

from interp.cli import options
from interp.cli.command import Say, command


def _describe_claims() -> str:
    """Return a text for the help: key and sentence of each claim of the paper, one per line."""
    from reports.ledger.claims import CLAIMS

    return "\n".join(f"{claim.key}: {claim.sentence}" for claim in CLAIMS)


@command(
    example="interp ledger --quick --claim regret",
    needs_torch=True,
    more="Claims:\n<interp.cli.ledger:_describe_claims>",
)
def _ledger(
    say: Say,
    model: list[str] | None = None,
    claim: list[str] | None = None,
    quick: bool = False,
    seed: int = 0,
    out: Path = Path("output/ledger"),
    shard: options.Shard = "",
) -> None:
    """Measure every claim of the paper on models, and write one page with the results.

    After an interruption, the same command continues the run.

    Args:
        model: Names or folders of the models on which claims are measured; by default all models of the package.
        claim: Keys of the claims to measure, listed below, such as regret; all claims by default.
        quick: Use a fifth of the episodes; intervals are wider.
        seed: Seed of episodes and of bootstrap samples.
    """
    from reports import ledger as room
    from reports.ledger.book import MODELS
    from reports.ledger.sizes import Sizes

    sizes = Sizes.quick(seed) if quick else Sizes(seed=seed)
    models = [options.load(name, {}, None, "cpu").model for name in model or MODELS]
    result = room.make(models, out, sizes=sizes, claims=claim or (), shard=shard)
    options.print_share_done(say, out / "parts", shard)
    if shard:
        return
    say.line(result.sentence)
    say.table(result.to_frame()[["key", "about", "claim", "number", "verdict"]], "claims", "claims")
    say.facts(settings=dict(result.settings))
    say.files(room.write(result, out))
