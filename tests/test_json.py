"""What `--json` prints: numbers as numbers, the keys that docs/schema.json promises, refusals as objects."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import interp
import probes
from interp.cli.evaluate import _list_model_rows
from interp.support.files import json_values
from interp.tasks import experts
from tests.shell import answer, invoked

SCHEMA = json.loads(
    (Path(__file__).parents[1] / "docs" / "schema.json").read_text(encoding="utf-8")
)
TYPES: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "null": type(None),
}


def is_a(value: Any, kind: str) -> bool:
    """Whether a JSON value is of a type of JSON Schema."""
    if kind in ("number", "integer"):
        return isinstance(value, int if kind == "integer" else int | float) and not isinstance(
            value, bool
        )
    return isinstance(value, TYPES[kind])


def check(value: Any, schema: dict[str, Any], at: str = "") -> None:
    """The part of JSON Schema that docs/schema.json is written in."""
    if "$ref" in schema:
        schema = SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]]
    assert "enum" not in schema or value in schema["enum"], f"{at}: {value!r}"
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    assert not kinds or any(is_a(value, kind) for kind in kinds), (
        f"{at}: {value!r} is none of {kinds}"
    )
    for name in schema.get("required", ()):
        assert name in value, f"{at} lacks {name}"
    for name, rule in schema.get("properties", {}).items():
        if name in value:
            check(value[name], rule, f"{at}/{name}")
    for name, item in value.items() if "additionalProperties" in schema else ():
        check(item, schema["additionalProperties"], f"{at}/{name}")
    for i, item in enumerate(value if "items" in schema else ()):
        check(item, schema["items"], f"{at}/{i}")


def test_the_checker_notices() -> None:
    """A number as text, a key that is missing, a word that is none."""
    verdict = {"$ref": "#/$defs/bounds"}
    check({"value": 1, "low": None, "high": 0.5}, verdict)
    for wrong in ({"value": "0.36 [0.14, 0.53]", "low": 0, "high": 1}, {"value": 1, "low": 0}):
        with pytest.raises(AssertionError):
            check(wrong, verdict)
    with pytest.raises(AssertionError):
        check("perhaps", SCHEMA["$defs"]["verdict"]["properties"]["verdict"])


@pytest.mark.long
def test_commands_keep_the_schema(tmp_path: Path) -> None:
    """Verification and patching as they are printed; probes and evaluation as their results say it."""
    small = ["--experts", "2", "--rounds", "4", "--episodes", "2"]
    patch = ["--round", "2", "--map", "0", "--components", "resid_pre", "--out", str(tmp_path)]
    for command, options in (("verify", []), ("patch", patch)):
        check(answer(command, "wma-handwired", *small, *options), SCHEMA["$defs"][command])
    rows = pd.DataFrame(
        {"key": ["model", "bayes"], "estimate": [0.5, 0.4], "low": [0.4, 0.3], "high": [0.6, 0.5]}
    )
    measured = _list_model_rows({"regimes": rows, "regret_curves": rows[["key"]]})
    assert measured == {"regimes": [{"key": "model", "value": 0.5, "low": 0.4, "high": 0.6}]}
    evaluated = {
        "command": "evaluate",
        "version": "0",
        "model": "m",
        "settings": {},
        "summary": [{"regime": "flat"}],
    }
    check({**evaluated, "measured": measured}, SCHEMA["$defs"]["evaluate"])
    episodes = experts.sample(16, 12, 2, seed=0)
    run = interp.rollout(interp.load("wma-handwired", n_experts=2), episodes)
    result = probes.fit(run.latents[:, 1:], probes.targets.log_weights(episodes), groups="episode")
    probed = {
        "command": "probe",
        "version": "0",
        "model": "m",
        "measures": json_values([measure.to_dict() for measure in result]),
    }
    check(probed, SCHEMA["$defs"]["probe"])


@pytest.mark.parametrize(
    "words",
    [
        ("probe", "wma-handwird"),
        ("evaluate", "wma-learned-additive", "--episodes", "1"),
        ("probe", "wma-handwired", "--jsn"),
        ("verify",),
        ("patch", "nothing"),
        ("llm", "score", "nothing"),
        ("report", "x", "--rounds", "0"),
    ],
)
def test_a_refusal_is_an_object_with_error_and_exit_code_2(words: list[str]) -> None:
    """Of the toolkit and of the command line's own parser."""
    done = invoked(*words, "--json")
    printed = json.loads(done.stdout)
    assert done.exit_code == 2
    assert printed["error"] in done.stderr
    assert printed["version"] == interp.__version__
    check(printed, SCHEMA["$defs"]["error"])
