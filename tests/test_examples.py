"""The examples run as they stand, and do what they say."""

import json
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_a_task_of_ones_own_needs_no_edit_to_the_package(tmp_path):
    source = EXAMPLES / "own_task.py"
    assert len(source.read_text().splitlines()) <= 150
    # A program of its own: a task is registered for the whole process.
    ran = subprocess.run([sys.executable, source, tmp_path], capture_output=True, text=True, timeout=600, check=False)
    assert ran.returncode == 0, ran.stderr
    page = next(tmp_path.glob("model-*.html")).read_text()
    assert "Not computed" not in page
    assert all(f">{title}<" in page for title in ("Probes", "Patching", "What the heads do"))
    assert "latent@<z>" in ran.stdout
    about = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    assert about["config"]["layout"]["task"] == "bandit"
