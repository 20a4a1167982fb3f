"""The kernel of random subsets (chapter K7) against the table in the log domain and the tree, also where weights are tiny."""
import math

import pytest
import torch
from torch.testing import assert_close

from softsortlib.selection import SimpleTopK, subset_marginals
from softsortlib.selection.counts import count_pull, count_weights
from softsortlib.selection.subsets import _marginals, _tilted

f64 = torch.float64


def tilted(s, k, tau):
    return _tilted(s, torch.full((*s.shape[:-1], 1), float(k), dtype=f64), torch.full((*s.shape[:-1], 1), tau, dtype=f64), None)


@pytest.mark.parametrize("n, k", [(2, 1), (9, 8), (33, 1), (60, 20), (60, 55)])
def test_weights_keep_their_digits_however_small_they_are(n, k, rng):
    "Prop K7.1: relative accuracy of w where it is near 0, and of 1 - w where it is near 1."
    s = torch.randn(2, n, generator=rng, dtype=f64)
    s[1] = s[1].round()                                                    # ties
    for tau in (0.02, 0.3, 1.0, 1e4):
        got, want = count_weights(tilted(s, k, tau), torch.full((2, 1), k)), subset_marginals(s, k, tau)
        small = want < 0.5
        assert_close(got[small], want[small], rtol=1e-9, atol=0)
        assert_close(got, want, rtol=1e-10, atol=0)


@pytest.mark.parametrize("n, k", [(3, 2), (70, 30), (500, 250), (500, 3)])
def test_the_kernel_is_the_tree_in_value_and_gradient(n, k, rng):
    s = torch.randn(2, n, generator=rng, dtype=f64)
    for tau in (1e-6, 0.1, 1.0, 1e6):
        v, counts, g = tilted(s, k, tau).requires_grad_(), torch.full((2, 1), k), torch.randn(2, n, generator=rng, dtype=f64)
        tree = _marginals(v, counts, k)
        assert_close(count_weights(v.detach(), counts), tree.detach(), rtol=1e-10, atol=1e-12)
        assert_close(count_pull(g, v.detach(), counts), torch.autograd.grad(tree, v, g)[0], rtol=1e-9, atol=1e-11)


def test_ten_thousand(rng):
    "The weights sum to k, and so the gradient to zero; a window of counts is enough (Prop K7.2)."
    x = torch.randn(10_000, generator=rng, dtype=f64, requires_grad=True)
    for k in (100, 5000, 9990):
        w = SimpleTopK(k, tau=1.0)(x)
        g, = torch.autograd.grad(w @ torch.randn(10_000, generator=rng, dtype=f64), x)
        assert_close(w.sum().item(), float(k), rtol=1e-11, atol=0)
        assert abs(g.sum()) < 1e-9 and w.min() > 0 and w.max() < 1


def test_nan_stays_in_its_row_and_padding_is_left_out(rng):
    v = torch.randn(3, 6, generator=rng, dtype=f64)
    v = v - v.mean(-1, keepdim=True)
    v[1, 2] = math.nan
    v[2, 4:] = -math.inf
    v[2] = torch.cat([tilted(v[2, :4], 2, 1.0), v[2, 4:]])
    w, pull = count_weights(v, torch.full((3, 1), 2)), count_pull(torch.randn(3, 6, generator=rng, dtype=f64), v, torch.full((3, 1), 2))
    for found in (w, pull): assert found[0].isfinite().all() and found[1].isnan().all() and (found[2, 4:] == 0).all()
    assert_close(w[2, :4], _marginals(v[2, :4], torch.tensor([2]), 2))
