"""Every operator of the tables (tests/tables.py) in the contract that all share (softsortlib.testing)."""
import inspect

import pytest
import torch
from tables import OPERATORS, RANKS, described_names

from softsortlib import Operator, SoftSort, get_operator
from softsortlib.core import RankOperator
from softsortlib.testing import OperatorTests, RankTests, failures

for row in OPERATORS + RANKS: globals()[f"Test{row.name}"] = row.contract()
CLASSES = [cls for cls in list(globals().values()) if inspect.isclass(cls) and issubclass(cls, (OperatorTests, RankTests))]
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


class ContractOfForgetful(OperatorTests):
    def make(self, **kwargs):
        return Forgetful(**kwargs)


def test_the_contract_sees_what_is_wrong():
    "An operator that forgets its mask passes where there is none, and fails where there is one."
    fail = ["test_padding_is_not_seen", "test_masked_sets_equal_short_sets"]
    assert list(failures(ContractOfForgetful(), "test_hard_limit_and_direction", *fail)) == fail
    with pytest.raises(NotImplementedError, match="does not say how to make"): OperatorTests().make()


class Wrong(SoftSort):
    "An operator with one fault of several."
    fault = ""

    def forward(self, scores, mask=None):
        if self.fault == "gradient": scores = scores.detach() + (scores - scores.detach()) * 2
        if self.fault == "seen": scores = scores + 1e-3 * torch.arange(scores.shape[-1])
        if self.fault == "batch" and scores.ndim > 1: scores = scores + 0 * scores.sum(0)
        if self.fault == "detached tau" and isinstance(self.tau, torch.Tensor): return SoftSort(self.tau.detach())(scores, mask)
        P = super().forward(scores, mask)
        if self.fault == "dtype": P.dtype = torch.float64
        return P


@pytest.mark.parametrize("fault, test", [
    ("gradient", "test_the_gradient_is_the_derivative"), ("seen", "test_permuting_the_scores_permutes_the_columns"), ("seen", "test_ties_give_finite_symmetric_gradients"),
    ("batch", "test_nan_stays_in_its_own_row_of_the_batch"), ("detached tau", "test_a_learnable_temperature_of_each_set"), ("dtype", "test_shapes_and_dtypes")])
def test_each_fault_is_seen(fault, test):
    class Faulty(OperatorTests):
        def make(self, **kwargs):
            op = Wrong(**kwargs)
            op.fault = fault
            return op
    assert list(failures(Faulty(), test)) == [test]


def test_a_wrong_name_suggests_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'softsort'"): get_operator("softsrot")
