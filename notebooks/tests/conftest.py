# SPDX-License-Identifier: MIT
import pytest
from make_results import Case, make_results

from msaplots import Results


def _open(tmp_path_factory, case):
    path = tmp_path_factory.mktemp("results") / "results.h5"
    make_results(path, case)
    return path


@pytest.fixture(scope="session")
def results_path(tmp_path_factory):
    return _open(tmp_path_factory, Case())


@pytest.fixture
def results(results_path):
    with Results(results_path) as opened:
        yield opened


@pytest.fixture(scope="session")
def sampled_path(tmp_path_factory):
    """Two packed sequences, every fifth query analysed, a partial tail block in each."""
    return _open(tmp_path_factory, Case(lengths=(75, 190), layers=(0,), stride=5))


@pytest.fixture
def sampled(sampled_path):
    with Results(sampled_path) as opened:
        yield opened
