"""What runs on which kind of machine is what the page for newcomers says, and the page names every check."""

import re
from pathlib import Path

import pytest

import interp
from tests.machines_of_others.rooms import RAN, ROOMS, SHOWN, said

pytestmark = pytest.mark.usefixtures("one_session")

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "tutorials" / "your-model.md").read_text("utf-8")


def read_table() -> dict[str, list[str]]:
    table = {}
    for line in PAGE.splitlines():
        kind, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        if kind in SHOWN:
            table[kind] = cells
    return table


TABLE = read_table()
"""Kind -> what the page says of each room."""
NOTES = dict(re.findall(r"^\((\d+)\) (.*)\.$", PAGE, re.MULTILINE))


def test_the_page_says_of_every_check_when_it_fails_and_of_every_kind_what_ran():
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)) == set(interp.MACHINE_CHECKS)
    assert TABLE.keys() == set(SHOWN)
    assert all(len(cells) == len(ROOMS) for cells in TABLE.values())
    assert all(cell.startswith(RAN) for cells in TABLE.values() for cell in cells)
    rows = [line for line in PAGE.splitlines() if line.startswith("|")]
    cited = set(re.findall(r" \((\d)\) ", "\n".join(rows)))
    assert cited == NOTES.keys()


def test_forty_lines_lead_from_the_file_to_the_verdict():
    within = PAGE[PAGE.index("## The forty lines") : PAGE.index("## When a check fails")]
    code = "".join(re.findall(r"```\{code-cell\} python\n(.*?)```", within, re.DOTALL))
    lines = [line for line in code.splitlines() if line.strip()]
    assert len(lines) <= 40
    assert "torch.load(" in code
    assert "compare.machines(" in code


@pytest.mark.parametrize("room", [room for room in ROOMS if room not in ("compare", "report")])
@pytest.mark.parametrize("kind", SHOWN)
def test_a_room_says_of_a_kind_what_the_page_says(kind, room, tmp_path):
    _holds(kind, room, tmp_path)


@pytest.mark.slow(
    reason="a comparison and a report of seven kinds of machines: three minutes of one core"
)
@pytest.mark.parametrize("room", ["compare", "report"])
@pytest.mark.parametrize("kind", SHOWN)
def test_a_comparison_and_a_report_say_of_a_kind_what_the_page_says(kind, room, tmp_path):
    _holds(kind, room, tmp_path)


def _holds(kind, room, folder):
    state, _, note = said(kind, room, folder).partition("; ")
    on_page = TABLE[kind][list(ROOMS).index(room)]
    assert on_page.split(" (")[0] == state
    numbers = re.findall(r"\((\d+)\)", on_page)
    assert [NOTES[number] for number in numbers] == ([note] if note else [])
