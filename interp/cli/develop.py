"""``interp develop``: measure stored checkpoints of training runs, to see when a model becomes its
algorithm.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

from interp.cli import options
from interp.cli.command import Say, command
from interp.support.files import digest_of, write_figure

_MOST_DRAWN = 6
"""Algorithms that are drawn: those that predictions come nearest to."""


@command(
    example="interp develop output/training/wma/seed-0 output/training/wma/seed-1 --reference wma-handwired",
    needs_torch=True,
)
def _develop(
    say: Say,
    runs: list[Path],
    reference: str = "",
    targets: list[str] | None = None,
    every: Annotated[int, options.number_option("Measure only every N-th checkpoint of a run")] = 1,
    episodes: Annotated[
        int,
        options.number_option(
            "Number of episodes on which probes and predictions are measured", 16
        ),
    ] = 64,
    rounds: Annotated[int, options.number_option("Number of rounds of an episode", 3)] = 30,
    seed: int = 0,
    out: Path = Path("output/development"),
    shard: options.Shard = "",
) -> None:
    """Measure every checkpoint of training runs in the same way, and draw the results over training steps.

    Which variables do probes decode from the latents of a checkpoint, compared with an untrained copy? Which
    algorithm is nearest to the predictions of the checkpoint? With --reference, `interp compare --quick` also runs for
    each checkpoint. A checkpoint that was measured before is not measured again.

    Args:
        runs: Folders of training runs with checkpoints (--keep-every of `interp train`).
        reference: Name of the model with which each checkpoint is compared; no comparison if empty.
        targets: Keys of the variables that probes decode, such as log_weights; by default those of the task.
    """
    from circuits.compare import development
    from interp.training.runs import list_kept_states

    questions = development.Questions(
        targets=tuple(targets or ()),
        reference=reference,
        n_episodes=episodes,
        n_rounds=rounds,
        seed=seed,
    )
    makers = {}
    for folder in runs:
        for step, path in list(list_kept_states(folder).items())[::every]:
            content = digest_of(str(step), [path.read_bytes()])
            name = f"{folder.name} step {step} {content[:8]}"
            makers[name] = partial(development.measure_state, path, questions)
    settings = dict(vars(questions))
    if reference:  # a checkpoint that was changed since is read again
        settings |= options.digest_files([reference])
    with options.compute_in_shares(say, out, makers, settings, shard, keeps=True) as parts:
        if shard:
            return
        tables = options.join_tables(parts.values())
    measures = tables["measures"]
    algorithms = tables["algorithms"]
    nearest = algorithms.groupby("algorithm")["nats"].min().nsmallest(_MOST_DRAWN).index
    drawn = development.draw(measures, algorithms, nearest)
    for sentence in development.describe(measures):
        say.line(sentence)
    claims = measures[["key", "step", "seed", "number", "verdict"]]
    say.table(claims.fillna({"verdict": ""}), "claims", "claims")  # the loss has no verdict
    say.tables(out, tables)
    say.files([write_figure(out / "development.svg", drawn)])
