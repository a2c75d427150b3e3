"""The GRU of the wheel ``g2p-en`` (Apache licence) as a machine: it says words, one phoneme a round.

Fetch the wheel with ``pip download --no-deps g2p-en``, 3 MB; only the arrays in it are read. ``examples/g2p.py`` asks
what the state of this machine holds.
"""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

import interp
from interp.model.layout import EncodedRounds, RoundLayout
from interp.tasks import Analysis, Corruption, Data, Task

N, LETTERS = (
    5,
    "abcdefghijklmnopqrstuvwxyz",
)  # how many letters a word has, which are its rounds, too
VOWELS = "AA AE AH AO AW AY EH ER EY IH IY OW OY UH UW"  # each with its stress, 0 to 2
SOUNDS = "B CH D DH F G HH JH K L M N NG P R S SH T TH UW V W Y Z ZH"
SPOKEN = sorted(
    [*SOUNDS.split(), *(vowel + stress for vowel in VOWELS.split() for stress in "012")]
)
PHONEMES = ("<pad>", "<unk>", "<s>", "</s>", *SPOKEN)
SPELT = [
    [LETTERS.index(letter) for letter in of] for of in ("bdfgklmnprstvz", "aeiou")
]  # consonant, vowel, ...


@dataclass(frozen=True)
class Saying(RoundLayout):
    """The letters in the first round of a word, blanks in later ones; the phoneme asked for, and the one said."""

    task: ClassVar[str] = "saying"
    labels = ("<w>", "<z>", *(f"g_{i + 1}" for i in range(N)), "p?", "y", "w?")
    vocabulary = ("<w>", "p?", "w?", "_", *LETTERS, *PHONEMES)
    outcomes, n_latents = PHONEMES, 1

    def fit(self, episodes: Words) -> Saying:
        return self

    def encode(self, episodes: Words) -> EncodedRounds:
        tokens = torch.tensor([0, 0, *[3] * N, 1, 0, 2]).repeat(*episodes.said.shape, 1)
        tokens[:, ::N, 2 : 2 + N] = torch.from_numpy(episodes.letters) + 4
        tokens[..., -2] = torch.from_numpy(episodes.said) + 4 + len(LETTERS)
        return EncodedRounds(
            tokens, torch.zeros(tokens.shape), torch.zeros(tokens.shape[:2], dtype=torch.long)
        )


@dataclass(frozen=True, eq=False)
class Words:
    """Made-up words, Int[episode, word, letter], and how the model says them, Int[episode, round]."""

    letters: np.ndarray
    said: np.ndarray
    regime: str = "made-up"
    seed: int | None = None
    task: ClassVar[str] = "saying"
    n_rounds = property(lambda self: self.said.shape[1])

    def __len__(self) -> int:
        return len(self.said)

    def select(self, rows: Any) -> Words:
        return replace(self, letters=self.letters[rows], said=self.said[rows])


