"""``interp benchmark``: grade interpretability methods on machines whose circuits are known."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from interp.cli import options
from interp.cli.command import Say, command
from interp.support.files import folder_to_write
from interp.support.lazy import resolve_name


def _describe_methods() -> str:
    """Return a text for the help that lists the keys of all interpretability methods."""
    from circuits.benchmark.methods import select

    return ", ".join(dict.fromkeys(method.key for method in select()))


_subject_names = options.make_completer(lambda: resolve_name("circuits.benchmark:builders")())


@command(
    example="interp benchmark --quick --question edges",
    needs_torch=True,
    more="Methods:\n<interp.cli.benchmark:_describe_methods>",
)
def _benchmark(
    say: Say,
    out: Path = Path("output/benchmark"),
    quick: bool = False,
    method: list[str] | None = None,
    question: list[str] | None = None,
    subject: Annotated[
        list[str] | None,
        typer.Option(
            help="Names of the machines on which methods are graded; all machines by default.",
            autocompletion=_subject_names,
        ),
    ] = None,
    seeds: Annotated[
        int,
        options.number_option("Number of seeds; episodes are drawn anew for each seed", most=1000),
    ] = 1,
    jobs: Annotated[
        int,
        options.number_option("Number of machines on which methods are graded at the same time"),
    ] = 1,
    scheduler: str = "",
    shard: options.Shard = "",
) -> None:
    """Grade interpretability methods on machines whose circuits are known.

    After an interruption, the same command continues the run.

    Args:
        quick: Use fewer machines and episodes; the run takes a few minutes.
        method: Methods that are graded, listed below; oracle, which knows the circuit, and random are always included.
        question: Questions that methods answer: edges, nodes, where, subspace, exists or algorithm; all by default.
    """
    from circuits import benchmark as room
    from circuits.benchmark.questions import QUESTIONS

    effort = room.QUICK if quick else room.FULL
    result = room.run(
        subject or (),
        method or (),
        questions=question or (),
        seeds=range(seeds),
        effort=effort,
        out=folder_to_write(out),
        n_jobs=jobs,
        scheduler=scheduler,
        shard=shard,
    )
    options.print_share_done(say, out / "parts", shard)
    if shard:
        return
    for key in result.scored:
        title = f"{key}: {QUESTIONS[key].headline}"
        say.table(result.summary(key).round(3), title, key)
    for refusal in result.refusals:
        say.warning(f"{refusal['method']} on {refusal['subject']}: {refusal['sentence']}")
    say.facts(settings=dict(result.settings))
    say.files(result.save(out))
