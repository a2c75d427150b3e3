"""A data set survives its file bit for bit, the same seed gives the same bytes, and a damaged file is refused."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from interp.errors import InputError
from interp.tasks import mdp
from interp.tasks.qlearning import datasets


@pytest.fixture(scope="module")
def dataset() -> datasets.Dataset:
    return datasets.generate(200, n_states=(2, 4), n_rounds=(3, 6), seed=1)


@pytest.fixture
def path(dataset, tmp_path):
    return datasets.save(dataset, tmp_path / "episodes.safetensors")


def test_what_is_loaded_is_what_was_saved(dataset, path):
    """Tables are learned again on loading, to the same bits."""
    loaded = datasets.load(path)
    assert loaded.config == dataset.config and len(loaded) == 200
    for split in ("train", "validation"):
        before, after = getattr(dataset, split), getattr(loaded, split)
        assert before.keys() == after.keys()
        for size, batch in before.items():
            for name in ("states", "actions", "rewards", "next_states", "greedy", "q_tables", "epsilon"):
                assert getattr(batch, name).tobytes() == getattr(after[size], name).tobytes(), name
            assert batch.mdps.families == after[size].mdps.families
            assert batch.mdps.transitions.tobytes() == after[size].mdps.transitions.tobytes()


def test_same_seed_same_bytes(dataset, path, tmp_path):
    again = datasets.generate(200, n_states=(2, 4), n_rounds=(3, 6), seed=1)
    other = datasets.generate(200, n_states=(2, 4), n_rounds=(3, 6), seed=2)
    assert datasets.save(again, tmp_path / "again.safetensors").read_bytes() == path.read_bytes()
    assert datasets.save(other, tmp_path / "other.safetensors").read_bytes() != path.read_bytes()


def test_the_split_is_random_and_of_the_asked_share(dataset):
    assert sum(map(len, dataset.validation.values())) == 20
    assert len({size[0] for size in dataset.validation}) == 3


def test_the_configuration_makes_the_data_set_again(dataset):
    """What the file says about itself is enough to regenerate it."""
    config = {k: tuple(v) if isinstance(v, list) else v for k, v in dataset.config.items() if k != "numpy"}
    again = datasets.generate(**config)
    size = next(iter(dataset.train))
    assert again.train[size].q_tables.tobytes() == dataset.train[size].q_tables.tobytes()


def _edit(path, change, sign=True):
    """Change a file; its digest is made right again, unless ``sign`` is false."""
    tensors = load_file(path)
    header = path.read_bytes()
    length = int.from_bytes(header[:8], "little")
    metadata = json.loads(header[8 : 8 + length])["__metadata__"]
    change(tensors, metadata)
    if sign and metadata:
        header = json.loads(metadata[datasets.FORMAT])
        header.pop("digest")
        metadata[datasets.FORMAT] = json.dumps({**header, "digest": datasets._digest(header, tensors)})
    save_file(tensors, path, metadata)


def _drop(tensors, metadata):
    tensors.pop(next(k for k in tensors if k.endswith("/rewards")))


def _add(tensors, metadata):
    tensors["train/9/9/9/rewards"] = np.zeros(1)


def _older(tensors, metadata):
    metadata[datasets.FORMAT] = json.dumps({**json.loads(metadata[datasets.FORMAT]), "version": 0})


def _damage(tensors, metadata):
    name = next(k for k in tensors if k.endswith("/greedy"))
    tensors[name] = 1 - np.minimum(tensors[name], 1)


def _foreign(tensors, metadata):
    metadata.clear()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_drop, "lacks rewards of the batch"),
        (_add, "belong to no batch: train/9/9/9/rewards"),
        (_older, "format version 0, this code reads 2"),
        (_damage, "not those of its transitions"),
        (_foreign, "holds no MDP episodes"),
    ],
)
def test_a_changed_file_is_refused(path, change, message):
    _edit(path, change)
    with pytest.raises(InputError, match=message):
        datasets.load(path)


def _reward(tensors, metadata):
    tensors[next(k for k in tensors if k.endswith("/rewards"))] += 0.01


def _rate(tensors, metadata):
    metadata[datasets.FORMAT] = metadata[datasets.FORMAT].replace('"alpha": 0.1', '"alpha": 0.2')


def _reversed(tensors, metadata):
    name = next(k for k in tensors if k.endswith("/transitions"))
    tensors[name] = np.ascontiguousarray(tensors[name][..., ::-1])


@pytest.mark.parametrize("change", [_reward, _rate, _reversed, _damage])
def test_an_edited_file_is_refused_by_its_digest(path, change):
    """Each of these is a valid data set by itself, and another one than was generated."""
    _edit(path, change, sign=False)
    with pytest.raises(InputError, match="was changed: its digest is not that of its contents"):
        datasets.load(path)


@pytest.mark.parametrize("header", ["null", "[]", '{"version": 2}', '{"version": 2, "digest": 1}', "{"])
def test_a_damaged_header_is_refused(path, header):
    _edit(path, lambda tensors, metadata: metadata.update({datasets.FORMAT: header}), sign=False)
    with pytest.raises(InputError, match=r"is damaged \(|was changed"):
        datasets.load(path)


def test_a_cut_or_missing_file_is_refused(path, tmp_path):
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(InputError, match=r"is damaged .* it is no data set"):
        datasets.load(path)
    with pytest.raises(InputError, match="there is no data set file"):
        datasets.load(tmp_path / "none.safetensors")


def test_a_share_outside_its_range_or_a_wrong_key_is_refused():
    with pytest.raises(InputError, match=r"validation must lie in \[0, 1\), got 1"):
        datasets.generate(10, validation=1.0)
    with pytest.raises(InputError, match="key batches by their size"):
        datasets.Dataset({(9, 9, 9): mdp.sample(1, 2, 2, 2)}, {}, {})
