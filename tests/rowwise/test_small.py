"Small sets: one kernel each way, equal to the plain twins, one node of the graph for each question."
import os, pickle, subprocess, sys
from pathlib import Path

import pytest, torch
from torch.testing import assert_close

import softsortlib
from softsortlib import NeuralSort, SoftSort, soft_rank
from softsortlib.core.checks import zero_outside
from softsortlib.core.spread import in_units, spread_of
from softsortlib.rowwise.small import SmallPermutation

QUESTIONS = {
    "log_prob": lambda P, x: P.log_prob(P.hard().flip(-1) if P.mask is None else P.hard()),
    "product": lambda P, x: P @ x,
    "matrix": lambda P, x: P.to_dense(),
    "logarithm": lambda P, x: zero_outside(P._log_rows(None).exp(), P._kept, -2),
    "ranks": lambda P, x: P._mean_positions(),
    "channels": lambda P, x: P @ torch.stack([x, x * x], -1),
    "column": lambda P, x: P @ x[..., None],
    "transposed": lambda P, x: P.mT @ x,
    "top": lambda P, x: P[..., :2, :] @ x,
}


def answers(op, ask, s, tau, x, mask):
    "What the small permutation and its plain twin answer."
    P = op._soft_permutation(s, tau, mask, s.dtype)
    assert type(P) is SmallPermutation
    return ask(P, x), ask(P.twin(s, tau), x)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("cls", [SoftSort, NeuralSort])
def test_the_kernels_are_the_twins(cls, descending, masked, dtype, rng):
    eps = 1e-11 if dtype == torch.float64 else 2e-4
    for n in (2, 7, 33):
        s, x = (torch.randn(3, n, generator=rng, dtype=torch.float64).to(dtype).requires_grad_() for _ in range(2))
        s = s.detach().mul(4).round().div(4).requires_grad_()  # with ties
        tau = torch.tensor([[0.1], [1.0], [5.0]], dtype=dtype, requires_grad=True)
        mask = torch.arange(n) < torch.tensor([[n], [n - 1], [1]]) if masked else None
        x0 = x if mask is None else (x * mask)
        for name, ask in QUESTIONS.items():
            fast, plain = answers(cls(descending=descending), ask, s, tau, x0, mask)
            G = torch.randn(plain.shape, generator=rng, dtype=torch.float64).to(dtype)
            assert_close(fast, plain, rtol=eps, atol=eps, msg=lambda m: f"{name} {n}: {m}")
            for a, b in zip(*(torch.autograd.grad(y, (s, tau, x), G, retain_graph=True, allow_unused=True) for y in (fast, plain))):
                if b is not None:
                    assert_close(a, b, rtol=eps, atol=eps * float(b.abs().max() + 1), msg=lambda m: f"{name} {n}: {m}")


@pytest.mark.parametrize("cls", [SoftSort, NeuralSort])
def test_a_question_is_one_node_of_the_graph(cls):
    s, op = torch.rand(4, 10).requires_grad_(), cls(0.1)
    order = s.detach().argsort(-1)
    for y in (op(s) @ s, op(s).log_prob(order), op(s).to_dense(), soft_rank(s, method=op)):
        leaves = {f for f, _ in y.grad_fn.next_functions if f is not None}
        assert y.grad_fn.name() == "_SmallBackward" and all("AccumulateGrad" in f.name() for f in leaves)


@pytest.mark.parametrize("cls", [SoftSort, NeuralSort])
def test_the_temperature_that_nobody_set_is_no_node_of_its_own(cls):
    s, op = torch.rand(4, 10).requires_grad_(), cls()
    for y in (op(s) @ s, op(s).log_prob(s.argsort(-1)), op(s).to_dense(), soft_rank(s, method=op)):
        leaves = {f for f, _ in y.grad_fn.next_functions if f is not None}
        assert y.grad_fn.name() == "_SmallBackward" and all("AccumulateGrad" in f.name() for f in leaves)


SETS = {
    "drawn": lambda s: s, "ties": lambda s: s.mul(2).round(), "tied": lambda s: 0 * s + 3, "far": lambda s: s + 1e4,
    "outlier": lambda s: torch.cat([s[..., :-1], 0 * s[..., -1:] + 1e17], -1),
}


@pytest.mark.parametrize("kind", SETS)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("op", [SoftSort(), SoftSort(power=2, descending=True), NeuralSort()], ids=["abs", "squares", "neural"])
def test_the_temperature_that_nobody_set_is_that_of_the_units(op, masked, kind, rng):
    "One node, or the scores in units of their spread and the same kernel: values, gradients, second ones, other modes."
    for n in (2, 5, 33):
        s = SETS[kind](torch.randn(3, n, generator=rng, dtype=torch.float64)).requires_grad_()
        mask = torch.arange(n) < torch.tensor([[n], [n - 1], [1]]) if masked else None
        for name, ask in QUESTIONS.items():
            x = torch.randn(3, n, generator=rng, dtype=torch.float64)
            x = x if mask is None else x * mask
            P = op(s, mask)
            assert type(P) is SmallPermutation and P.softness == op.softness
            one, two = ask(P, x), ask(op._soft_permutation(in_units(s, mask, op.softness), P.tau, mask, s.dtype), x)
            assert torch.equal(one, two)
            G = torch.randn(two.shape, generator=rng, dtype=torch.float64)
            a, b = (torch.autograd.grad(y, s, G)[0] for y in (one, two))
            assert_close(a, b, rtol=1e-14, atol=0)
            if kind != "outlier":       # at which the reference of NeuralSort has no digits left
                c = torch.func.grad(lambda s: ask(op(s, mask), x).mul(G).sum())(s.detach())
                assert_close(c, b, rtol=1e-10, atol=1e-10 * float(b.abs().max() + 1))
        if kind in ("drawn", "far"):
            again, first = (torch.autograd.grad((op(s, mask) @ s).sin().sum(), s, create_graph=graph)[0] for graph in (True, False))
            assert_close(again, first, rtol=1e-9, atol=1e-9)
            v = torch.randn(s.shape, generator=rng, dtype=torch.float64)
            second, = torch.autograd.grad((again * v).sum(), s)
            _, forward = torch.func.jvp(torch.func.grad(lambda s: (op(s, mask) @ s).sin().sum()), (s.detach(),), (v,))
            assert_close(second, forward, rtol=1e-8, atol=1e-8)


