"""A data set of MDP episodes in one file: train and validation split, and the configuration that made it.

The file is safetensors. Its metadata holds the configuration as JSON; its tensors hold, for every batch of one size,
the MDPs, the recorded transitions, the exploration rates and the targets. Q-tables are not stored: they follow from the
transitions, and are learned again on loading (bit for bit the same; the stored targets are checked against them). That
keeps the file of the paper's 50,000 episodes about ten times smaller.

The same configuration gives the same bytes (on one machine and NumPy version, which is recorded). Files are read
strictly: the header holds a digest over itself and every tensor, so that an edited reward, rate or table is refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save_file

from interp.checks import checked
from interp.errors import require
from interp.files import reading, write_atomic
from interp.tasks.qlearning import sampling
from interp.tasks.qlearning.episodes import MDPEpisodes, MDPs

FORMAT = "interp-mdp-episodes"
_VERSION = 2

_Batches = dict[tuple[int, int, int], MDPEpisodes]
_SPLIT_STREAM = 101


@dataclass(frozen=True, eq=False)
class Dataset:
    """Episodes in two splits, by size (n_states, n_actions, n_rounds); ``config`` holds what made them."""

    train: _Batches
    validation: _Batches
    config: dict[str, Any]

    def __post_init__(self) -> None:
        for split in (self.train, self.validation):
            for size, batch in split.items():
                actual = (batch.n_states, batch.n_actions, batch.n_rounds)
                wrong = f"a batch of size {actual} stands under the key {size}; key batches by their size"
                require(size == actual, wrong)

    def __len__(self) -> int:
        return sum(len(batch) for split in (self.train, self.validation) for batch in split.values())


@checked
def generate(
    n_episodes: int = 50_000,
    n_states: tuple[int, int] = (2, 8),
    n_actions: tuple[int, int] = (2, 4),
    n_rounds: int | tuple[int, int] = (10, 50),
    seed: int = 0,
    alpha: float = 0.1,
    gamma: float = 0.9,
    epsilon: sampling.Epsilon = "uniform",
    regime: str = "grid",
    validation: float = 0.1,
) -> Dataset:
    """The paper's data set (its defaults), split at random: a share ``validation`` of the episodes is held out.

    The other arguments are those of ``sampling.sample_grid``.
    """
    require(0 <= validation < 1, f"validation must lie in [0, 1), got {validation}; the paper holds out 0.1")
    settings: dict[str, Any] = {
        "n_episodes": n_episodes, "n_states": n_states, "n_actions": n_actions, "n_rounds": n_rounds, "seed": seed,
        "alpha": alpha, "gamma": gamma, "epsilon": epsilon, "regime": regime,
    }  # fmt: skip
    batches = sampling.sample_grid(**settings)
    held_out = np.zeros(n_episodes, bool)
    chosen = np.random.default_rng([seed, _SPLIT_STREAM]).permutation(n_episodes)
    held_out[chosen[: round(validation * n_episodes)]] = True
    ends = np.cumsum([len(batch) for batch in batches.values()])
    parts = list(zip(batches.items(), np.split(held_out, ends[:-1]), strict=True))
    train, kept_back = (
        {size: batch.select(mask == kept) for (size, batch), mask in parts if (mask == kept).any()}
        for kept in (False, True)
    )
    config = {**settings, "validation": validation, "numpy": np.__version__}
    return Dataset(train, kept_back, json.loads(json.dumps(config)))


@checked
def save(dataset: Dataset, path: str | Path) -> Path:
    """Write ``dataset`` to one file, atomically; the same data set gives the same bytes."""
    tensors: dict[str, NDArray[Any]] = {}
    records: dict[str, Any] = {}
    for split in ("train", "validation"):
        for size, batch in getattr(dataset, split).items():
            name = "/".join(map(str, (split, *size)))
            families = sorted(set(batch.known_mdps.families))
            records[name] = {"families": families, **{key: getattr(batch, key) for key in _SETTINGS}}
            for key, array in _arrays(batch, families).items():
                tensors[f"{name}/{key}"] = np.ascontiguousarray(array)
    header = {"format": FORMAT, "version": _VERSION, "config": dataset.config, "batches": records}
    header["digest"] = _digest(header, tensors)
    # One metadata entry: safetensors writes several in no fixed order.
    metadata = {FORMAT: json.dumps(header, sort_keys=True)}
    return write_atomic(path, lambda temporary: save_file(tensors, temporary, metadata))


@checked
def load(path: str | Path) -> Dataset:
    """Read what :func:`save` wrote, learn the Q-tables again, and check the stored targets against them."""
    path = Path(path)
    require(path.is_file(), f"there is no data set file {str(path)!r}; make one with datasets.save")
    with reading(path, "it is no data set, or was cut short or changed; make it again with datasets.save"):
        with safe_open(path, framework="np") as stream:
            metadata = stream.metadata() or {}
            tensors = {key: stream.get_tensor(key) for key in stream.keys()}  # noqa: SIM118 (not a dict)
        require(FORMAT in metadata, f"{str(path)!r} holds no MDP episodes; make it with datasets.save")
        header = json.loads(metadata[FORMAT])
        require(
            header["version"] == _VERSION,
            f"{str(path)!r} has format version {header['version']}, this code reads {_VERSION}; generate it again",
        )
        require(
            header.pop("digest") == _digest(header, tensors),
            f"{str(path)!r} was changed: its digest is not that of its contents; generate the data again",
        )
        splits: dict[str, _Batches] = {"train": {}, "validation": {}}
        for name, record in header["batches"].items():
            split, *size = name.split("/")
            n_states, n_actions, n_rounds = map(int, size)
            arrays = {key: tensors.pop(f"{name}/{key}", None) for key in _KEYS}
            missing = [key for key, array in arrays.items() if array is None]
            require(not missing, f"{str(path)!r} lacks {', '.join(missing)} of the batch {name}; generate it again")
            splits[split][n_states, n_actions, n_rounds] = _batch(arrays, record, name)
        require(not tensors, f"{str(path)!r} holds tensors that belong to no batch: {', '.join(sorted(tensors)[:5])}")
        return Dataset(splits["train"], splits["validation"], header["config"])


def _digest(header: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]) -> str:
    """SHA-256 of the header and of the name, type, shape and numbers of every tensor."""
    sha = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name, array in sorted(tensors.items()):
        sha.update(f"{name} {array.dtype} {array.shape}".encode())
        sha.update(np.ascontiguousarray(array).tobytes())
    return sha.hexdigest()


_SETTINGS = ("alpha", "gamma", "regime", "seed")
_LABELS = ("states", "actions", "next_states", "greedy")
_MDP = ("transitions", "mdp_rewards", "family", "concentration", "bernoulli")
_KEYS = (*_LABELS, "rewards", "epsilon", *_MDP, "initial")


def _arrays(batch: MDPEpisodes, families: list[str]) -> dict[str, NDArray[Any]]:
    labels, mdps = np.min_scalar_type(max(batch.n_states, batch.n_actions)), batch.known_mdps
    family = np.array([families.index(family) for family in mdps.families], np.uint8)
    of_mdps = (mdps.transitions, mdps.rewards, family, mdps.concentrations, mdps.bernoulli)
    others = {"rewards": batch.rewards, "epsilon": batch.epsilon, "initial": batch.q_tables[:, 0]}
    return {key: getattr(batch, key).astype(labels) for key in _LABELS} | dict(zip(_MDP, of_mdps, strict=True)) | others


def _batch(arrays: Mapping[str, NDArray[Any]], record: Mapping[str, Any], name: str) -> MDPEpisodes:
    families = tuple(record["families"][i] for i in arrays["family"])
    drawn = {"concentrations": arrays["concentration"], "bernoulli": arrays["bernoulli"]}
    mdps = MDPs(arrays["transitions"], arrays["mdp_rewards"], families=families, **drawn)
    labels: dict[str, Any] = {key: arrays[key].astype(np.int64) for key in _LABELS}
    targets = labels.pop("greedy")
    others: dict[str, Any] = {key: arrays[key] for key in ("rewards", "epsilon", "initial")}
    settings = {key: record[key] for key in _SETTINGS}
    batch = MDPEpisodes.from_transitions(mdps, **labels, **others, **settings)
    wrong = f"the stored targets of the batch {name} are not those of its transitions; generate the file again"
    require(bool((batch.greedy == targets).all()), wrong)
    return batch
