"""Pages at sizes that nobody had in mind: every part is computed, or says what this size lacks."""

from pathlib import Path

import pytest

import interp
from interp.support.files import read_rows
from reports.build import write

ODD = read_rows(Path(__file__).with_name("odd_sizes.csv"))


# With 17 experts, the only untrained copy of a quick page overflows: the page says so, and goes on.
@pytest.mark.filterwarnings("ignore:the activations of the untrained model overflow:UserWarning")
@pytest.mark.slow(reason="sixteen quick reports: two to three minutes of one core")
@pytest.mark.parametrize("odd", ODD, ids=lambda odd: f"{odd['model']} {odd['sizes']}")
def test_an_odd_size_gives_a_page(odd: dict[str, str], tmp_path: Path) -> None:
    sizes = {name: int(n) for name, _, n in (size.partition("=") for size in odd["sizes"].split())}
    counts = {"n_episodes": int(odd["episodes"]), "n_rounds": int(odd["rounds"])}
    model = interp.load(odd["model"], **sizes)
    written = write(model, tmp_path, **counts, source=odd["model"], arguments=sizes, quick=True)
    assert not written.failures
    assert "Not computed" not in written.path.read_text("utf-8")
