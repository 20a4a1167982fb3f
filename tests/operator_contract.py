"""The contract of operators as tests to inherit. A new operator gets all of it from a subclass of a few lines:

    from operator_contract import OperatorContract
    from softsortlib import is_row_stochastic, is_unimodal_row_stochastic

    class TestMySort(OperatorContract):
        claims = (is_row_stochastic, is_unimodal_row_stochastic)

        def make(self, **kwargs):
            return MySort(**kwargs)

`RankContract` is the same for operators that return ranks. What an operator does not promise it says by an attribute of
its class; everything else is tested: shapes, dtypes, directions, both limits of the temperature, masks, ties, NaN, the
matrix properties that it claims, first and second derivatives, a learnable temperature, `torch.compile`, `torch.func`, the
repr and the errors. tests/core/test_contract.py puts every operator of the library through it.
"""
import math

import pytest
import torch
from regimes import REGIMES, spread_of
from torch.testing import assert_close

from softsortlib import is_row_stochastic

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
SHAPES = [(6,), (3, 6), (2, 3, 5), (1, 1)]
MASK = torch.tensor([[1, 1, 1, 1, 1], [0, 1, 1, 0, 1], [1, 0, 0, 0, 0]]).bool()


def scores(*shape, rng, dtype=torch.float64):
    return torch.randn(*shape, generator=rng, dtype=torch.float64).to(dtype)


def distinct(batch, n, rng):
    "Scores at least 1 apart, in random order."
    return torch.stack([torch.randperm(n, generator=rng) for _ in range(batch)]).double()


def tolerance(dtype):
    return dict(rtol=2e-2, atol=2e-2) if dtype.itemsize == 2 else dict(rtol=1e-4, atol=1e-5)


