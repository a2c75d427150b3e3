"""Convert a carried state between one tensor ``[batch, row, width]`` and one tensor per channel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from interp.core.machine import Channel
from interp.support.checks import format_value
from interp.support.errors import InputError, require


def pack(channels: Sequence[Channel], tree: Mapping[str, Tensor]) -> Tensor:
    """Join the tensors of all channels (the named parts of a carried state) to one tensor.

    Args:
        channels: the channels, in the order of their rows.
        tree: name of a channel -> its tensor, ``[batch, *shape]``.

    Returns:
        The carried state ``[batch, row, width]``; narrow channels are padded with zeros.
    """
    width = max(channel.shape[-1] for channel in channels)
    parts = []
    for channel in channels:
        value = _require_shape(channel, tree.get(channel.name))
        channel_width = channel.shape[-1]
        rows = value.reshape(len(value), channel.rows, channel_width)
        parts.append(torch.nn.functional.pad(rows, (0, width - channel_width)))
    undeclared = tree.keys() - {channel.name for channel in channels}
    name = min(undeclared, default="")  # one of them, for the message
    require(
        not undeclared, f"{name!r} is carried but in no channel; declare Channel({name!r}, shape)"
    )
    return torch.cat(parts, 1)


def _require_shape(channel: Channel, value: Tensor | None) -> Tensor:
    """Return a channel's tensor ``[batch, *shape]``; raise InputError if it is missing or has
    another shape.
    """
    if isinstance(value, Tensor) and value.shape[1:] == channel.shape:
        return value
    got = "nothing" if value is None else format_value(value)
    if isinstance(value, Tensor):
        got = str(tuple(value.shape))
    raise InputError(f"channel {channel.name!r} is [batch, *{channel.shape}], got {got}")


def unpack(channels: Sequence[Channel], carried: Tensor) -> dict[str, Tensor]:
    """Split a carried state into the tensors of its channels (named parts): the inverse of
    :func:`pack`.

    Args:
        channels: the channels, in the order of their rows.
        carried: the state, ``[..., row, width]``.

    Returns:
        Name of a channel -> its tensor, ``[..., *shape]``.
    """
    parts = carried.split([channel.rows for channel in channels], -2)
    batch = carried.shape[:-2]
    tree = {}
    for channel, part in zip(channels, parts, strict=True):
        numbers = part[..., : channel.shape[-1]]  # without the zeros that pad narrow channels
        tree[channel.name] = numbers.reshape(*batch, *channel.shape)
    return tree


def append_rows(
    channel: Channel, cache: Tensor, length: Tensor, rows: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Append a round's new rows to a growing channel of the carried state, such as a key-value
    cache.

    Args:
        channel: the channel, which grows by ``channel.grows`` rows a round.
        cache: the values of all its rows, filled and empty, ``[batch, *channel.shape]``.
        length: Int[batch], the number of rows that are filled.
        rows: the new rows, ``[batch, channel.grows, ...]``; None and other shapes are refused.

    Returns:
        The cache with the new rows, and Int[batch], the number of rows that are now filled.
    """
    capacity = channel.shape[0]
    expected = (channel.grows, *channel.shape[1:])
    got = "nothing" if rows is None else tuple(rows.shape[1:])
    if rows is None or got != expected:
        raise InputError(
            f"a round writes [batch, *{expected}] into the channel {channel.name!r}, got [batch, *{got}]"
        )
    # Where the new rows go, [batch, new row]; episodes may have different numbers of filled rows.
    places = length.unsqueeze(1) + torch.arange(channel.grows, device=length.device)
    if int(places.max()) >= capacity:
        n_rounds = capacity // channel.grows
        raise InputError(
            f"channel {channel.name!r} has room for {capacity} rows and a round writes {channel.grows}: "
            f"no round fits after {n_rounds}; give it a larger shape"
        )
    every_episode = torch.arange(len(cache), device=cache.device).unsqueeze(1)
    cache = cache.clone()  # a round must not write into what it was given
    cache[every_episode, places] = rows.to(cache.dtype)
    return cache, places[:, -1] + 1
