import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))


@pytest.fixture(scope="session")
def processes():
    "Call a function of cases.py on the first P of four processes."
    from pool import Pool
    pool = Pool()
    yield pool
    pool.close()
