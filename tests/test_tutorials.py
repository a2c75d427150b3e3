"""The pages of docs/: their Python runs, their commands exist, their links lead somewhere."""

import os
import re
import shlex
from pathlib import Path

import pytest
import typer

from interp.cli import app

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
RUN = re.compile(r"^```(?:\{code-cell\} )?python\n(.*?)^```", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
"""A block of any language; in Python, `m["read"](z)` is a call and no link."""
SHELL = re.compile(r"^```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)


def name_of(page: Path) -> str:
    return page.relative_to(DOCS).as_posix()


def run(page: Path) -> int:
    """Run every block of Python on a page, in order; gives how many."""
    blocks = RUN.findall(page.read_text(encoding="utf-8"))
    scope: dict[str, object] = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, name_of(page), "exec", dont_inherit=True), scope)
    return len(blocks)


def test_the_first_tutorial_runs() -> None:
    assert run(DOCS / "tutorials" / "look-inside.md") >= 5


@pytest.mark.slow  # trains, compares, patches and plays in small: half a minute of one core in all
@pytest.mark.parametrize(
    "page", [p for p in PAGES if RUN.search(p.read_text(encoding="utf-8"))], ids=name_of
)
def test_every_tutorial_runs(page: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    assert run(page) >= 1


@pytest.mark.long
def test_every_command_on_a_page_can_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Words, options and their types, without running anything; as the third job of an array, where a page says so."""
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    monkeypatch.setenv("SLURM_ARRAY_TASK_COUNT", "64")
    commands_shown = []
    for page in (*PAGES, DOCS.parent / "README.md"):
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        for line in "\n".join(SHELL.findall(text)).splitlines():
            is_command = line.startswith("interp ") and not line.startswith("interp --")
            if is_command and " | " not in line:
                commands_shown.append(line)
    assert len(commands_shown) >= 15
    for line in commands_shown:
        command = typer.main.get_command(app)
        words = shlex.split(os.path.expandvars(line), comments=True)[1:]
        if "RUN" in words:
            continue
        while hasattr(command, "commands"):
            command = command.commands[words.pop(0)]
        command.make_context(command.name, words)


def test_every_link_on_a_page_leads_somewhere() -> None:
    generated = {"registries.md", "commands.md", "python.md"}  # by docs.build
    for page in PAGES:
        prose = CODE.sub("", page.read_text(encoding="utf-8"))
        for target in re.findall(r"\]\(([^)#:]+)[^):]*\)", prose):
            path = page.parent / target
            assert path.exists() or (path.parent.name == "reference" and path.name in generated), (
                f"{name_of(page)}: {target}"
            )


@pytest.mark.slow  # some thirty pages of reference: 80 seconds of one core
def test_the_pages_are_built_without_a_warning_and_load_nothing_from_outside(
    tmp_path: Path,
) -> None:
    pytest.importorskip("myst_nb", reason="the documentation's generator: pip install '.[docs]'")
    from docs.build import build

    assert "Every registry" in build(tmp_path / "pages").read_text(encoding="utf-8")