class Speaker(nn.Module):
    """The published arrays in PyTorch's own cells, which order their gates alike, and the task of saying words."""

    def __init__(self, wheel: str | Path) -> None:
        super().__init__()
        with zipfile.ZipFile(wheel) as archive:
            arrays = np.load(io.BytesIO(archive.read("g2p_en/checkpoint20.npz")))
            held = {name: torch.tensor(array) for name, array in arrays.items()}
        for side in ("enc", "dec"):
            cell = nn.GRUCell(256, 256)
            names = [(a, b) for a in ("weight", "bias") for b in ("ih", "hh")]
            cell.load_state_dict({f"{a}_{b}": held[f"{side}_{a[0]}_{b}"] for a, b in names})
            self.add_module(
                f"{side}_emb", nn.Embedding.from_pretrained(held[f"{side}_emb"], freeze=False)
            )
            self.add_module(side, cell)
        self.fc, self.state = nn.Linear(256, len(PHONEMES)), nn.Identity()
        self.fc.load_state_dict({"weight": held["fc_w"], "bias": held["fc_b"]})

    def read(self, letters: Tensor) -> Tensor:
        """The decoder's first state, ``[word, 256]``; a word ends with ``</s>``, and its saying begins with ``<s>``."""
        h = torch.zeros(len(letters), 256)
        for x in nn.functional.pad(letters + 3, (0, 1), value=2).unbind(1):
            h = self.enc(self.enc_emb(x), h)
        return self.dec(self.dec_emb(torch.full((len(letters),), 2)), h)

    def say(self, letters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Greedy phonemes of words, ``[word, N]``, and whether it says each word in just N."""
        said = []
        with torch.no_grad():
            h = self.read(torch.from_numpy(letters))
            for _ in range(N + 1):
                said.append(self.fc(h).argmax(1))
                h = self.dec(self.dec_emb(said[-1]), h)
        said = torch.stack(said, 1).numpy()
        return said[:, :N], (said[:, N] == 3) & (said[:, :N] > 3).all(1)

    # Made-up words, no two alike, that the model says in as many phonemes as they have letters.
    def sample(
        self, n_episodes: int, n_rounds: int = N, *, regime: str = "made-up", seed: int = 0
    ) -> Words:
        n_words, rng = -(-n_rounds // N), np.random.default_rng(seed)
        drawn = np.stack([rng.choice(SPELT[i % 2], 9 * n_episodes * n_words) for i in range(N)], 1)
        drawn = rng.permutation(np.unique(drawn[self.say(drawn)[1]], axis=0))[
            : n_episodes * n_words
        ]
        said = self.say(drawn)[0].reshape(n_episodes, -1)[:, :n_rounds]
        return Words(drawn.reshape(n_episodes, n_words, N), said, regime, seed)

    def other_ending(self, words: Words, round: int = 0) -> tuple[Words, Words]:
        """Words, and the same with another last letter, of which the model says the last phoneme alone differently."""
        letters = words.letters.copy()
        letters[..., -1] = np.random.default_rng(0).choice(SPELT[0], letters.shape[:-1])
        said, fits = self.say(letters.reshape(-1, N))
        differs = (said != words.said.reshape(-1, N)) == (np.arange(N) == N - 1)
        rows = (fits & differs.all(1)).reshape(len(words), -1).all(1)
        other = replace(words, letters=letters, said=said.reshape(words.said.shape))
        return words.select(rows), other.select(rows)


def step(
    speaker: Speaker, carried: dict[str, Tensor], fed: Any
) -> tuple[Tensor, dict[str, Tensor]]:
    letters, told = (
        (fed.tokens[:, 2 : 2 + N] - 4).clamp(0, 25),
        (fed.tokens[:, -2] - 4 - len(LETTERS)).clamp(0),
    )
    h = speaker.state(torch.where(fed.tokens[:, 2:3] != 3, speaker.read(letters), carried["h"]))
    return speaker.fc(h), {"h": speaker.dec(speaker.dec_emb(told), h)}


def losses(predictions: Tensor, words: Words, rounds: slice) -> Tensor:
    return Saying().loss(predictions, torch.from_numpy(words.said[:, rounds]))


def task(speaker: Speaker) -> Task:
    corruption = Corruption(
        "other-ending", "another last letter", N - 1, speaker.other_ending, changes_history=True
    )
    analysis = Analysis(default_corruption="other-ending", corruptions=lambda: (corruption,))
    data = Data(layout=Saying, sample=speaker.sample, losses=losses)
    return Task(key="saying", name="saying words", what="say a word", data=data, analysis=analysis)


def machine(speaker: Speaker) -> Any:
    """The encoder runs once for every letter; the decoder as a word begins, and as each round ends."""
    points = {
        "state": "state",
        "encoder": interp.Point("enc", times=N + 1),
        "new": interp.Point("dec.new", times=2),
    }
    channels = [interp.Channel("h", (256,))]
    return interp.adapt(speaker, Saying(), step=step, channels=channels, points=points, name="g2p")
