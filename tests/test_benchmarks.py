"""Benchmarks run where there is no accelerator, keep what they measured, and name only what there is."""

import pandas as pd
import pytest

from tests.benchmarks import accelerator, waits


def test_the_accelerators_tables_are_filled_row_by_row_and_go_on(tmp_path, capsys, monkeypatch):
    """Out of time, a table is completed by the next call and measures no row twice."""
    monkeypatch.setattr(accelerator, "SECONDS", -1.0)
    accelerator.main("steps", folder=tmp_path)
    assert not list(tmp_path.glob("accelerator-steps.csv"))
    monkeypatch.setattr(accelerator, "SECONDS", 60.0)
    monkeypatch.setattr(accelerator, "PRESETS", {"experts": "paper", "reachability": "prosqa"})
    monkeypatch.setattr(accelerator, "PRECISIONS", {"tf32": ("float32", "high")})
    accelerator.main("steps", folder=tmp_path)
    assert set(pd.read_csv(tmp_path / "accelerator-steps.csv")["row"]) == {
        "experts tf32 8",
        "reachability tf32 8",
    }
    measured = {"experts tf32 8": lambda: pytest.fail("measured twice")}
    accelerator.fill(tmp_path / "accelerator-steps.csv", measured)
    with pytest.raises(SystemExit, match="no table 'nothing'; there are patching, cores, steps"):
        accelerator.main("nothing")


@pytest.mark.long
def test_what_is_waited_for_is_measured_in_a_process_of_its_own():
    """CPU seconds are the child's; a row that is not there is refused."""
    row = waits.measure("models")
    assert 0.1 < row["cpu_s"] == row["value"] < 30
    assert row["peak_mib"] > 20
    with pytest.raises(SystemExit, match="no row 'nothing'; there are 'help', 'models'"):
        waits.main("nothing")
