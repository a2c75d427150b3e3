"""Small untrained machines: of expert advice a GRU, an LSTM and a loop of one block, of any task a transformer.

They are made without the check of their contract, which :mod:`tests.model.test_machine_checks` holds them to.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

import interp
from interp.model.config import LatentTransformerConfig
from interp.model.layout import RoundLayout
from interp.model.transformer import HookedLatentTransformer

N_EXPERTS, WIDTH = 4, 16


def read_round(fed: Any) -> tuple[Tensor, Tensor]:
    """Advice ``[batch, expert]`` and truth ``[batch, 1]`` as -1 and 1, from the tokens of a round."""
    advice = fed.tokens[:, 3 : 3 + 2 * N_EXPERTS : 2]
    truth = fed.tokens[:, -2:-1]
    return (2 * (advice - 3) - 1).to(fed.values.dtype), (2 * (truth - 3) - 1).to(fed.values.dtype)


class RoundCell(nn.Module):
    """A recurrent cell that is told a round, and a readout of what it carries and the advice."""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell
        self.read = nn.Sequential(nn.Linear(WIDTH + N_EXPERTS, 16), nn.ReLU(), nn.Linear(16, 2))


class Loop(nn.Module):
    """One block that runs several times a round."""

    def __init__(self, cycles: int) -> None:
        super().__init__()
        self.cycles = cycles
        self.enter = nn.Linear(WIDTH + N_EXPERTS + 1, WIDTH)
        self.block = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH))
        self.read = nn.Linear(WIDTH + N_EXPERTS, 2)


def adapted(
    module: nn.Module,
    step: Callable[..., Any],
    points: Mapping[str, Any] | None = None,
    **options: Any,
) -> Any:
    """A machine of expert advice that carries one vector ``h``, unless options of ``interp.adapt`` say otherwise."""
    defaults = {
        "sizes": {"n_experts": N_EXPERTS},
        "channels": [interp.Channel("h", (WIDTH,))],
        "check": False,
    }
    return interp.adapt(module, "experts", step=step, points=points, **defaults | options)


def gru(seed: int = 0, points: Mapping[str, str] | None = None) -> Any:
    """A GRU cell with its gates in sight, or with other points."""
    torch.manual_seed(seed)

    def step(m: Any, carried: Mapping[str, Tensor], fed: Any) -> tuple[Tensor, dict[str, Tensor]]:
        advice, truth = read_round(fed)
        scores = m.read(torch.cat([carried["h"], advice], 1))
        return scores, {"h": m.cell(torch.cat([advice, truth], 1), carried["h"])}

    if points is None:
        points = {gate: f"cell.{gate}" for gate in ("reset", "update", "new")} | {"cell": "cell"}
    return adapted(RoundCell(nn.GRUCell(N_EXPERTS + 1, WIDTH)), step, points, name="gru")


def lstm(seed: int = 0) -> Any:
    """An LSTM cell: two channels."""
    torch.manual_seed(seed)

    def step(m: Any, carried: Mapping[str, Tensor], fed: Any) -> tuple[Tensor, dict[str, Tensor]]:
        advice, truth = read_round(fed)
        h, c = m.cell(torch.cat([advice, truth], 1), (carried["h"], carried["c"]))
        return m.read(torch.cat([carried["h"], advice], 1)), {"h": h, "c": c}

    channels, points = [interp.Channel(name, (WIDTH,)) for name in "hc"], ("forget", "output")
    module = RoundCell(nn.LSTMCell(N_EXPERTS + 1, WIDTH))
    return adapted(
        module, step, {gate: f"cell.{gate}" for gate in points}, name="lstm", channels=channels
    )


def loop(seed: int = 0, cycles: int = 3) -> Any:
    """A block that refines what is carried, ``cycles`` times a round."""
    torch.manual_seed(seed)

    def step(m: Any, carried: Mapping[str, Tensor], fed: Any) -> tuple[Tensor, dict[str, Tensor]]:
        advice, truth = read_round(fed)
        scores = m.read(torch.cat([carried["h"], advice], 1))
        h = m.enter(torch.cat([carried["h"], advice, truth], 1))
        for _ in range(m.cycles):
            h = h + m.block(h)
        return scores, {"h": h}

    return adapted(Loop(cycles), step, {"block": interp.Point("block", times=cycles)}, name="loop")


class Reader(nn.Module):
    """Reads all earlier rounds in a cache by attention: what it carries grows."""

    def __init__(self) -> None:
        super().__init__()
        self.write, self.ask = nn.Linear(N_EXPERTS + 1, 8), nn.Linear(N_EXPERTS, 8)
        self.read = nn.Linear(8 + N_EXPERTS, 2)


def cached(seed: int = 0, n_rounds: int = 6) -> Any:
    """A cache of one row a round, with room for ``n_rounds``."""
    torch.manual_seed(seed)

    def step(m: Any, carried: Mapping[str, Tensor], fed: Any) -> tuple[Tensor, dict[str, Tensor]]:
        advice, truth = read_round(fed)
        cache, length = carried["cache"], carried["cache_length"]
        scores = torch.einsum("bd,brd->br", m.ask(advice), cache)
        unwritten = torch.arange(cache.shape[1]) >= length.unsqueeze(1)
        weights = scores.masked_fill(unwritten, -1e9).softmax(1) * (length > 0).unsqueeze(1)
        seen = torch.einsum("br,brd->bd", weights, cache)
        new = m.write(torch.cat([advice, truth], 1)).unsqueeze(1)
        return m.read(torch.cat([seen, advice], 1)), {"cache": new}

    channels = [interp.Channel("cache", (n_rounds, 8), grows=1)]
    return adapted(Reader(), step, {"asked": "ask"}, name="cached", channels=channels)


def transformer(layout: RoundLayout, seed: int = 0, **changes: Any) -> HookedLatentTransformer:
    """The architecture of the learned models, small."""
    torch.manual_seed(seed)
    sizes: dict[str, Any] = {"d_model": 16, "n_layers": 2, "n_heads": 2, "d_head": 8, "d_mlp": 16}
    return HookedLatentTransformer(LatentTransformerConfig(layout, **sizes | changes)).eval()
