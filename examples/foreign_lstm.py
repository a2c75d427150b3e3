"""A model that others trained, end to end: the voice detector of the wheel ``silero-vad`` (MIT licence), an LSTM.

Its arrays are adapted, its rounds are held against the vendor's own forward pass, one patch against hooks made by hand;
then it is audited and probed. ``pip download --no-deps silero-vad``, and ``python examples/foreign_lstm.py WHEEL``. No
recording is needed: syllables of random pitch, between pauses, are voice enough for it.
"""

from __future__ import annotations

import io
import sys
import zipfile
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import interp
import probes
from interp.audit import Budget, audit
from interp.interventions import sites
from interp.support.files import write_figure
from interp.tasks import register, series

RATE, CHUNK, BEFORE = (
    16_000,
    512,
    64,
)  # samples a second, of a round, and of the round before that it also hears
VOWEL = (
    (600, 120, 1.0),
    (1300, 180, 0.6),
    (2500, 250, 0.3),
)  # formants of "a": frequency, width, strength


def draw(n_episodes: int, n_rounds: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Sound, ``[episode, round, sample]``, and whether there is a voice: about every tenth round that changes."""
    rng = np.random.default_rng(seed)
    voiced = (rng.random((n_episodes, n_rounds)) < 0.1).cumsum(1) % 2
    seconds, pitch = np.arange(n_rounds * CHUNK) / RATE, rng.uniform(100, 220, (n_episodes, 1))
    phase = 2 * np.pi * np.cumsum(pitch * (1 + 0.03 * np.sin(10 * np.pi * seconds)), 1) / RATE
    sound, syllables = (
        0.003 * rng.normal(size=phase.shape),
        np.sin(8 * np.pi * seconds) ** 2 * voiced.repeat(CHUNK, 1),
    )
    for k in range(1, 30):
        strength = 0.02 + sum(
            g * np.exp(-(((k * pitch - at) / width) ** 2)) for at, width, g in VOWEL
        )
        sound += 0.1 * strength * np.sin(k * phase) * syllables
    heard = np.pad(sound, ((0, 0), (BEFORE, 0)))
    starts = CHUNK * np.arange(n_rounds)[:, None] + np.arange(BEFORE + CHUNK)
    return heard[:, starts].astype(np.float32), voiced


VOICE = series(
    "voice",
    draw,
    inputs=BEFORE + CHUNK,
    outcomes=("silence", "speech"),
    what="hear whether somebody speaks",
)


class Detector(nn.Module):
    """The published arrays, in the order of the published program."""

    def __init__(self, published: Any) -> None:
        super().__init__()
        self.stft_conv = nn.Conv1d(1, 258, 256, stride=128, bias=False)
        sizes = [(129, 128, 1), (128, 64, 2), (64, 64, 2), (64, 128, 1)]
        for i, (before, after, stride) in enumerate(sizes, start=1):
            self.add_module(f"conv{i}", nn.Conv1d(before, after, 3, stride, padding=1))
        self.lstm_cell, self.final_conv = nn.LSTMCell(128, 128), nn.Conv1d(128, 1, 1)
        self.load_state_dict(
            dict(zip(self.state_dict(), published._model.state_dict().values(), strict=True))
        )

    def features(self, sound: Tensor) -> Tensor:
        """What the cell hears of a round, ``[batch, 128]``."""
        x = self.stft_conv(nn.functional.pad(sound, (0, BEFORE), mode="reflect")[:, None])
        x = (x[:, :129].square() + x[:, 129:].square()).sqrt()
        for i in range(1, 5):
            x = getattr(self, f"conv{i}")(x).relu()
        return x.squeeze(-1)

    def voice(self, h: Tensor) -> Tensor:
        """The log-odds of a voice, ``[batch, 1]``."""
        return self.final_conv(h.relu()[..., None]).squeeze(-1)


def machine(detector: Detector) -> Any:
    at = slice(2, 2 + BEFORE + CHUNK)
    return interp.machines.cell(
        detector, VOICE, core="lstm_cell", hears="before", name="silero-vad",
        hear=lambda m, fed: m.features(fed.values[:, at]), read=lambda m, h, fed: nn.functional.pad(m.voice(h), (1, 0)),
    )  # fmt: skip


def vendor(published: Any, sound: np.ndarray) -> np.ndarray:
    """P(speech) by the vendor's own program, ``[episode, round]``."""
    published.reset_states()
    with torch.no_grad():
        said = [
            published(chunk, RATE)
            for chunk in torch.from_numpy(sound[..., BEFORE:]).float().unbind(1)
        ]
    return torch.cat(said, 1).numpy()


def by_hand(detector: Detector, clean: np.ndarray, corrupted: np.ndarray, t: int) -> np.ndarray:
    """P(speech) of round ``t`` of the corrupted sound with the ``h`` of the clean one, by PyTorch alone."""
    with torch.no_grad():
        first, second = (None, None)
        for r in range(t):
            first = detector.lstm_cell(
                detector.features(torch.from_numpy(clean[:, r]).float()), first
            )
            second = detector.lstm_cell(
                detector.features(torch.from_numpy(corrupted[:, r]).float()), second
            )
        h, _ = detector.lstm_cell(
            detector.features(torch.from_numpy(corrupted[:, t]).float()), (first[0], second[1])
        )
        return detector.voice(h).sigmoid()[:, 0].numpy()


def patched(silero: Any, clean: Any, corrupted: Any, t: int) -> np.ndarray:
    """The same by the toolkit: ``h`` of the clean run is put into round ``t`` of the corrupted one."""
    site = sites.resolve("latent@h", silero, silero.layout)
    own = site.read(interp.rollout(silero, clean).latents[:, t], silero.layout)
    put = (site.hook, lambda latents, hook: sites.write(latents, site, silero.layout, own))
    return interp.rollout(silero, corrupted, fwd_hooks={t: [put]}).predictions[:, t, 1].numpy()


def main(path: str, n: int = 48, n_rounds: int = 20, t: int = 10) -> dict[str, Any]:
    register(VOICE)
    with zipfile.ZipFile(
        path
    ) as wheel:  # its safetensors are of another version, which says otherwise by up to .7
        published = torch.jit.load(io.BytesIO(wheel.read("silero_vad/data/silero_vad.jit"))).eval()
    detector = Detector(published)
    silero, episodes = machine(detector), VOICE.sample(n, n_rounds, seed=0)
    interp.check_machine(silero)
    run, blank = (interp.rollout(of, episodes) for of in (silero, silero.untrained(0)))
    found: dict[str, Any] = {
        "right": ((run.predictions[..., 1] > 0.5).numpy() == episodes.outcomes).mean()
    }
    found["from the vendor"] = abs(
        run.predictions[..., 1].numpy() - vendor(published, episodes.inputs)
    ).max()
    clean, corrupted = VOICE.analysis.corruptions()[0].build(episodes, t)
    patch = (
        patched(silero, clean, corrupted, t),
        by_hand(detector, clean.inputs, corrupted.inputs, t),
    )
    found["patch from hand-made hooks"] = abs(patch[0] - patch[1]).max()
    found["patch moves by"] = abs(
        patch[0] - interp.rollout(silero, corrupted).predictions[:, t, 1].numpy()
    ).max()
    with torch.no_grad():
        sound = torch.from_numpy(episodes.inputs).float()
        inputs = detector.features(sound.flatten(0, 1)).unflatten(0, sound.shape[:2]).numpy()
    for ago in (2, 6):
        states, other = (of.latents[:, ago + 1 :].flatten(2).numpy() for of in (run, blank))
        voiced, now = episodes.outcomes[:, :-ago, None], inputs[:, ago:]
        found[f"speech {ago} rounds ago"] = probes.fit(
            states, voiced, untrained=other, inputs=now, method="logistic"
        )
    print(*(f"{name}: {value}" for name, value in found.items()), sep="\n", flush=True)
    budget = Budget(episodes=48, rounds=12, writes=4)
    found["audit"] = audit(silero, budget=budget)
    write_figure("output/foreign.svg", found["audit"].plot(), facecolor="#fcfcfb")
    print(found["audit"])
    return found


if __name__ == "__main__":
    main(sys.argv[1])
