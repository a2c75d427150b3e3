"""The package as others get it: what is in the wheel, and that it works where there is no checkout."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import interp
from interp.support import provenance
from interp.support.lazy import warn_of_other_copies
from tests import package

PROJECT = tomllib.loads((package.ROOT / "pyproject.toml").read_text())["project"]


def test_a_room_that_belongs_to_somebody_else_is_told_in_a_sentence(tmp_path: Path) -> None:
    assert warn_of_other_copies() == []
    assert len(warn_of_other_copies(tmp_path)) == 3
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports" / "__init__.py").touch()
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import interp"
    stderr = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stderr
    assert f"`import reports` leads to {tmp_path / 'reports'}" in stderr
    assert "environment of its own" in stderr


def test_the_version_is_said_once_and_the_changelog_and_the_citation_know_it() -> None:
    assert "version" in PROJECT["dynamic"]
    assert "version" not in PROJECT
    assert f"## [{interp.__version__}]" in (package.ROOT / "CHANGELOG.md").read_text()
    assert f"\nversion: {interp.__version__}\n" in (package.ROOT / "CITATION.cff").read_text()


@pytest.mark.slow  # builds twice in isolated environments, and imports torch from a cold start
def test_the_wheel_works_outside_the_checkout(tmp_path: Path) -> None:
    wheel = package.build(tmp_path)
    (sdist,) = tmp_path.glob("*.tar.gz")
    files = package.contents(wheel)
    assert {"interp", "circuits", "probes", "reports"} <= files
    assert not {"tests", "lab"} & files
    assert sdist.stat().st_size > 1_000_000
    assert {"interp/py.typed", "interp/checkpoints/wma-learned-additive/model.safetensors"} <= files
    output = package.use(package.environment(tmp_path / "clean", wheel, here=True), tmp_path)
    assert f"{interp.__version__} yes\ninterp {interp.__version__}\nwma-handwired\n" in output


def test_a_revision_is_that_of_the_packages_own_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A virtual environment often lies in the checkout of another project, with a revision of its own."""
    git = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e@example.org"]
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "theirs"]):
        subprocess.run([*git, *words], check=True)
    assert re.match("[0-9a-f]{12}", provenance.git_revision.__wrapped__())
    installed = tmp_path / "provenance.py"
    installed.write_text("")
    monkeypatch.setattr(provenance, "__file__", str(installed))
    assert provenance.git_revision.__wrapped__() == "unknown"
