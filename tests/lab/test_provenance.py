"""What a fingerprint sees of a module, what watching finds, and what a record says of its age."""
import sys

import pytest
import torch

import softsortlib
from softsortlib.lab import provenance
from softsortlib.lab.provenance import age, changed_since, code_lines, code_of, module_hash, watch_code

CODE = 'import math\n\n\ndef area(r):\n    return math.pi * r * r\n'


@pytest.mark.parametrize("same", [
    '"A module."\nimport math\n\ndef area(r):  # of a disc\n    "Its area."\n    return math.pi * r * r\n',
    '# %% a cell\nimport math\n\n\n\n# %% another\ndef area(r):\n    """Its area,\n    in two lines."""\n    return math.pi * r * r   # by Archimedes\n',
])
def test_prose_does_not_enter_the_fingerprint(same):
    assert code_lines(same) == code_lines(CODE)


@pytest.mark.parametrize("other", [CODE.replace("r * r", "r * r * r"), CODE.replace("area", "volume"), CODE.replace("    return", "    r = 2\n    return"),
                                   CODE.replace("math.pi", '"#"')])
def test_code_does(other):
    assert code_lines(other) != code_lines(CODE)


def test_a_hash_sign_in_a_string_is_no_comment():
    assert code_lines('x = "# not a comment"  # a comment\n') == ['x = "# not a comment"']


@pytest.mark.parametrize("method,module,absent", [("softsort", "engine.scan_kernels", "rowwise.neuralsort"), ("neuralsort", "rowwise.neuralsort", "networks.operator"),
                                                  ("laplace", "ranks.laplace", "transport.sinkhorn_sort")])
def test_a_run_names_its_operator_and_its_kernels_and_no_other(method, module, absent):
    with watch_code() as files:
        x = torch.randn(3000, requires_grad=True)
        softsortlib.soft_rank(x, method=method).square().sum().backward()
    code = code_of(files)
    assert module in code and absent not in code
    assert all(code[name] == module_hash(name) for name in code)


def test_watching_ends_with_its_block_and_with_an_error():
    def mine(*_): pass
    sys.setprofile(mine)
    try:
        with pytest.raises(KeyError), watch_code():
            raise KeyError
        assert sys.getprofile() is mine
    finally:
        sys.setprofile(None)


def test_a_change_of_code_is_seen_and_named(tmp_path, monkeypatch):
    (tmp_path / "core").mkdir()
    file = tmp_path / "core" / "area.py"
    file.write_text(CODE)
    monkeypatch.setattr(provenance, "_PACKAGE", tmp_path)
    record = {"code": {"core.area": module_hash("core.area")}}
    assert changed_since(record) == [] and age([record]) == ""
    file.write_text('"Prose."\n' + CODE)
    assert changed_since(record) == []
    file.write_text(CODE.replace("r * r", "r ** 2"))
    assert changed_since(record) == ["core.area"] and age([record, {}]) == "1 of 2 runs are older than the code of core.area; 1 of 2 runs did not note their code"
    file.unlink()
    assert changed_since(record) == ["core.area"]
