"""Analyse a model that others trained: the voice detector of the wheel ``silero-vad`` (MIT
licence), an LSTM.

Its weights are adapted as a machine. Its predictions are compared with the vendor's own forward
pass, and one patch with PyTorch hooks written by hand. Then it is audited and probed. ``pip
download --no-deps silero-vad``, and ``python examples/foreign_lstm.py WHEEL``. No recordings are
needed: it takes synthetic syllables of random pitch, with pauses between them, for a voice.
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

RATE = 16_000
"""Samples per second."""
CHUNK = 512
"""Samples per round."""
BEFORE = 64
"""Samples from the end of the round before that are also an input of a round."""
VOWEL = ((600, 120, 1.0), (1300, 180, 0.6), (2500, 250, 0.3))
"""Formants of the vowel "a": frequency and width in Hz, and strength."""


def draw(n_episodes: int, n_rounds: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return sound ``[episode, round, sample]``, and whether there is a voice ``[episode, round]``.

    A voice begins or ends in about every tenth round.

    Args:
        n_episodes: number of episodes.
        n_rounds: rounds per episode.
        seed: seed of the sound.
    """
    rng = np.random.default_rng(seed)
    changes = rng.random((n_episodes, n_rounds)) < 0.1
    is_voiced = changes.cumsum(1) % 2  # switches at every change, [episode, round]
    seconds = np.arange(n_rounds * CHUNK) / RATE
    mean_pitch = rng.uniform(100, 220, (n_episodes, 1))
    vibrato = np.sin(10 * np.pi * seconds)
    pitch = mean_pitch * (1 + 0.03 * vibrato)
    phase = 2 * np.pi * np.cumsum(pitch, 1) / RATE
    noise = rng.normal(size=phase.shape)
    syllables = np.sin(8 * np.pi * seconds) ** 2
    loudness = syllables * is_voiced.repeat(CHUNK, 1)
    sound = 0.003 * noise
    # A voice is a sum of harmonics of its pitch, each with its strength in the vowel.
    for k in range(1, 30):
        strength = compute_strength(k * mean_pitch)
        sound += 0.1 * strength * np.sin(k * phase) * loudness
    # Cut into rounds, each of which also has the last samples of the round before.
    padded = np.pad(sound, ((0, 0), (BEFORE, 0)))
    starts = CHUNK * np.arange(n_rounds)
    samples = starts[:, None] + np.arange(BEFORE + CHUNK)
    return padded[:, samples].astype(np.float32), is_voiced


def compute_strength(frequency: np.ndarray) -> np.ndarray:
    """Return the strength of a harmonic of this frequency in the vowel."""
    strength = np.zeros_like(frequency)
    for formant, width, height in VOWEL:
        distance = (frequency - formant) / width
        strength += height * np.exp(-(distance**2))
    return 0.02 + strength


VOICE = series(
    "voice",
    draw,
    inputs=BEFORE + CHUNK,
    outcomes=("silence", "speech"),
    what="hear whether somebody speaks",
)


class Detector(nn.Module):
    """The detector in PyTorch, with the published weights in the order of the published program."""

    def __init__(self, published: Any) -> None:
        super().__init__()
        self.stft_conv = nn.Conv1d(1, 258, 256, stride=128, bias=False)
        self.conv1 = nn.Conv1d(129, 128, 3, stride=1, padding=1)
        self.conv2 = nn.Conv1d(128, 64, 3, stride=2, padding=1)
        self.conv3 = nn.Conv1d(64, 64, 3, stride=2, padding=1)
        self.conv4 = nn.Conv1d(64, 128, 3, stride=1, padding=1)
        self.lstm_cell = nn.LSTMCell(128, 128)
        self.final_conv = nn.Conv1d(128, 1, 1)
        # Names differ, but the order of the arrays is the same.
        arrays = published._model.state_dict().values()
        self.load_state_dict(dict(zip(self.state_dict(), arrays, strict=True)))

    def features(self, sound: Tensor) -> Tensor:
        """Return the input of the LSTM cell in a round, ``[batch, 128]``."""
        padded = nn.functional.pad(sound, (0, BEFORE), mode="reflect")
        # Short-time Fourier transform as a convolution; the magnitudes are used.
        real, imaginary = self.stft_conv(padded[:, None]).chunk(2, dim=1)
        x = (real.square() + imaginary.square()).sqrt()
        for convolution in (self.conv1, self.conv2, self.conv3, self.conv4):
            x = convolution(x).relu()
        return x.squeeze(-1)

    def voice(self, h: Tensor) -> Tensor:
        """Return the log-odds of a voice, ``[batch, 1]``."""
        return self.final_conv(h.relu()[..., None]).squeeze(-1)


def adapt(detector: Detector) -> Any:
    """Return the detector as a machine."""
    samples = slice(2, 2 + BEFORE + CHUNK)

    def read(module: Detector, h: Tensor, fed: Any) -> Tensor:
        """Return logits of silence (always 0) and speech, ``[batch, 2]``."""
        return nn.functional.pad(module.voice(h), (1, 0))

    return interp.machines.cell(
        detector,
        VOICE,
        core="lstm_cell",
        update="before",
        name="silero-vad",
        encode=lambda module, fed: module.features(fed.values[:, samples]),
        read=read,
    )


