"""``make package``: build the sdist and, from it, the wheel; install that in a clean environment and use it there.

``python -m tests.package --python python3.13`` tries another Python; ``--here`` takes the libraries from the running
environment instead of a registry, which is quick and still proves that the wheel holds what it needs.
"""

import argparse
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
FIVE_LINES = """
import interp, probes
from interp.tasks import experts
episodes = experts.sample(n_episodes=16, n_rounds=8, n_experts=3)
run = interp.rollout(interp.load("wma-handwired", n_experts=3), episodes)
print(interp.__version__, probes.fit(run, probes.targets.log_weights(episodes)).verdict)
"""


def build(out: Path) -> Path:
    """The wheel, built from the sdist that is built beside it."""
    run([sys.executable, "-m", "build", "--outdir", str(out), str(ROOT)], ROOT)
    (wheel,) = out.glob("*.whl")
    return wheel


def contents(wheel: Path) -> set[str]:
    """The top folders and files of a wheel, and what it holds of the first package beside Python files."""
    with zipfile.ZipFile(wheel) as stored:
        names = stored.namelist()
    return {name.split("/")[0] for name in names} | {
        name for name in names if not name.endswith(".py")
    }


def environment(
    folder: Path, wheel: Path, python: str = sys.executable, here: bool = False
) -> Path:
    """A new environment with the wheel in it; gives its Python.

    Args:
        here: take the libraries from the running environment.
    """
    run([python, "-m", "venv", str(folder)], ROOT)
    inside = folder / "bin" / "python"
    constraints = ["--no-deps"] if here else ["-c", str(ROOT / "constraints.txt")]
    run(
        [
            str(inside),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            *constraints,
            str(wheel),
        ],
        folder,
    )
    if here:
        (site,) = (folder / "lib").glob("python*/site-packages")
        (site / "libraries.pth").write_text(sysconfig.get_paths()["purelib"])
    return inside


def use(python: Path, folder: Path) -> str:
    """What five lines and two commands print, in ``folder``, outside the checkout."""
    output = run([str(python), "-W", "error::UserWarning:interp", "-c", FIVE_LINES], folder)
    interp = str(python.parent / "interp")
    return output + run([interp, "--version"], folder) + run([interp, "models", "--quiet"], folder)


def run(command: list[str], folder: Path) -> str:
    """What a command prints on standard output.

    Raises:
        RuntimeError: it failed; with what it said.
    """
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(
            f"{' '.join(command)} exited with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        )
    return done.stdout


def main() -> None:
    """Build, install, use, and print what was used."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", default=sys.executable, help="of the clean environment")
    parser.add_argument("--here", action="store_true", help="libraries of the running environment")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "output" / "dist", help="for the sdist and the wheel"
    )
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for old in (*arguments.out.glob("*.whl"), *arguments.out.glob("*.tar.gz")):
        old.unlink()
    wheel = build(arguments.out)
    with tempfile.TemporaryDirectory() as folder:
        python = environment(Path(folder) / "clean", wheel, arguments.python, arguments.here)
        print(wheel, use(python, Path(folder)), sep="\n")


if __name__ == "__main__":
    main()
