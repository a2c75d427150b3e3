"""``interp compare``: compare predictions, state and computation of two models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from interp.cli import options
from interp.cli.command import Say, command
from interp.model.library import handwired_models, models
from interp.support import shares
from interp.support.errors import require
from interp.support.files import folder_to_write


@command(
    example="interp compare wma-learned wma-handwired --quick",
    sizes="one",
    needs_torch=True,
    more=options.CIRCUIT_ARGUMENTS,
)
def _compare(
    say: Say,
    sizes: Mapping[str, int],
    model: options.ModelName,
    reference: Annotated[
        str,
        typer.Argument(
            help="The reference: another model, or 'none' to compare with algorithms only; by default the handwired "
            "model of the task.",
            autocompletion=options.model_names,
        ),
    ] = "",
    quick: bool = False,
    report: bool = False,
    episodes: Annotated[
        int | None,
        options.number_option(
            "Episodes that are scored; maps between states are fitted on two or three times as many",
            8,
        ),
    ] = None,
    rounds: Annotated[
        int | None, options.number_option("Rounds per episode; 30 by default, 20 with --quick", 3)
    ] = None,
    recorded: list[str] | None = None,
    hypothesis: list[str] | None = None,
    arguments: options.Set = None,
    seed: int = 0,
    device: str = "cpu",
    out: Path = Path("output/comparisons"),
    more: list[str] | None = None,
    shard: options.Shard = "",
) -> None:
    """Compare a model with a reference, by default the handwired model of its task.

    Do both models predict the same, store the same state, update the state in the same way and use their heads
    in the same way?

    --set changes MODEL if MODEL is handwired, and otherwise REFERENCE, as in:
    interp compare qlearning-taught --set beta=10.

    Args:
        quick: Do about a quarter of the work, with fewer episodes and rounds; intervals are wider.
        more: Further models, each of which is compared with REFERENCE separately.
    """
    compare_one = partial(
        _compare_machines,
        say,
        sizes=sizes,
        quick=quick,
        report=report,
        episodes=episodes,
        rounds=rounds,
        recorded=recorded,
        hypothesis=hypothesis,
        arguments=arguments,
        seed=seed,
        device=device,
        out=out,
    )
    if not (more or shard):
        compare_one(model, reference)
        return
    _compare_several(say, compare_one, [model, *(more or ())], reference, shard)


def _compare_several(
    say: Say, compare_one: partial[None], models: Sequence[str], reference: str, shard: str
) -> None:
    """Compare several models with one reference. If the work is divided, compare only the models of
    this command's share.

    Args:
        say: prints the output of the command.
        compare_one: function from (model, reference) that makes one comparison; its keywords are
            the settings of the comparisons.
        models: names of the models.
        reference: name of the reference.
        shard: share of the models, such as "2/64"; "" for all.
    """
    require(reference, "several models need one reference: give its name, or 'none'")
    files = {name: f"{_name_comparison(name, reference)}/comparison.json" for name in models}
    settings = dict(compare_one.keywords)
    settings.pop("device")  # shares may be computed on different devices
    out = settings.pop("out")
    # Digests of the files that are read, so that a model is compared again if one was changed.
    settings |= options.digest_files([*models, reference, *(settings["recorded"] or [])])
    for name in shares.iterate_undone(out, files, settings, shard):
        compare_one(name, reference)
    options.print_share_done(say, out, shard)


def _name_comparison(model: str, reference: str) -> str:
    """Return the name of the folder for the comparison of a model with a reference."""
    return f"{options.name_folder(model)}-against-{options.name_folder(reference)}"


def _compare_machines(
    say: Say,
    model: str,
    reference: str,
    *,
    sizes: Mapping[str, int],
    quick: bool,
    report: bool,
    episodes: int | None,
    rounds: int | None,
    recorded: list[str] | None,
    hypothesis: list[str] | None,
    arguments: list[str] | None,
    seed: int,
    device: str,
    out: Path,
) -> None:
    """Compare a model with a reference, and print and write the result.

    Args:
        say: prints the output of the command.
        model, reference: names or folders of the two models.
        sizes, quick, report, episodes, rounds: values of the options of ``interp compare``.
        recorded, hypothesis: values of two further options. If they are not None, all analyses of
            the command use these episodes, or this algorithm, from here on.
        arguments: the words NAME=VALUE of ``--set``: arguments of ``model`` if a function builds
            it, otherwise of ``reference``.
        seed, device, out: values of further options.
    """
    built_models = {record.name for record in models() if record.kind != "learned"}
    is_built = model in built_models
    subject = options.load(model, sizes, arguments if is_built else None, device).model
    options.use_options(say, subject, recorded, hypothesis)
    reference_arguments = {} if is_built else options.parse_settings(arguments or ())
    from circuits import compare  # slow to import, so only after errors of the options

    if not reference:
        reference = next(iter(handwired_models(subject.layout.task)), "none")
    budget = compare.Budget.quick(seed) if quick else compare.Budget(seed=seed)
    budget = _resize(budget, episodes, rounds)
    folder = folder_to_write(out / _name_comparison(model, reference))
    comparison = compare.machines(
        subject,
        None if reference == "none" else reference,
        budget=budget,
        folder=folder,
        arguments=reference_arguments,
    )
    say.measures(comparison)
    say.line(f"{comparison.model}: {comparison.algorithm.sentence}")
    if reference_arguments:
        pairs = [f"{name}={value}" for name, value in reference_arguments.items()]
        say.line(f"{comparison.reference} has {', '.join(pairs)}")
    record = comparison.to_dict()
    fields = ("model", "reference", "sentence", "algorithm", "settings")
    say.facts(**{name: record[name] for name in fields})
    written = comparison.save(folder)
    if report:
        from reports.comparison import write

        written.append(write(comparison, folder))
    say.files(written)


def _resize(budget: Any, episodes: int | None, rounds: int | None) -> Any:
    """Return a budget (numbers of episodes and rounds) with other numbers.

    Args:
        budget: the budget.
        episodes: number of scored episodes; None leaves it unchanged.
        rounds: number of rounds per episode; None leaves it unchanged.
    """
    if rounds is not None:
        budget = budget.of_rounds(rounds)
    if episodes is not None:
        # Maps between states are fitted on proportionally many episodes.
        n_fitted = round(episodes * budget.known / budget.test)
        budget = replace(budget, test=episodes, known=n_fitted)
    return budget