def run_vendor(published: Any, sound: np.ndarray) -> np.ndarray:
    """Return P(speech) of the vendor's program, ``[episode, round]``."""
    published.reset_states()
    chunks = torch.from_numpy(sound[..., BEFORE:]).float().unbind(1)
    with torch.no_grad():
        predictions = [published(chunk, RATE) for chunk in chunks]
    return torch.cat(predictions, 1).numpy()


def patch_by_hand(
    detector: Detector, clean: np.ndarray, corrupted: np.ndarray, t: int
) -> np.ndarray:
    """Patch ``h`` of the clean sound into round ``t`` of the corrupted one, with PyTorch alone.

    Args:
        detector: the model.
        clean: sound ``[episode, round, sample]``.
        corrupted: another sound of the same shape.
        t: the round.

    Returns:
        P(speech) in round ``t``, ``[episode]``.
    """

    def features(sound: np.ndarray, round_index: int) -> Tensor:
        return detector.features(torch.from_numpy(sound[:, round_index]).float())

    clean_state = None
    corrupted_state = None
    with torch.no_grad():
        for r in range(t):
            clean_state = detector.lstm_cell(features(clean, r), clean_state)
            corrupted_state = detector.lstm_cell(features(corrupted, r), corrupted_state)
        patched_state = (clean_state[0], corrupted_state[1])  # (h, c): h is patched, c is not
        h, _ = detector.lstm_cell(features(corrupted, t), patched_state)
        return detector.voice(h).sigmoid()[:, 0].numpy()


def patch(silero: Any, clean: Any, corrupted: Any, t: int) -> np.ndarray:
    """Patch ``h`` of the clean run into round ``t`` of the corrupted one, with the toolkit.

    Args:
        silero: the machine.
        clean: episodes from which ``h`` is taken.
        corrupted: episodes that are run.
        t: the round.

    Returns:
        P(speech) in round ``t``, ``[episode]``.
    """
    site = sites.resolve_site("latent@h", silero, silero.layout)
    clean_latents = interp.rollout(silero, clean).latents[:, t]
    clean_h = site.read(clean_latents, silero.layout)

    def put(latents: Tensor, hook: Any) -> Tensor:
        """Hook: return the latents with ``h`` of the clean run."""
        return sites.write(latents, site, silero.layout, clean_h)

    patched = interp.rollout(silero, corrupted, fwd_hooks={t: [(site.hook, put)]})
    return patched.predictions[:, t, 1].numpy()


def read_wheel(path: str) -> Any:
    """Load the vendor's program from the wheel.

    The wheel's safetensors are of another version, whose predictions differ by up to .7.
    """
    with zipfile.ZipFile(path) as wheel:
        program = wheel.read("silero_vad/data/silero_vad.jit")
    return torch.jit.load(io.BytesIO(program)).eval()


def main(path: str, n: int = 48, n_rounds: int = 20, t: int = 10) -> dict[str, Any]:
    """Run all checks, print their results, and draw the audit.

    Args:
        path: path of the wheel.
        n: number of episodes.
        n_rounds: rounds per episode.
        t: the round that is patched.
    """
    register(VOICE)
    published = read_wheel(path)
    detector = Detector(published)
    silero = adapt(detector)
    episodes = VOICE.sample(n, n_rounds, seed=0)
    interp.check_machine(silero)
    run = interp.rollout(silero, episodes)
    untrained_run = interp.rollout(silero.untrained(0), episodes)
    speech = run.predictions[..., 1].numpy()
    numbers: dict[str, Any] = {"right": ((speech > 0.5) == episodes.outcomes).mean()}
    numbers["from the vendor"] = abs(speech - run_vendor(published, episodes.inputs)).max()

    clean, corrupted = VOICE.analysis.corruptions()[0].build(episodes, t)
    patched = patch(silero, clean, corrupted, t)
    by_hand = patch_by_hand(detector, clean.inputs, corrupted.inputs, t)
    unpatched = interp.rollout(silero, corrupted).predictions[:, t, 1].numpy()
    numbers["patch from hand-made hooks"] = abs(patched - by_hand).max()
    numbers["patch moves by"] = abs(patched - unpatched).max()

    sound = torch.from_numpy(episodes.inputs).float()
    with torch.no_grad():
        features = detector.features(sound.flatten(0, 1))
    inputs = features.unflatten(0, sound.shape[:2]).numpy()
    for ago in (2, 6):
        # The states after each round from `ago` on (counted from 0), and whether there was a voice
        # `ago` rounds before.
        states = run.latents[:, ago + 1 :].flatten(2).numpy()
        untrained_states = untrained_run.latents[:, ago + 1 :].flatten(2).numpy()
        earlier_speech = episodes.outcomes[:, :-ago, None]
        numbers[f"speech {ago} rounds ago"] = probes.fit(
            states,
            earlier_speech,
            untrained=untrained_states,
            inputs=inputs[:, ago:],
            method="logistic",
        )
    for name, value in numbers.items():
        print(f"{name}: {value}", flush=True)

    numbers["audit"] = audit(silero, budget=Budget(episodes=48, rounds=12, writes=4))
    write_figure("output/foreign.svg", numbers["audit"].plot(), facecolor="#fcfcfb")
    print(numbers["audit"])
    return numbers


if __name__ == "__main__":
    main(sys.argv[1])
