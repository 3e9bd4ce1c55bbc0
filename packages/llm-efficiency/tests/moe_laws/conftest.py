import functools

import numpy as np
import pytest

from hexad.llm_efficiency.moe_laws import JointMoELaw, Runs


@pytest.fixture
def paper():
    return JointMoELaw()


@pytest.fixture
def make_runs(paper):
    """A maker of runs on a small grid whose losses are the paper's law's, with log-normal noise if wanted."""

    def make(noise=0.0, experts=(1, 2, 8, 32), seed=0):
        grid = np.array([(n, d, e) for n in (1e8, 3e8, 1e9) for d in (1e9, 4e9, 2e10) for e in experts])
        loss = paper.loss(*grid.T) * np.exp(noise * np.random.default_rng(seed).normal(size=len(grid)))
        return Runs(*grid.T, loss)

    return make


@pytest.fixture
def hexad(llm_efficiency):
    """Run `hexad llm-efficiency moe-laws ...`; gives (exit code, stdout, stderr)."""
    return functools.partial(llm_efficiency, "moe-laws")