def test_one_soft_permutation_measures_its_scores_once_and_is_pickled(rng):
    s = torch.randn(2, 6, generator=rng)
    P = SoftSort()(s)
    P @ s
    units = P.units
    P.to_dense()
    assert P.units is units
    assert_close(pickle.loads(pickle.dumps(P)).to_dense(), P.to_dense(), rtol=0, atol=0)


class Gentler(SoftSort):
    "One that takes half the scores."
    def _soft_permutation(self, s, tau, mask, dtype):
        return super()._soft_permutation(s / 2, tau, mask, dtype)


def test_an_operator_of_ones_own_keeps_its_say_at_the_default_temperature(rng):
    s = torch.randn(2, 6, generator=rng)
    width = spread_of(s)[:, 0]
    assert_close(Gentler()(s) @ s, SoftSort(2 * SoftSort.softness * width)(s) @ s)


@pytest.mark.parametrize("op", [SoftSort(0.1), SoftSort(0.1, power=2), NeuralSort(0.1)], ids=["abs", "squares", "neural"])
def test_a_payload_of_one_column_takes_the_kernel_of_a_vector(op, rng):
    s = torch.rand(2, 200, generator=rng)[:1].requires_grad_()
    x = torch.rand(1, 200, generator=rng).requires_grad_()
    column, vector = op(s) @ x[..., None], op(s) @ x
    assert_close(column[..., 0], vector, rtol=0, atol=0)
    assert_close(*(torch.autograd.grad(y.square().sum(), (s, x)) for y in (column, vector)), rtol=0, atol=0)
    same = x[0, :, None].detach()  # one payload for sets of a batch
    sets = torch.rand(3, 40, generator=rng)
    assert_close(op(sets) @ same[:40], torch.stack([op(row) @ same[:40] for row in sets]))


def test_the_matrix_and_the_ranks_of_many_small_sets_take_the_same_kernel(rng):
    s = torch.rand(5000, 9, generator=rng).requires_grad_()
    for ask in (lambda P: P.to_dense(), lambda P: P._mean_positions(), lambda P: P[..., [4, 0], :].to_dense()):
        many, few = ask(SoftSort(0.1)(s)), ask(SoftSort(0.1)(s[:50]))
        node = many.grad_fn
        while node.name() in ("IndexBackward0", "SliceBackward0"): node = node.next_functions[0][0]     # of the rows that were asked for
        assert node.name() == "_SmallBackward"
        assert_close(many[:50], few, rtol=0, atol=0)
        assert_close(*(torch.autograd.grad(y[:50].square().sum(), s)[0] for y in (many, few)))


def test_a_matrix_that_was_changed_in_place_is_noticed():
    s = torch.rand(4, 10).requires_grad_()
    P = SoftSort(0.1)(s).to_dense()
    P.detach().add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        P.sum().backward()


@pytest.mark.parametrize("cls", [SoftSort, NeuralSort])
def test_the_gradient_of_a_payload_that_is_the_scores_adds_up(cls, rng):
    s = torch.randn(2, 6, generator=rng, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda s: cls(0.7)(s) @ s, s)
    assert torch.autograd.gradgradcheck(lambda s: cls(0.7)(s) @ s, s)
    once, again = (torch.autograd.grad((cls(0.7)(s) @ s).square().sum(), s, create_graph=graph)[0] for graph in (False, True))
    assert_close(once, again)        # gradgradcheck takes the first derivative for granted


def test_half_types_and_other_shapes_go_the_long_way(rng):
    s = torch.randn(3, 6, generator=rng)
    op = SoftSort(0.5)
    assert_close(op(s.half()) @ s.half(), (op(s) @ s).half(), rtol=2e-2, atol=2e-2)
    assert_close(op(s) @ s[0], torch.stack([P @ s[0] for P in op(s).to_dense()]))
    assert_close(op(s[0]).log_prob(torch.stack([s[0].argsort()] * 2)), op(s[0]).log_prob(s[0].argsort()).expand(2, 6))


FIRST = """
import torch
from softsortlib import NeuralSort, SoftSort
from softsortlib.engine import compile
made, of = set(), compile._compiled
def noting(f, options, cache=None):
    dispatcher = of(f, options, cache)
    compiles = dispatcher._compiler.compile
    dispatcher._compiler.compile = lambda *args: made.add(f.__name__) or compiles(*args)
    return dispatcher
compile._compiled = noting
s = torch.rand(20, 5).requires_grad_()
(SoftSort(0.1)(s) @ s).sum().backward()
print(*sorted(made))
"""


def test_a_first_product_compiles_no_other_law_and_no_other_question(tmp_path):
    env = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(Path(softsortlib.__file__).parents[1])}
    run = subprocess.run([sys.executable, "-c", FIRST], env=env, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    made = set(run.stdout.split())
    assert {"answer_sets", "pull_sets", "take_set", "distances", "means", "spread"} <= made
    assert not made & {"_sweeps", "squares", "normalize", "_tell", "_likelihoods", "_hear", "_through_logarithm",
                       "_through_ranks", "_pull_columns", "pull_squares"}, made
