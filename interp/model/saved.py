"""Save rollouts to disk: one safetensors file, with everything that is no tensor as JSON in its
header.

The header has the SHA-256 of every tensor and of itself, so that a damaged or edited file is
refused. :func:`load` reads, and checks, only the activations that are named.

    >>> import tempfile, interp
    >>> from interp.tasks import experts
    >>> model, episodes = interp.load("wma-handwired", n_experts=2), experts.sample(2, 3, 2, seed=0)
    >>> run = interp.rollout(model, episodes, names_filter=["hook_embed", "blocks.0.hook_resid_post"])
    >>> again = load(save(run, f"{tempfile.mkdtemp()}/run.safetensors"), names=["hook_embed"])
    >>> bool((again.latents == run.latents).all()), list(again.cache), again.layout == run.layout
    (True, ['hook_embed'], True)
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from interp.core.display import Cache
from interp.model.hooked import bytes_of, copy_for_file
from interp.model.layout import EncodedRounds, layout_from_dict
from interp.model.run import Rollout
from interp.support.checks import checked, file_path
from interp.support.errors import InputError, require, require_known
from interp.support.files import convert_read_errors, digest_of, json_values, write_atomic
from interp.support.foreign import parse_json

_TENSORS_OF_ROUNDS = ("tokens", "values", "slots", "missing")
_CACHE_PREFIX = "cache."
_FORMAT_VERSION = 2
_CUT_OR_EDITED = "it was cut short or edited; save the rollout again"


@checked
def save(run: Rollout, path: str | Path) -> Path:
    """Write a rollout with its cache of activations to a file, and return the path. The model and
    the episodes are not written. An existing file is replaced.

    Args:
        run: the rollout.
        path: the file, such as ``run.safetensors``.
    """
    rounds = run.fed.tensors()
    extra = sorted(rounds.keys() - set(_TENSORS_OF_ROUNDS))
    require(
        not extra,
        f"rounds with further tensors ({', '.join(extra)}) cannot be saved; save the episodes instead",
    )
    tensors = {"predictions": run.predictions, "latents": run.latents, **rounds}
    for name, activation in run.cache.items():
        tensors[f"{_CACHE_PREFIX}{name}"] = activation
    tensors = copy_for_file(tensors)
    description = {
        "format_version": _FORMAT_VERSION,
        "layout": run.layout.to_dict(),
        "commit": run.commit,
        "cached_rounds": list(run.cached_rounds),
        "n_layers": getattr(run.cache, "n_layers", 0),
        "settings": json_values(run.settings),
        "sha256": {name: _hash_tensor(name, tensor) for name, tensor in tensors.items()},
    }
    header = {"rollout": json.dumps({**description, "digest": digest_of(description)})}
    return write_atomic(
        Path(path), lambda temporary: save_file(tensors, temporary, metadata=header)
    )


@checked
def load(path: str | Path, names: Sequence[str] | None = None) -> Rollout:
    """Read a rollout from a file that :func:`save` wrote, on the CPU.

    Args:
        path: the file.
        names: names of the cached activations to read; all when None.
    """
    path = Path(file_path(path))
    require(path.is_file(), f"no file {str(path)!r}; give one that interp.model.saved.save wrote")
    with convert_read_errors(path, _CUT_OR_EDITED), safe_open(path, framework="pt") as stored:
        description = _read_header(path, stored)
        digests = description["sha256"]
        cached = [
            name.removeprefix(_CACHE_PREFIX) for name in digests if name.startswith(_CACHE_PREFIX)
        ]
        for name in names or ():
            require_known(f"cached activation in {str(path)!r}", name, cached)

        def read_tensor(name: str) -> Tensor:
            """Read a tensor from the file; refuse one that does not have the stored hash."""
            tensor: Tensor = stored.get_tensor(name)
            require(
                _hash_tensor(name, tensor) == digests[name],
                f"{str(path)!r} holds another {name!r} than was written: {_CUT_OR_EDITED}",
            )
            return tensor

        rounds = {name: read_tensor(name) for name in _TENSORS_OF_ROUNDS if name in digests}
        selected = cached if names is None else names
        cache = Cache({name: read_tensor(f"{_CACHE_PREFIX}{name}") for name in selected})
        cache.n_layers = description.get("n_layers", 0)  # absent in older files
        layout = layout_from_dict(description["layout"])
        run = Rollout(
            predictions=read_tensor("predictions"),
            latents=read_tensor("latents"),
            fed=EncodedRounds(**rounds),
            layout=layout,
            commit=description["commit"],
            cache=cache,
            cached_rounds=tuple(description["cached_rounds"]),
            settings=description["settings"],
        )
    _require_fitting(run, str(path))
    return run


def _require_fitting(run: Rollout, where: str) -> None:
    """Refuse a rollout whose tensors differ in their numbers of episodes or rounds.

    Args:
        run: the rollout.
        where: path of its file, for the error message.
    """
    require_known("commit", run.commit, ("own", "target"))
    by_round = run.predictions.shape[:2]
    n_episodes, n_rounds = by_round
    by_position = (*by_round, run.layout.n_positions)
    # The first axes of every tensor; those that are not listed are cached activations.
    shapes = {
        "tokens": by_position,
        "values": by_position,
        "slots": by_round,
        "missing": by_round,
        "latents": (n_episodes, n_rounds + 1),
    }
    shape_of_cached = (n_episodes, len(run.cached_rounds))
    tensors = {**run.fed.tensors(), "latents": run.latents, **run.cache}
    for name, tensor in tensors.items():
        shape = tuple(shapes.get(name, shape_of_cached))
        fits = tensor.shape[: len(shape)] == shape
        require(
            fits,
            f"{where!r}: {name!r} is {tuple(tensor.shape)}, where {shape} must stand first; {_CUT_OR_EDITED}",
        )
    are_rounds = all(t in range(n_rounds) for t in run.cached_rounds)
    require(
        are_rounds,
        f"{where!r}: cached rounds {run.cached_rounds} are not among the {n_rounds}; {_CUT_OR_EDITED}",
    )


def _read_header(path: Path, stored: Any) -> dict[str, Any]:
    """Return the description of a rollout that is stored in its file's header. Refuse another
    format version and an edited file.

    Args:
        path: the file, for error messages.
        stored: the opened safetensors file.
    """
    header = (stored.metadata() or {}).get("rollout")
    if header is None:
        raise InputError(
            f"{str(path)!r} holds no rollout; give a file that interp.model.saved.save wrote"
        )
    description: dict[str, Any] = parse_json(header)
    version = description["format_version"]
    require(
        version == _FORMAT_VERSION,
        f"{str(path)!r} has format version {version!r}; this version reads {_FORMAT_VERSION}",
    )
    digest = description.pop("digest", None)  # it is that of the rest of the description
    has_all_tensors = description["sha256"].keys() == set(stored.keys())
    is_whole = has_all_tensors and digest == digest_of(description)
    require(is_whole, f"{str(path)!r} was edited: {_CUT_OR_EDITED}")
    return description


def _hash_tensor(name: str, tensor: Tensor) -> str:
    """Return the SHA-256 of a tensor's name, dtype, shape and numbers, in hexadecimal."""
    return hashlib.sha256(content_of(name, tensor)).hexdigest()


def content_of(name: str, tensor: Tensor) -> bytes:
    """Return bytes that differ for different tensors: the name, the dtype and the shape as text,
    followed by the numbers.
    """
    head = f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode()
    return head + bytes_of(tensor)