class Contract:
    "What both kinds of operators promise. A subclass says what it does not promise:"
    equivariant = True      # permuting the scores permutes the result; a network compares lanes, so it says False
    fixed_steps = True      # the amount of work does not depend on the data, so that it can be compiled and transformed
    repeats = True          # has no randomness of its own: the same scores give the same result, in any batch
    estimates = False       # its gradient is an estimate of that of an expectation, not the derivative of what it returns
    outliers = True         # what lies far away has no influence on what is near; a network and standardised scores say False
    precise = {}            # parameters with which differences agree with gradients to seven digits
    second = {}             # parameters with which it has second derivatives, None where it has none

    def make(self, **kwargs):
        "The operator, with parameters `tau`, `descending` and those of `precise` and `second`."
        raise NotImplementedError(f"{type(self).__name__} does not say how to make its operator")

    def of(self, op, s, x):
        "What is differentiated: the results of `op` at scores s, with a payload x of the same shape."
        raise NotImplementedError

    def value(self, op, s):
        "One result of the scores' shape."
        raise NotImplementedError

    def regimes(self, rng):
        "Scores (3, 5) of every regime, each with a temperature that fits."
        for name, draw in REGIMES.items():
            s = draw(3, 5, torch.float64, rng)
            if self.outliers or "outlier" not in name: yield s, spread_of(s) / 2

    @staticmethod
    def assert_finite(g): assert g.isfinite().all()

    def test_nan_stays_in_its_own_row_of_the_batch(self, rng):
        if not self.repeats: pytest.skip("draws noise")
        s = scores(3, 5, rng=rng)
        clean = self.value(self.make(tau=0.5), s)
        s[1, 2] = math.nan
        found = self.value(self.make(tau=0.5), s)
        assert_close(found[[0, 2]], clean[[0, 2]])
        assert not found[1].isfinite().all()

    def test_learnable_temperature_of_each_set(self, rng):
        "Each set has its own temperature, and the gradient with respect to it is the slope."
        if not self.repeats: pytest.skip("draws noise")
        s, tau = scores(2, 5, rng=rng), torch.nn.Parameter(torch.tensor([0.2, 1.5], dtype=torch.float64))
        op = self.make(tau=tau)
        assert list(op.parameters()) == [tau]
        out = self.value(op, s)
        def alone(b, tau): return self.value(self.make(tau=tau), s[b])
        for b in range(2):
            assert_close(out[b], alone(b, tau[b].item()), rtol=1e-6, atol=1e-7)
        [g] = torch.autograd.grad(out.square().sum(), tau)
        if self.estimates: return self.assert_finite(g)
        def energy(b, tau): return alone(b, tau).square().sum()
        slope = [(energy(b, t.item() + 1e-4) - energy(b, t.item() - 1e-4)) / 2e-4 for b, t in enumerate(tau.detach())]
        assert_close(g, torch.stack(slope), rtol=1e-3, atol=1e-4)

    def test_the_gradient_is_the_derivative(self, rng):
        if self.estimates: pytest.skip("estimates the gradient of an expectation")
        s, x = scores(2, 5, rng=rng).requires_grad_(), scores(2, 5, rng=rng).requires_grad_()
        op = self.make(tau=0.7, **self.precise)
        assert torch.autograd.gradcheck(lambda s, x: self.of(op, s, x), (s, x), atol=1e-5)

    def test_the_second_gradient_is_the_second_derivative(self, rng):
        if self.second is None: pytest.skip("has a first derivative only")
        if self.estimates: pytest.skip("estimates the gradient of an expectation")
        s = scores(2, 4, rng=rng).requires_grad_()
        op = self.make(tau=0.7, **self.precise, **self.second)
        assert torch.autograd.gradgradcheck(lambda s: self.value(op, s), s, atol=1e-4)

    def test_a_large_temperature_is_finite(self, rng):
        "So are its gradients, in both precisions."
        for dtype in (torch.float32, torch.float64):
            s = scores(2, 6, rng=rng, dtype=dtype).requires_grad_()
            for tau in (1e-6, 1e6):
                out = self.value(self.make(tau=tau), s)
                [g] = torch.autograd.grad(out.square().sum(), s)
                assert out.isfinite().all() and g.isfinite().all()

    def test_compiles_without_a_break(self, rng):
        if not self.fixed_steps: pytest.skip("iterates until convergence, which depends on the data")
        if not self.repeats: pytest.skip("draws noise")
        torch._dynamo.reset()     # all subclasses share this code, and it is not compiled anew for ever
        s, op = scores(3, 5, rng=rng, dtype=torch.float32), self.make(tau=0.5)
        def f(s): return self.of(op, s, s)
        for compiled, eager in zip(torch.compile(f, fullgraph=True, backend="aot_eager")(s), f(s)): assert_close(compiled, eager)

    def test_transforms_of_functions(self, rng):
        if not self.fixed_steps: pytest.skip("iterates until convergence, which depends on the data")
        if not self.repeats: pytest.skip("draws noise")
        s, op = scores(3, 5, rng=rng), self.make(tau=0.5)
        def f(s): return self.value(op, s).square().sum()
        z = s.clone().requires_grad_()
        assert_close(torch.func.vmap(lambda s: self.value(op, s))(s), self.value(op, s))
        assert_close(torch.func.vmap(torch.func.grad(f))(s), torch.autograd.grad(f(z), z)[0])

    @pytest.mark.filterwarnings("ignore::DeprecationWarning")      # of torch, which compiles its rules
    def test_forward_mode_by_dual_numbers(self, rng):
        "Tangents of a set that is small, and of one that a kernel takes."
        if not self.repeats: pytest.skip("draws noise")
        fw = torch.autograd.forward_ad
        for n in (5, 200):
            s, v, op = scores(n, rng=rng), scores(n, rng=rng), self.make(tau=0.5, **self.precise)
            with fw.dual_level(): found = fw.unpack_dual(self.value(op, fw.make_dual(s, v))).tangent
            assert_close(found, torch.autograd.functional.jacobian(lambda s: self.value(op, s), s) @ v, rtol=1e-5, atol=1e-7)

    def test_repr_shows_the_parameters(self):
        assert "tau=0.25" in repr(self.make(tau=0.25))
        assert "descending=True" in repr(self.make(descending=True))

    @pytest.mark.parametrize("bad, error, says", [
        ([3.0, 1.0], TypeError, "list"),
        (torch.tensor([3, 1]), TypeError, "int64"),
        (torch.tensor(1.0), ValueError, r"\(\)"),
        (torch.empty(2, 0), ValueError, r"\(2, 0\)"),
    ])
    def test_an_error_says_what_scores_are_not(self, bad, error, says):
        with pytest.raises(error, match=says): self.make(tau=0.5)(bad)

    @pytest.mark.parametrize("bad, error, says", [
        (torch.ones(2, 4).bool(), ValueError, "mask"),
        (torch.ones(2, 3), TypeError, "bool"),
    ])
    def test_an_error_says_what_a_mask_is_not(self, bad, error, says):
        with pytest.raises(error, match=says): self.make(tau=0.5)(torch.ones(2, 3), bad)

    @pytest.mark.parametrize("tau", [0.0, -1.0, math.nan])
    def test_an_error_says_that_tau_is_positive(self, tau):
        with pytest.raises(ValueError, match="tau"): self.make(tau=tau)

    def test_an_error_says_that_tau_does_not_fit(self):
        with pytest.raises(ValueError, match="tau"): self.make(tau=torch.tensor([0.1, 0.2, 0.3]))(torch.ones(2, 4))


