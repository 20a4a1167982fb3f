"""Fixtures that every test file may use."""
import warnings

import pytest
import torch


@pytest.fixture
def rng():
    "A generator of its own for each test, so that no test depends on the order of tests."
    return torch.Generator().manual_seed(0)


def pytest_configure(config):
    with warnings.catch_warnings():  # torch 2.13 warns about a deprecated decorator of its own while it imports its compiler
        warnings.simplefilter("ignore")
        import torch._dynamo  # noqa: F401
