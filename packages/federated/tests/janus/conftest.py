"""Small sessions, and the command line in this process."""

import os
import sys

import numpy as np
import pytest

from hexad.core.cli import main

pytest.importorskip("coincurve")
pytest.importorskip("rbcl")

from hexad.federated.janus.config import JanusConfig
from hexad.federated.janus.rounds import make_session

NAMES = ("a", "b", "c", "d")
LENGTH = 6


@pytest.fixture(scope="session", autouse=True)
def generators_of_the_tests(tmp_path_factory):
    """Generators are made anew in a folder of the tests, and nobody waits for the disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEXAD_CACHE", str(tmp_path_factory.mktemp("cache")))
        # What outlives kill -9 needs no fsync, which takes a second where others write.
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture
def make(tmp_path):
    """Makes sessions, each with folders of its own."""
    made = []

    def build(names=NAMES, **changes):
        config = JanusConfig(**{"length": LENGTH, "max_weight": 1000, **changes})
        made.append(make_session(names, config, tmp_path / f"session-{len(made)}", rounding_seed=3))
        return made[-1]

    yield build
    for session in made:
        session.release()


@pytest.fixture
def session(make):
    return make()


def updates_of(names=NAMES, length=LENGTH, seed=0):
    """An update and a weight for each name."""
    rng = np.random.default_rng(seed)
    updates = {name: rng.normal(scale=0.4, size=length) for name in names}
    return updates, {name: int(rng.integers(1, 9)) for name in names}


@pytest.fixture
def updates():
    return updates_of


@pytest.fixture
def hexad(capsys):
    """Run `hexad federated janus ...`; gives (exit code, stdout, stderr)."""

    def run(*words):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["hexad", "federated", "janus", *map(str, words)])
            code = 0
            try:
                main()
            except SystemExit as end:
                code = end.code or 0
        return code, *capsys.readouterr()

    return run
