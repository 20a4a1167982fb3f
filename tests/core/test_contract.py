"""Every operator of the library in the contract that all share (tests/operator_contract.py)."""
import inspect

import pytest
import torch
from operator_contract import OperatorContract, RankContract

from softsortlib import (
    GaussianRank, LapSum, LaplaceRank, NeuralSort, Operator, Permutahedron, SigmoidRank, SinkhornSort, SoftSort, SortingNetwork,
    Stochastic, get_operator, is_doubly_stochastic, is_row_stochastic, is_unimodal_row_stochastic,
)
from softsortlib.core import RankOperator

UNIMODAL = (is_row_stochastic, is_unimodal_row_stochastic)
DOUBLY = (is_row_stochastic, is_doubly_stochastic)


class TestSoftSort(OperatorContract):
    claims = UNIMODAL

    def make(self, **kwargs):
        return SoftSort(**kwargs)


class TestSoftSortOfSquares(OperatorContract):
    claims = UNIMODAL

    def make(self, **kwargs):
        return SoftSort(power=2, **kwargs)


class TestNeuralSort(OperatorContract):
    claims = UNIMODAL

    def make(self, **kwargs):
        return NeuralSort(**kwargs)


class TestSinkhornSort(OperatorContract):
    claims = DOUBLY
    outliers = False
    fixed_steps = False
    precise = dict(tolerance=1e-12, max_iterations=20_000)
    second = dict(gradient="unrolled")

    def make(self, **kwargs):
        return SinkhornSort(**kwargs)


class Network(OperatorContract):
    claims = DOUBLY
    equivariant = False
    outliers = False
    uniform_when_soft = False

    def make(self, **kwargs):
        return SortingNetwork(self.kind, **kwargs)


class TestOddEven(Network):
    kind = "odd_even"


class TestBitonic(Network):
    kind = "bitonic"


class TestLapSum(OperatorContract):
    claims = DOUBLY

    def make(self, **kwargs):
        return LapSum(**kwargs)


class Seeded(Stochastic):
    "The same noise in every call, so that differences can be taken."
    def forward(self, scores, mask=None):
        self.generator.manual_seed(1)
        return super().forward(scores, mask)


class TestStochastic(OperatorContract):
    claims = UNIMODAL
    samples = (2,)
    repeats = False

    def make(self, **kwargs):
        return Seeded("softsort", 2, torch.Generator(), **kwargs)


class TestSigmoidRank(RankContract):
    def make(self, **kwargs):
        return SigmoidRank(**kwargs)


class TestGaussianRank(RankContract):
    def make(self, **kwargs):
        return GaussianRank(**kwargs)


class TestLaplaceRank(RankContract):
    def make(self, **kwargs):
        return LaplaceRank(**kwargs)


class TestPermutahedron(RankContract):
    def make(self, **kwargs):
        return Permutahedron(**kwargs)


class TestEntropicPermutahedron(RankContract):
    def make(self, **kwargs):
        return Permutahedron(regularization="kl", **kwargs)


CLASSES = [cls for cls in list(globals().values()) if inspect.isclass(cls) and issubclass(cls, (OperatorContract, RankContract))]
CONTRACTS = [cls for cls in CLASSES if cls.__name__.startswith("Test")]


def test_every_operator_of_the_table_is_here():
    assert {"softsort", "neuralsort", "stochastic", "sinkhorn", "bitonic", "odd_even"} <= set(Operator.names) | {"stochastic"}


@pytest.mark.parametrize("name, base", [(name, base) for base in (Operator, RankOperator) for name in sorted(base.names)])
def test_every_operator_with_a_name_is_put_through_the_contract(name, base):
    tested = {type(cls().make(tau=0.5)) for cls in CONTRACTS}
    assert type(base.names[name](tau=0.5)) in tested, f"write a subclass of the contract for {name!r}"


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
