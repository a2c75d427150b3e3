"""``interp probe``: decode an algorithm's variables from a model's activations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import interp.tasks
from interp.cli import options
from interp.cli.command import Say, command
from interp.support.errors import require
from interp.support.files import folder_to_write, write_csv, write_figure, write_json, write_text
from interp.support.workers import show_spinner


def _describe_targets() -> str:
    """Return a text for the help of ``--targets`` that lists the keys of the targets of every task."""
    from probes.targets import every

    texts = []
    for task in interp.tasks.list_tasks():
        keys = [target.key for target in every(task) if "." not in target.key]
        texts.append(f"{task.key}: {', '.join(keys)}")
    return f"KEY (after the round) or KEY:before (before the round), of {'; '.join(texts)}"


def _describe_sites() -> str:
    """Return a text for the help of ``--site`` that lists every word with which the name of a site
    can begin.
    """
    from interp.interventions.sites import COMPONENTS
    from probes.activations import OF_LATENTS, UPDATE

    names = ", ".join((*OF_LATENTS, UPDATE, *COMPONENTS))
    return f"{names}; for other machines latents@CHANNEL and their own hook points"


@command(
    example="interp probe wma-learned --targets log_weights counts --site latents",
    needs_torch=True,
    **options.OF_A_MACHINE,
)
def _probe(
    say: Say,
    sizes: Mapping[str, int],
    load_options: Mapping[str, Any],
    model: options.ModelName,
    targets: list[str] | None = None,
    site: str = "latents",
    sweep: bool = False,
    windows: list[str] | None = None,
    episodes: Annotated[
        int | None, options.number_option("Number of episodes; 256 by default, 64 with --quick", 5)
    ] = None,
    quick: bool = False,
    rounds: Annotated[
        int | None,
        options.number_option(
            "Number of rounds of an episode; 100 by default, 50 with --quick, or fewer if the task has fewer"
        ),
    ] = None,
    regime: options.Regime = "",
    seed: int = 0,
    out: Path = Path("output/probes"),
    jobs: int = -1,
    scheduler: str = "",
    shard: options.Shard = "",
) -> None:
    """Decode variables of an algorithm from a model's activations with linear probes and controls.

    After an interruption, the same command continues a sweep from OUT.

    Args:
        targets: Variables to decode, each as <interp.cli.probe:_describe_targets>.
        site: Site of the probed activations, such as latents or resid_post[1]@p?: <interp.cli.probe:_describe_sites>.
        sweep: Probe every component, layer and position instead of one site.
        windows: Ranges of rounds that a sweep probes separately, FIRST:AFTER-LAST, such as 0:10 10:100.
        jobs: Number of processes of a sweep; -1 for one process per core.
    """
    require(
        sweep or not (windows or shard),
        "--windows are rounds of a sweep, and --shard divides it: give --sweep, too, or leave them out",
    )
    spans = [options.parse_range(text) for text in windows or ()]
    chosen = options.load_for_analysis(say, model, sizes, accepts_sizes=True, **load_options)
    loaded = chosen.model
    task = interp.tasks.of(loaded)
    if chosen.people:
        require(
            not any((episodes, rounds, regime)),
            "--recorded takes all that was recorded: leave --episodes, --rounds and --regime out",
        )
        played_episodes = chosen.people
    else:
        n_episodes = episodes or (64 if quick else 256)
        n_rounds = rounds or task.cap_rounds(50 if quick else 100)
        played_episodes = task.sample_for(loaded, n_episodes, n_rounds, seed, regime, chosen.sizes)
    loaded.layout.fit(played_episodes)  # refuses sizes that the model cannot have
    say.facts(
        model=loaded.name,
        n_episodes=len(played_episodes),
        n_rounds=played_episodes.n_rounds,
        regime=played_episodes.regime,
        seed=seed,
    )
    folder = folder_to_write(out / options.name_folder(model))
    import probes
    from probes.fitting import N_UNTRAINED

    if not sweep:
        names = targets or task.analysis.probed or None
        with show_spinner("fitting probes"):
            results = probes.probe(
                loaded,
                played_episodes,
                names,
                sites=site,
                seed=seed,
                n_untrained=1 if quick else N_UNTRAINED,
            )
        _write_results(say, results, folder)
        return
    cells_folder = folder / "cells"
    swept = probes.sweep(
        loaded,
        played_episodes,
        targets,
        windows=spans or None,
        seed=seed,
        cache=cells_folder,
        n_jobs=jobs,
        scheduler=scheduler,
        shard=shard,
    )
    options.print_share_done(say, cells_folder, shard)
    if shard:
        return
    write_csv(folder / "sweep.csv", swept.frame)
    write_json(folder / "sweep.json", swept.settings)
    parts = swept.frame[["target", "start", "stop"]].drop_duplicates()
    for target, start, stop in parts.itertuples(index=False):
        picture = swept.heatmap(target, window=(start, stop))
        write_figure(folder / f"{target.replace(':', '-')}-{start}-{stop}.svg", picture)
    say.facts(cells=len(swept.frame), settings=swept.settings)
    say.files([folder])


def _write_results(say: Say, results: Sequence[Any], folder: Path) -> None:
    """Print the results of fitted probes, and write them as text, table, JSON and figures.

    Args:
        say: prints the output of the command.
        results: the results.
        folder: folder for the files.
    """
    import pandas as pd

    texts = [str(result) for result in results]
    write_text(folder / "probes.txt", "\n\n".join(texts) + "\n")
    scores = [result.scores() for result in results]
    write_csv(folder / "probes.csv", pd.concat(scores, ignore_index=True))
    records = {}
    for result in results:
        key = result.target.key
        records[key] = {**result.settings, **result.measure.to_dict()}
        if result.metric == "r2":
            write_figure(folder / f"{key.replace(':', '-')}.svg", result.plot())
    write_json(folder / "probes.json", records)
    say.measures(*results)
    for warning in dict.fromkeys(result.warning for result in results if result.warning):
        say.warning(warning)
    say.files([folder])