class OperatorContract(Contract):
    "What an operator promises that returns a soft permutation."
    claims = (is_row_stochastic,)           # the checkers that its matrices pass
    uniform_when_soft = True                # the limit of a large temperature is 1/n everywhere
    samples = ()                            # dimensions in front of the batch

    def of(self, op, s, x):
        P, target = op(s), s.detach().argsort(descending=True)
        return P @ x, P.mT @ x, P.log_prob(target), P.to_dense()

    def value(self, op, s):
        return op(s) @ s

    def test_an_outlier_is_far_away_and_nothing_else(self, rng):
        "A score of 1e16 or of the largest number leaves the others as they are; every gradient is finite."
        if not self.repeats: pytest.skip("draws noise")
        for dtype in (torch.float32, torch.float64):
            for size in (1e9, -1e16, 1e16, -torch.finfo(dtype).max, torch.finfo(dtype).max):
                s = torch.tensor([size, 0.0, 0.5, 0.6, 2.0], dtype=dtype).requires_grad_()
                x = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0], dtype=dtype)
                for out in self.of(self.make(tau=1.0), s, x):
                    [g] = torch.autograd.grad(out.masked_fill(out.isinf(), 0).sum(), s, retain_graph=True)
                    assert g.isfinite().all()
                found, alone = self.make(tau=1.0)(s) @ x, self.make(tau=1.0)(s[1:]) @ x[1:]
                if self.outliers: assert_close(found[1:] if size < 0 else found[:-1], alone, **tolerance(dtype))

    def test_shapes_on_the_meta_device(self, rng):
        "Shapes can be had without values, and an operator made under a default device of meta still computes."
        for n in (5, 200):
            for tau in (0.5, torch.tensor(0.5, device="meta")):
                s = torch.randn(2, n, device="meta")
                for a, b in zip(self.of(self.make(tau=tau), s, s), self.of(self.make(tau=0.5), scores(2, n, rng=rng), scores(2, n, rng=rng))):
                    assert a.shape == b.shape and a.device.type == "meta"
        with torch.device("meta"): op = self.make(tau=0.5)
        s = scores(2, 5, rng=rng)
        assert self.value(op, s.cpu()).isfinite().all()

    @pytest.mark.parametrize("descending", [False, True])
    def test_hard_is_a_permutation(self, descending, rng):
        "Always, and so is the straight-through matrix: at any temperature, with ties, with padding."
        s, mask = scores(4, 30, rng=rng), torch.rand(4, 30, generator=rng) < 0.7
        for tau in (0.01, 0.5, 20.0):
            op = self.make(tau=tau, descending=descending)
            for z, m in ((s, None), (s.round(), None), (0 * s, None), (s, mask), (s.round(), mask)):
                P = op(z, m)
                hard = P.hard()
                assert torch.equal(hard.sort(-1).values, torch.arange(30).expand(hard.shape))
                if self.repeats and m is None and z is s: assert torch.equal(hard, s.argsort(descending=descending))
                assert torch.equal((P.straight_through() @ torch.ones(30).double()).detach().sum(-1), (30 if m is None else m.sum(-1)) + torch.zeros(P.batch).double())
                assert torch.equal(P[..., 3:7, :].hard(), hard[..., 3:7])

    def test_an_empty_payload(self, rng):
        for n in (5, 200):
            s = scores(2, n, rng=rng).requires_grad_()
            P = self.make(tau=0.5)(s)
            for y in (P @ s.new_ones(n, 0), P.mT @ s.new_ones(n, 0)):
                assert y.shape == (*P.batch, n, 0)
                assert (torch.autograd.grad(y.sum(), s, retain_graph=True)[0] == 0).all()

    def test_a_mean_of_large_numbers_does_not_overflow(self, rng):
        "Means are between the smallest and the largest number, however many there are."
        for n in (5, 200, 700):
            big = torch.full((n,), 1e37)
            for s in (torch.zeros(n), scores(n, rng=rng, dtype=torch.float32)):
                s.requires_grad_()
                found = self.make(tau=1.0)(s) @ big
                assert_close(found / 1e37, torch.ones_like(found), rtol=1e-5, atol=1e-5)
                assert torch.autograd.grad(found.sum(), s)[0].isfinite().all()

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("shape", SHAPES)
    def test_shapes_and_dtypes(self, shape, dtype, rng):
        s = scores(*shape, rng=rng, dtype=dtype)
        P = self.make(tau=0.3)(s)
        n, tol = shape[-1], tolerance(dtype)
        assert P.shape == (*self.samples, *shape, n) and P.dtype == dtype and P.device == s.device
        assert is_row_stochastic(P, 1e-5 if dtype.itemsize > 2 else 2e-2).all()
        x = scores(*shape, 2, rng=rng, dtype=dtype)
        D = P.to_dense().double()
        assert (P @ x).dtype == (P.mT @ x).dtype == P.log_prob(s.argsort()).dtype == dtype
        assert_close((P @ x).double(), D @ x.double(), **tol)
        assert_close((P.mT @ x).double(), D.mT @ x.double(), **tol)
        assert_close((P[..., : (n + 1) // 2, :] @ x).double(), (D @ x.double())[..., : (n + 1) // 2, :], **tol)
        assert_close(P.log_prob(P.hard()).double().exp(), D.gather(-1, P.hard()[..., None])[..., 0], **tol)

    @pytest.mark.parametrize("tau", [0.05, 0.5, 20.0])
    def test_the_matrix_is_what_it_claims(self, tau, rng):
        P = self.make(tau=tau)(scores(4, 7, rng=rng))
        for claim in self.claims: assert claim(P).all(), claim.__name__

    @pytest.mark.parametrize("descending", [False, True])
    def test_hard_limit_and_direction(self, descending, rng):
        "With tau far below the gaps every operator is the hard sort, both ways, and its hard() is argsort."
        if not self.repeats: pytest.skip("draws noise")
        s = distinct(8, 7, rng)
        P = self.make(tau=1e-3, descending=descending)(s)
        assert torch.equal(P.hard(), s.argsort(descending=descending))
        assert_close(P @ s, s.sort(descending=descending).values, atol=2e-2, rtol=0)

    def test_soft_limit(self, rng):
        "With tau far above the gaps every input is as likely at every position."
        if not self.uniform_when_soft: pytest.skip("has another limit")
        s = scores(3, 6, rng=rng)
        assert_close(self.make(tau=1e6)(s).to_dense(), s.new_full((*self.samples, 3, 6, 6), 1 / 6), rtol=0, atol=1e-4)

    def test_directions_mirror_each_other(self, rng):
        for s, tau in self.regimes(rng):
            up, down = (self.make(tau=tau, descending=descending)(s).to_dense() for descending in (False, True))
            assert_close(up, down.flip(-2), rtol=1e-5, atol=1e-6)

    def test_permuting_the_scores_permutes_the_columns(self, rng):
        if not self.equivariant: pytest.skip("its output depends on the order of its input")
        if not self.repeats: pytest.skip("draws noise")
        s, perm = scores(2, 7, rng=rng), torch.randperm(7, generator=rng)
        P, Q = (self.make(tau=0.5)(z).to_dense() for z in (s, s[..., perm]))
        assert_close(Q, P[..., perm], rtol=1e-6, atol=1e-8)

    @pytest.mark.parametrize("descending", [False, True])
    def test_padding_is_not_seen(self, descending, rng):
        s, x = (scores(3, 5, rng=rng).masked_fill(~MASK, fill) for fill in (math.nan, math.inf))
        P = self.make(tau=0.5, descending=descending)(s, MASK)
        D, hard = P.to_dense(), P.hard()
        for b in range(3):
            n = int(MASK[b].sum())
            assert not (P @ x)[..., b, n:].any() and not D[..., b, n:, :].any() and not D[..., b, :, ~MASK[b]].any()
            assert torch.equal(hard[..., b, :].sort(-1).values, torch.arange(5).expand_as(hard[..., b, :]))

    @pytest.mark.parametrize("descending", [False, True])
    def test_masked_sets_equal_short_sets(self, descending, rng):
        if not self.repeats: pytest.skip("draws noise")
        x = scores(3, 5, rng=rng).masked_fill(~MASK, math.inf)
        for s, tau in self.regimes(rng):
            op = self.make(tau=tau, descending=descending)
            P = op(s.masked_fill(~MASK, math.nan), MASK)
            for b in range(3):
                n, real = int(MASK[b].sum()), MASK[b]
                short = op(s[b, real])
                assert_close((P @ x)[b, :n], short @ x[b, real], rtol=1e-5, atol=1e-6)
                assert torch.equal(P.hard()[b, :n], real.nonzero()[:, 0][short.hard()])

    def test_gradients_of_masked_sets_are_finite(self, rng):
        mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]]).bool()
        s = scores(2, 4, rng=rng).masked_fill(~mask, 1e30).requires_grad_()
        P = self.make(tau=0.5)(s, mask)
        loss = (P @ torch.ones(2, 4, 2).double().cumsum(1)).square().sum() + P.log_prob(P.hard()).sum() + P.to_dense().square().sum()
        [g] = torch.autograd.grad(loss, s)
        assert g.isfinite().all() and not g[~mask].any() and g[mask].any()

    def test_ties_give_finite_symmetric_gradients(self, rng):
        s = torch.tensor([[1.0, 0.0, 1.0, 1.0, -2.0]]).double().requires_grad_()
        P = self.make(tau=0.5)(s)
        [g] = torch.autograd.grad((P @ s).square().sum() + (P.to_dense() ** 3).sum(), s)
        assert g.isfinite().all() and g.any()
        assert torch.equal(P.hard().sort(-1).values, torch.arange(5).expand_as(P.hard()))
        if self.equivariant and self.repeats:
            assert_close(P.to_dense()[..., 0], P.to_dense()[..., 2])
            assert_close(g[0, 0], g[0, 2])
            assert_close(g[0, 0], g[0, 3])


