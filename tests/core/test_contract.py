"""Every operator of the tables (tests/tables.py) in the contract that all share (tests/operator_contract.py)."""
import inspect

import pytest
import torch
from operator_contract import OperatorContract, RankContract
from tables import OPERATORS, RANKS, described_names

from softsortlib import Operator, SoftSort, get_operator
from softsortlib.core import RankOperator

for row in OPERATORS + RANKS: globals()[f"Test{row.name}"] = row.contract()
CLASSES = [cls for cls in list(globals().values()) if inspect.isclass(cls) and issubclass(cls, (OperatorContract, RankContract))]
CONTRACTS = [cls for cls in CLASSES if cls.__name__.startswith("Test")]


def test_every_operator_of_the_table_is_here():
    assert {"softsort", "neuralsort", "stochastic", "sinkhorn", "bitonic", "odd_even"} <= set(Operator.names) | {"stochastic"}


@pytest.mark.parametrize("name, base", [(name, base) for base in (Operator, RankOperator) for name in sorted(base.names)])
def test_every_operator_with_a_name_is_put_through_the_contract(name, base):
    tested = {type(cls().make(tau=0.5)) for cls in CONTRACTS}
    made = type(base.names[name](tau=0.5))
    assert made.__name__ in described_names() or any(issubclass(cls, made) for cls in tested), f"add a line for {name!r} to tests/tables.py"


class Forgetful(SoftSort):
    "An operator that does not look at its mask."
    def _soft_permutation(self, s, tau, mask, dtype):
        return super()._soft_permutation(s, tau, None, dtype)


class ContractOfForgetful(OperatorContract):
    def make(self, **kwargs):
        return Forgetful(**kwargs)


def test_the_contract_sees_what_is_wrong(rng):
    "An operator that forgets its mask passes where there is none, and fails where there is one."
    contract = ContractOfForgetful()
    contract.test_hard_limit_and_direction(False, rng)
    with pytest.raises(AssertionError): contract.test_padding_is_not_seen(False, rng)
    with pytest.raises(AssertionError): contract.test_masked_sets_equal_short_sets(False, rng)
    with pytest.raises(NotImplementedError, match="does not say how to make"): OperatorContract().make()


def test_a_wrong_name_suggests_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'softsort'"): get_operator("softsrot")
