"""Fixtures that every test file may use."""
import signal
import warnings

import pytest
import torch


@pytest.fixture
def rng():
    "A generator of its own for each test, so that no test depends on the order of tests."
    return torch.Generator().manual_seed(0)


def pytest_configure(config):
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:   # as a shell starts what it puts in the background; the tests of Ctrl-C need the usual state
        signal.signal(signal.SIGINT, signal.default_int_handler)
    with warnings.catch_warnings():  # torch 2.13 warns about a deprecated decorator of its own while it imports its compiler
        warnings.simplefilter("ignore")
        import torch._dynamo  # noqa: F401
