"""Fixtures that every test file may use."""
import copy
import gc
import os
import random
import signal
import subprocess
import sys
import warnings

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")     # before torch: threads that spin while they wait take the cores of the tests beside them

import numpy as np  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from filelock import FileLock  # noqa: E402
from hypothesis import settings  # noqa: E402

# The same examples in every run: a change that breaks one is seen in the change. HYPOTHESIS_PROFILE=explore looks for new ones.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


pytest.register_assert_rewrite("softsortlib.testing", "tables")     # its asserts show what they compared, as those of a test file


if not torch.cuda.is_available():       # each seed would write down the whole stack, for devices not there
    torch.cuda.manual_seed_all = torch.xpu.manual_seed_all = torch.mtia.manual_seed_all = lambda seed: None


@pytest.fixture(autouse=True)
def same_numbers():
    "What a test draws without a generator of its own does not depend on the tests before it."
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def alone():
    "A group of this process alone."
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.fixture
def rng():
    "A generator of its own for each test, so that no test depends on the order of tests."
    return torch.Generator().manual_seed(0)


@pytest.fixture(scope="session")
def slowness():
    "How many times as long as on a usual machine (1.5 s of its processor) torch takes to be imported here, at least one: what limits in seconds are multiplied with."
    def used(): return sum(os.times()[2:4])         # by processes that have ended
    before = used()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return max(1.0, (used() - before) / 1.5)


@pytest.fixture(scope="session")
def made_once(tmp_path_factory):
    "`made_once(name, make)`: a folder that make(folder) fills in the first of the processes that run tests, for all of them."
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ: shared = shared.parent
    def folder(name, make):
        made, begun = shared / name, shared / f"{name}.begun"
        with FileLock(shared / f"{name}.lock"):
            if not made.exists():
                begun.mkdir(exist_ok=True)
                make(begun)
                begun.rename(made)
        return made
    return folder


@pytest.fixture(scope="module")
def pictures_once():
    "Every run of a file reads the same data sets: unpack and shrink each once, and see at the end that no run has written into them."
    from softsortlib.lab import sorting, sources
    kept, patch, shrunk = {}, pytest.MonkeyPatch(), sorting._shrunk
    def keep(key, bank): return kept.setdefault(key, (bank, int(bank.images.sum(dtype=torch.int64))))[0]
    def once(name, load):
        known = {}
        def loaded(folder, download):
            if folder not in known: known[folder] = {split: keep((name, folder, split), bank) for split, bank in load(folder, download).items()}
            return {split: copy.copy(bank) for split, bank in known[folder].items()}
        return loaded
    def shrunk_once(bank, factor):
        if factor == 1 or not any(bank.images is whole.images for whole, _ in kept.values()): return shrunk(bank, factor)
        key = id(bank.images), factor
        return copy.copy(kept[key][0] if key in kept else keep(key, shrunk(bank, factor)))
    for name, load in sources._SOURCES.items(): patch.setitem(sources._SOURCES, name, once(name, load))
    patch.setattr(sorting, "_shrunk", shrunk_once)
    yield
    patch.undo()
    for key, (bank, total) in kept.items(): assert int(bank.images.sum(dtype=torch.int64)) == total, key


def pytest_configure(config):
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:   # as a shell starts what it puts in the background; the tests of Ctrl-C need the usual state
        signal.signal(signal.SIGINT, signal.default_int_handler)
    with warnings.catch_warnings():  # torch 2.13 warns about a deprecated decorator of its own while it imports its compiler and its rules of forward mode
        warnings.simplefilter("ignore")
        import torch._decomp.decompositions_for_jvp  # noqa: F401
        import torch._dynamo  # noqa: F401
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)         # hundreds of processes that tests start would each compile the package anew


def pytest_collection_finish(session):
    "Twelve thousand tests and all that they import stay to the end: no collection of garbage need look through them."
    gc.collect()
    gc.freeze()
