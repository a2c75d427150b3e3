"""Rollouts on disk: one safetensors file, with what is no tensor as JSON in its header.

The header holds a SHA-256 of every tensor and of itself: a file that was damaged or edited is refused, in what of it is
read. :func:`load` reads only the activations that are asked for.

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

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from interp.model.layout import EncodedRounds, layout_from_dict
from interp.model.run import Rollout
from interp.support.checks import checked, file_path
from interp.support.errors import InputError, require, require_known
from interp.support.files import digest_of, json_values, reading, write_atomic
from interp.support.foreign import loaded

_FED = ("tokens", "values", "slots")
_MISSING = "missing"
_CACHE = "cache."
_FORMAT = 2
_EDITED = "it was cut short or edited; save the rollout again"


@checked
def save(run: Rollout, path: str | Path) -> Path:
    """Write a rollout, its cache included, to ``path``, such as ``run.safetensors``; a file there is replaced."""
    extra = sorted(run.fed.tensors().keys() - {*_FED, _MISSING})
    require(
        not extra,
        f"rounds with further tensors ({', '.join(extra)}) cannot be saved; save the episodes instead",
    )
    tensors = {"predictions": run.predictions, "latents": run.latents, **run.fed.tensors()}
    tensors |= {f"{_CACHE}{name}": value for name, value in run.cache.items()}
    about = {
        "format_version": _FORMAT,
        "layout": run.layout.to_dict(),
        "commit": run.commit,
        "cached_rounds": list(run.cached_rounds),
        "settings": json_values(run.settings),
    }
    # Cloned, because a tensor that stands in two places of a rollout is refused by safetensors.
    stored = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    about["sha256"] = {
        name: hashlib.sha256(content_of(name, tensor)).hexdigest()
        for name, tensor in stored.items()
    }
    header = {"rollout": json.dumps({**about, "digest": digest_of(about)})}
    return write_atomic(Path(path), lambda temporary: save_file(stored, temporary, metadata=header))


@checked
def load(path: str | Path, names: Sequence[str] | None = None) -> Rollout:
    """The rollout in a file, on the CPU, with the cached activations of these ``names``: all when None."""
    path = Path(file_path(path))
    require(path.is_file(), f"no file {str(path)!r}; give one that interp.model.saved.save wrote")
    with reading(path, _EDITED), safe_open(path, framework="pt") as stored:
        header = (stored.metadata() or {}).get("rollout")
        if header is None:
            raise InputError(
                f"{str(path)!r} holds no rollout; give a file that interp.model.saved.save wrote"
            )
        about, held = loaded(header), list(stored.keys())
        version = about["format_version"]
        require(
            version == _FORMAT,
            f"{str(path)!r} has format version {version!r}; this version reads {_FORMAT}",
        )
        same = about.pop("digest", None) == digest_of(about) and set(about["sha256"]) == set(held)
        require(same, f"{str(path)!r} was edited: {_EDITED}")
        cached = [name.removeprefix(_CACHE) for name in held if name.startswith(_CACHE)]
        for name in names or ():
            require_known(f"cached activation in {str(path)!r}", name, cached)

        def read(name: str) -> Tensor:
            tensor = stored.get_tensor(name)
            known = hashlib.sha256(content_of(name, tensor)).hexdigest() == about["sha256"][name]
            require(known, f"{str(path)!r} holds another {name!r} than was written: {_EDITED}")
            return tensor

        run = Rollout(
            read("predictions"),
            read("latents"),
            EncodedRounds(*map(read, _FED), missing=read(_MISSING) if _MISSING in held else None),
            layout=layout_from_dict(about["layout"]),
            commit=about["commit"],
            cache={name: read(f"{_CACHE}{name}") for name in (cached if names is None else names)},
            cached_rounds=tuple(about["cached_rounds"]),
            settings=about["settings"],
        )
        _fits_together(run, str(path))
        return run


def _fits_together(run: Rollout, where: str) -> None:
    """Refuse a rollout whose parts are of different sizes: it would be read as of others."""
    require_known("commit", run.commit, ("own", "target"))
    require(
        run.tokens.ndim == 3,
        f"{where!r}: tokens must be [episode, round, position], got {tuple(run.tokens.shape)}",
    )
    n_episodes, n_rounds, n_positions = run.tokens.shape
    require(
        n_positions == run.layout.n_positions,
        f"{where!r}: tokens have {n_positions} positions a round, its layout {run.layout.n_positions}; {_EDITED}",
    )
    for name, (tensor, shape) in {
        "values": (run.values, (n_episodes, n_rounds, n_positions)),
        "slots": (run.slots, (n_episodes, n_rounds)),
        "predictions": (run.predictions, (n_episodes, n_rounds)),
        "latents": (run.latents, (n_episodes, n_rounds + 1)),
        **{
            name: (tensor, (n_episodes, len(run.cached_rounds)))
            for name, tensor in run.cache.items()
        },
        **(
            {} if run.fed.missing is None else {_MISSING: (run.fed.missing, (n_episodes, n_rounds))}
        ),
    }.items():
        whole = name in ("values", "slots", _MISSING)
        fits = tuple(tensor.shape) == shape if whole else tuple(tensor.shape[:2]) == shape
        require(
            fits,
            f"{where!r}: {name!r} is {tuple(tensor.shape)}, where {shape} must stand first; {_EDITED}",
        )
    inside = all(isinstance(t, int) and 0 <= t < n_rounds for t in run.cached_rounds)
    require(
        inside,
        f"{where!r}: cached rounds {run.cached_rounds} are not among the {n_rounds}; {_EDITED}",
    )


def content_of(name: str, tensor: Tensor) -> bytes:
    """A tensor as bytes that no other tensor has: its name, type and sizes, then its numbers."""
    head = f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode()
    return head + tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
