"""``interp explore``: a machine live in a browser."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Annotated

import typer

from interp.cli import options
from interp.cli.command import Say, command


@command(example="interp explore wma-learned", sizes="one", torch=True, more=options.CIRCUIT_ARGUMENTS)
def _explore(
    say: Say,
    sizes: options.Sizes,
    model: options.ModelName,
    reference: Annotated[
        str, typer.Option(help="Another machine of the task, run beside it.", autocompletion=options.model_names)
    ] = "",
    view: str = "",
    port: Annotated[int, options.number("Port of the page; any free one by default", 0, most=65535)] = 0,
    arguments: options.Set = None,
    seed: options.Seed = 0,
    device: options.Device = "cpu",
) -> None:
    """Serve a live page of a model on this computer, print its address, and go on until interrupted.

    Args:
        view: What is shown first: the query of an address that was kept.
    """
    from reports.explore.server import Explorer, Served
    from reports.explore.view import View

    shown = View.of(view)
    shown, chosen = replace(shown, seed=seed or shown.seed), options.load(model, sizes, arguments, device)
    other = options.load(reference, {}, (), device).model if reference else None
    given = "".join(f", {name}={value!r}" for name, value in chosen.arguments.items())
    told = "".join(f" --{name} {value}" for name, value in sizes.items())
    told += "".join(f" --set {pair}" for pair in arguments or ())
    origin = f"interp.load({model!r}{given})"
    served = Served(Explorer(chosen.model, other, origin, f"interp explore {model}{told}"), port, shown)
    address = served.address
    typer.echo(json.dumps({"command": "explore", "address": address}) if say.as_json else address)
    served.run()
    raise typer.Exit(0)
