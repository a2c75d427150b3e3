"""Rollouts on disk: one safetensors file, with what is no tensor as JSON in its header.

A rollout's cache can be larger than memory holds: :func:`load` reads only the activations that are asked for.

    >>> import tempfile, interp
    >>> from interp.tasks import experts
    >>> episodes = experts.sample(n_episodes=2, n_rounds=3, n_experts=2, seed=0)
    >>> model = interp.load("wma-handwired", n_experts=2)
    >>> run = interp.rollout(model, episodes, names_filter=["hook_embed", "blocks.0.hook_resid_post"])
    >>> path = save(run, f"{tempfile.mkdtemp()}/run.safetensors")
    >>> again = load(path, names=["hook_embed"])
    >>> bool((again.latents == run.latents).all()), list(again.cache), again.layout == run.layout
    (True, ['hook_embed'], True)
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file

from interp.checks import checked
from interp.errors import InputError, require, unknown_name
from interp.files import json_values, reading, write_atomic
from interp.model.layout import EncodedRounds, layout_from_dict
from interp.model.run import Rollout

_FED = ("tokens", "values", "slots")
_CACHE = "cache."
_FORMAT = 1


@checked
def save(run: Rollout, path: str | Path) -> Path:
    """Write a rollout, its cache included, to ``path``, such as ``run.safetensors``; a file there is replaced."""
    extra = sorted(run.fed.tensors().keys() - set(_FED))
    require(not extra, f"rounds with further tensors ({', '.join(extra)}) cannot be saved; save the episodes instead")
    tensors = {"predictions": run.predictions, "latents": run.latents, **run.fed.tensors()}
    tensors |= {f"{_CACHE}{name}": value for name, value in run.cache.items()}
    about = {
        "format_version": _FORMAT,
        "layout": run.layout.to_dict(),
        "commit": run.commit,
        "cached_rounds": list(run.cached_rounds),
        "settings": json_values(run.settings),
    }
    stored = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    header = {"rollout": json.dumps(about)}
    return write_atomic(Path(path), lambda temporary: save_file(stored, temporary, metadata=header))


@checked
def load(path: str | Path, names: Sequence[str] | None = None) -> Rollout:
    """The rollout in a file, on the CPU, with the cached activations of these ``names``: all when None."""
    path = Path(path)
    require(path.is_file(), f"no file {str(path)!r}; give one that interp.model.saved.save wrote")
    with reading(path), safe_open(path, framework="pt") as stored:
        header = (stored.metadata() or {}).get("rollout")
        if header is None:
            raise InputError(f"{str(path)!r} holds no rollout; give a file that interp.model.saved.save wrote")
        about, held = json.loads(header), list(stored.keys())
        version = about["format_version"]
        require(version == _FORMAT, f"{str(path)!r} has format version {version!r}; this version reads {_FORMAT}")
        cached = [name.removeprefix(_CACHE) for name in held if name.startswith(_CACHE)]
        for name in names or ():
            if name not in cached:
                raise unknown_name(f"cached activation in {str(path)!r}", name, cached)
        return Rollout(
            stored.get_tensor("predictions"),
            stored.get_tensor("latents"),
            EncodedRounds(*(stored.get_tensor(name) for name in _FED)),
            layout=layout_from_dict(about["layout"]),
            commit=about["commit"],
            cache={name: stored.get_tensor(f"{_CACHE}{name}") for name in (cached if names is None else names)},
            cached_rounds=tuple(about["cached_rounds"]),
            settings=about["settings"],
        )