class RankContract(Contract):
    "What a rank operator promises."
    sum_is_kept = True      # the ranks sum to n (n + 1) / 2

    def of(self, op, s, x):
        return (op(s) * x,)

    def value(self, op, s):
        return op(s)

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("shape", SHAPES)
    def test_shapes_and_dtypes(self, shape, dtype, rng):
        s = scores(*shape, rng=rng, dtype=dtype)
        r = self.make(tau=0.3)(s)
        assert r.shape == s.shape and r.dtype == dtype and r.device == s.device
        assert_close(r.double(), self.make(tau=0.3)(s.double()), **tolerance(dtype))

    @pytest.mark.parametrize("tau", [0.05, 0.5, 20.0])
    def test_range_and_sum(self, tau, rng):
        r = self.make(tau=tau)(scores(4, 7, rng=rng))
        assert (r >= 1 - 1e-9).all() and (r <= 7 + 1e-9).all()
        if self.sum_is_kept: assert_close(r.sum(-1), r.new_full((4,), 28.0))

    @pytest.mark.parametrize("descending", [False, True])
    def test_hard_limit_and_direction(self, descending, rng):
        s = distinct(8, 7, rng)
        r = self.make(tau=1e-3, descending=descending)(s)
        assert_close(r, s.argsort(descending=descending).argsort().double() + 1, atol=2e-2, rtol=0)

    def test_soft_limit(self, rng):
        "With tau far above the gaps everyone has the mean rank."
        assert_close(self.make(tau=1e6)(scores(3, 6, rng=rng)), torch.full((3, 6), 3.5, dtype=torch.float64), rtol=0, atol=1e-4)

    def test_directions_mirror_each_other(self, rng):
        for s, tau in self.regimes(rng):
            assert_close(self.make(tau=tau, descending=True)(s), self.make(tau=tau)(-s))

    def test_permuting_the_scores_permutes_the_ranks(self, rng):
        s, perm = scores(2, 7, rng=rng), torch.randperm(7, generator=rng)
        assert_close(self.make(tau=0.5)(s[..., perm]), self.make(tau=0.5)(s)[..., perm], rtol=1e-6, atol=1e-8)

    @pytest.mark.parametrize("descending", [False, True])
    def test_masked_sets_equal_short_sets(self, descending, rng):
        for s, tau in self.regimes(rng):
            op = self.make(tau=tau, descending=descending)
            r = op(s.masked_fill(~MASK, math.nan), MASK)
            assert not r[~MASK].any()
            for b in range(3): assert_close(r[b, MASK[b]], op(s[b, MASK[b]]), rtol=1e-5, atol=1e-6)

    def test_gradients_of_masked_sets_are_finite(self, rng):
        mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]]).bool()
        s = scores(2, 4, rng=rng).masked_fill(~mask, 1e30).requires_grad_()
        [g] = torch.autograd.grad(self.make(tau=0.5)(s, mask).square().sum(), s)
        assert g.isfinite().all() and not g[~mask].any() and g[mask].any()

    def test_ties_share_a_rank_and_a_gradient(self, rng):
        s = torch.tensor([[1.0, 0.0, 1.0, 1.0, -2.0]]).double().requires_grad_()
        r = self.make(tau=0.5)(s)
        [g] = torch.autograd.grad(r.square().sum(), s)
        assert g.isfinite().all()
        for j in (2, 3):
            assert_close(r[0, 0], r[0, j])
            assert_close(g[0, 0], g[0, j])
