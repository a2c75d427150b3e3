"""``interp patch``: find the activations through which a corrupted round changes predictions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, cast

import interp.tasks
from interp.cli import options
from interp.cli.command import Say, command
from interp.core.machine import Machine, can_resume_rounds
from interp.support.errors import require, require_known
from interp.support.files import folder_to_write

_Round = Annotated[
    int | None,
    options.number_option(
        "Round that is corrupted and patched, counted from 0; by default 20, or the middle round of shorter episodes",
        0,
        "--round",
    ),
]
_Read = Annotated[
    int | None,
    options.number_option(
        "Round whose prediction is read, counted from 0; by default the first round whose prediction the corruption "
        "can change",
        0,
    ),
]
_Rounds = Annotated[
    int | None,
    options.number_option(
        "Number of rounds of an episode; by default as many as --round, --read and --map need"
    ),
]
_MapSize = Annotated[
    int,
    options.number_option(
        "Draw a heat map over N rounds: the effect of patching each round on each round's prediction; 0 draws no map",
        0,
        "--map",
        most=1000,
    ),
]


@command(
    example="interp patch wma-handwired --corruption flip-vote --round 20 --components resid_pre head",
    needs_torch=True,
    **options.OF_A_MACHINE,
)
def _patch(
    say: Say,
    sizes: Mapping[str, int],
    load_options: Mapping[str, Any],
    model: options.ModelName,
    corruption: str = "",
    at: _Round = None,
    propagate: bool = True,
    read: _Read = None,
    components: list[str] | None = None,
    metric: list[str] | None = None,
    direction: str = "denoising",
    episodes: Annotated[
        int | None,
        options.number_option(
            "Number of pairs of a clean and a corrupted episode, 64 by default, 16 with --quick", 2
        ),
    ] = None,
    quick: bool = False,
    rounds: _Rounds = None,
    map_: _MapSize = 12,
    tables: bool = False,
    regime: options.Regime = "",
    seed: int = 0,
    out: Path = Path("output/patching"),
    shard: options.Shard = "",
) -> None:
    """Patch activations of every layer, head and position in one round, between clean and corrupted episodes.

    The command writes tables and heat maps of the effects.

    Args:
        corruption: Change that makes corrupted episodes from clean ones, by task:
            <interp.interventions.causal_tables:corruption_names>; the task's default when empty.
        propagate: Whether rounds after the patched round read the changed latents, or the latents of the unpatched run.
        components: Components to patch, such as resid_pre attn_out head mlp_out, or hook points of a machine of another
            architecture.
        metric: Metrics of the effect: <interp.interventions.causal_tables:metric_names>; by default logit_diff
            and state.
        direction: Either denoising (clean activations are patched into corrupted runs) or noising (corrupted into
            clean).
        tables: Write tables of all causal analyses instead: patching with every corruption, alignment, edges and, if
            the task defines it, steering.
    """
    require_known("direction", direction, ("denoising", "noising"))
    first = at or 0
    last = first if read is None else read
    require(first <= last, f"--read {read} comes before --round {at}, which it cannot show")
    if rounds is not None:  # refused before a model is loaded
        valid = f"the episodes have rounds 0 to {rounds - 1}"
        require(last < rounds, f"round {last} is out of range: {valid}")
    chosen = options.load_for_analysis(say, model, sizes, accepts_sizes=True, **load_options)
    loaded = chosen.model
    from interp.interventions import causal_tables

    round_ = at
    if round_ is None:
        round_ = interp.tasks.of(loaded).cap_rounds(min(40, rounds or 40)) // 2
    folder = folder_to_write(out / options.name_folder(model))
    n_episodes = episodes or (16 if quick else 64)
    say.facts(model=loaded.name, round=round_, n_episodes=n_episodes, seed=seed)
    sample = causal_tables.Sample(
        corruption=corruption,
        n_episodes=n_episodes,
        n_rounds=rounds,
        n_map=map_,
        seed=seed,
        regime=regime,
        sizes=chosen.sizes,
    )
    if tables:
        others = {
            "--rounds": rounds,
            "--corruption": corruption,
            "--components": components,
            "--metric": metric,
            "--read": read is not None,
            "--map": map_ != 12,
            "--direction": direction != "denoising",
            "--no-propagate": not propagate,
        }
        options.refuse_unused_options(
            "--tables make every analysis of one round in the usual way", others
        )
        _write_tables(
            say,
            loaded,
            round_,
            load_options=load_options,
            sample=sample,
            folder=folder / "tables",
            shard=shard,
        )
        return
    require(not shard, "--shard divides tables: give --tables, too, or leave it out")
    result = causal_tables.patch(
        loaded,
        round_,
        components=components or (),
        metrics=metric or (),
        read_round=read,
        propagate=propagate,
        direction=direction,
        sample=sample,
    )
    for swept in result.sweeps:
        say.line(swept.sentence)
    gaps = {swept.metric: swept.gap for swept in result.sweeps}
    say.facts(corruption=result.corruption, gaps=gaps)
    # Columns as in docs/schema.json.
    columns = {"effect": "value", "effect_low": "low", "effect_high": "high"}
    summary = causal_tables.summary(result).rename(columns=columns)
    title = f"{loaded.name}: {result.corruption} at round {round_}, largest effects"
    say.table(summary, title, "largest_effects")
    say.files(causal_tables.write(result, folder / result.corruption))


def _write_tables(
    say: Say,
    model: Machine,
    round_: int,
    *,
    load_options: Mapping[str, Any],
    sample: Any,
    folder: Path,
    shard: str,
) -> None:
    """Compute and write the tables of all causal analyses. If the work is divided, compute only
    this command's share.

    Args:
        say: prints the output of the command.
        model: the model.
        round_: index of the round that is analysed.
        load_options: values of the options that choose the model and the recorded episodes.
        sample: settings of the episodes to sample.
        folder: folder for the tables.
        shard: share of the tables, such as "2/64"; "" for all.
    """
    from circuits.registry import differentiable
    from interp.interventions import causal_tables

    smooth = None  # machines without heads have no softmax-only variant
    if can_resume_rounds(model):
        smooth = differentiable(cast(Any, model))
    makers = causal_tables.table_makers(model, round_, smooth=smooth, sample=sample)
    settings = {"model": model.name, "digest": model.digest(), "round": round_, **asdict(sample)}
    # With a digest of the table of recorded episodes, parts are computed again if it was changed.
    settings |= {**load_options, **options.digest_files(load_options.get("recorded") or [])}
    with options.compute_in_shares(say, folder, makers, settings, shard) as parts:
        for by_name in parts.values():
            say.tables(folder, by_name)
