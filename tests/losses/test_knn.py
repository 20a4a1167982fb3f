"""SoftKNN: scikit-learn's votes in the hard limit, Matching Networks, gradients, masks; the estimator by scikit-learn's own checks."""
import math
import pickle
import subprocess
import sys

import pytest
import torch
from torch.testing import assert_close

from softsortlib.losses.knn import SoftKNeighborsClassifier, SoftKNN, _closeness
from softsortlib.core.operators import Operator
from softsortlib.rowwise.softsort import SoftSort

METHODS = [m for m in ("softsort", "neuralsort", "odd_even") if m in Operator.names]


def data(rng, q=6, n=15, d=3, classes=4, batch=(), dtype=torch.float64):
    draw = lambda m: torch.randn(*batch, m, d, generator=rng, dtype=torch.float64).to(dtype)
    return draw(q), draw(n), torch.randint(0, classes, (*batch, n), generator=rng)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("k", [1, 2, 7, 15])
def test_hard_limit_is_the_vote_of_scikit_learn(method, k, rng):
    KNeighborsClassifier = pytest.importorskip("sklearn.neighbors").KNeighborsClassifier
    q, x, y = data(rng)
    y[:4] = torch.arange(4)
    want = KNeighborsClassifier(k).fit(x.numpy(), y.numpy()).predict_proba(q.numpy())
    assert_close(SoftKNN(k, method=method, tau=1e-6)(q, x, y).exp(), torch.from_numpy(want), atol=1e-3, rtol=0)


@pytest.mark.parametrize("d, n", [(2, 5), (16, 40)])
def test_matching_networks(d, n, rng):
    "Proposition 2 of Prillo & Eisenschlos: one neighbour, |.|, tau = 2, unit norm."
    q, x, y = data(rng, d=d, n=n)
    q, x = (torch.nn.functional.normalize(a, dim=-1) for a in (q, x))
    attention = (q @ x.mT).softmax(-1) @ torch.nn.functional.one_hot(y, 4).double()
    assert_close(SoftKNN(1, SoftSort(tau=2.0), classes=4)(q, x, y).exp(), attention)
    assert (SoftKNN(1, SoftSort(tau=2.0, power=2), classes=4)(q, x, y).exp() - attention).abs().max() > 1e-3
    assert (SoftKNN(1, SoftSort(tau=2.0), classes=4)(2 * q, x, y).exp() - attention).abs().max() > 1e-3


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_probabilities_are_those_of_the_dense_rows(method, batch, rng):
    q, x, y = data(rng, batch=batch)
    s = -torch.cdist(q, x).square()
    from softsortlib.core.operators import get_operator
    P = get_operator(method, tau=0.7, descending=True)(s).to_dense()[..., :3, :]
    want = P.mean(-2) @ torch.nn.functional.one_hot(y, 5).double()
    got = SoftKNN(3, method, 0.7, classes=5)(q, x, y)
    assert got.shape == (*batch, 6, 5)
    assert_close(got.exp(), want); assert_close(got.exp().sum(-1), torch.ones(*batch, 6, dtype=got.dtype))
    assert (got[..., 4] == -math.inf).all()                                          # no candidate has class 4


def dense(q, x, y, k, tau):
    "Two classes by direct differences and the dense rows of SoftSort, in double precision."
    s = -(q.double()[..., :, None, :] - x.double()[..., None, :, :]).square().sum(-1)
    nearest = s.sort(-1, descending=True).values[..., :k, None]
    P = (-(nearest - s[..., None, :]).abs() / tau).softmax(-1)
    return P.mean(-2) @ torch.nn.functional.one_hot(y, 2).double()


def with_gradients(f, q, x):
    "Probabilities, and the gradients of those of the first class to queries and candidates."
    q, x = q.clone().requires_grad_(), x.clone().requires_grad_()
    p = f(q, x)
    return p.detach(), *torch.autograd.grad(p[..., 0].sum(), (q, x))


def assert_near(got, want, tol):
    "Each within `tol` of the largest entry."
    for a, b in zip(got, want): assert_close(a.double(), b.double(), rtol=0, atol=tol * float(b.abs().max()))


def clusters(z): return z + 1e4 * (torch.arange(z.shape[-2]) % 2 * 2.0 - 1)[:, None]
def outlier(z): return torch.cat([z[..., :1, :] + 1e17, z[..., 1:, :]], -2)


@pytest.mark.parametrize("far", [0.0, 3e3, 1e4])
def test_a_vote_far_from_the_origin_in_numbers(far):
    q, x = torch.zeros(1, 2), torch.tensor([[1.0, 0.0], [0.0, 1.25], [3.0, 0.0], [0.0, 0.5]])
    log_p = SoftKNN(1, tau=0.1)(q + far, x + far, torch.tensor([0, 1, 0, 1]))
    assert_close(log_p, torch.tensor([[-7.5006, -0.00055]]), rtol=0, atol=1e-4)


@pytest.mark.parametrize("place, loss", [(lambda z: z, 1), (lambda z: z + 1e3, 1), (lambda z: z + 1e4, 1), (lambda z: 100 * z + 1e6, 1), (lambda z: 1e-6 * z, 1), (lambda z: 1e6 * z, 1), (lambda z: 1e-6 * z + 1, 1),
                                         (lambda z: z + 1e4 * torch.arange(2.0)[:, None, None], 1), (outlier, 1), (clusters, 1e6)],
                         ids=["origin", "1e3", "1e4", "1e6", "small", "large", "fine", "batches", "outlier", "clusters"])
@pytest.mark.parametrize("dtype, tol", [(torch.float32, 5e-6), (torch.float64, 1e-12)])
@pytest.mark.parametrize("d", [3, 200])
def test_distances_are_those_of_the_points(place, loss, dtype, tol, d, rng):
    q, x, y = data(rng, q=20, n=30, d=d, classes=2, batch=(2,))
    q, x = (q if place is outlier else place(q)).to(dtype), place(x).to(dtype)
    tau = float(torch.cdist(q.double(), x.double(), compute_mode="donot_use_mm_for_euclid_dist").square().amin(-1).median())
    got = with_gradients(lambda q, x: SoftKNN(3, "softsort", tau, classes=2)(q, x, y).exp(), q, x)
    want = with_gradients(lambda q, x: dense(q, x, y, 3, tau), q, x)
    assert_near(got, want, tol if dtype == torch.float32 else tol * loss)      # clusters: 2^-53 of their squared distance


def test_half_types_have_the_distances_of_their_points(rng):
    q, x, y = data(rng, q=20, n=30, d=16, classes=2, dtype=torch.bfloat16)
    assert_near(with_gradients(lambda q, x: SoftKNN(3, tau=4.0, classes=2)(q, x, y).exp(), q, x), with_gradients(lambda q, x: dense(q, x, y, 3, 4.0), q, x), 0.02)
    with torch.autocast("cpu", torch.bfloat16): cast = SoftKNN(3, tau=4.0)(q.float() + 100, x.float() + 100, y)
    assert_close(cast, SoftKNN(3, tau=4.0)(q.float(), x.float(), y), rtol=0, atol=1e-4)


def test_coinciding_points_have_all_derivatives(rng):
    z, y = torch.randn(6, 3, generator=rng).double(), torch.tensor([0, 1, 0, 1, 0, 1])
    points = z.clone().requires_grad_(), z.clone().requires_grad_()
    assert torch.autograd.gradcheck(_closeness, points) and torch.autograd.gradgradcheck(_closeness, points)
    got = with_gradients(lambda q, x: SoftKNN(2, "softsort", 1.0)(q, x, y).exp(), z, z)
    assert_near(got, with_gradients(lambda q, x: dense(q, x, y, 2, 1.0), z, z), 1e-12)


@pytest.mark.parametrize("where", ["front", "middle", "end"])
@pytest.mark.parametrize("held", [0.0, 1e30, -1e30, math.nan, math.inf])
@pytest.mark.parametrize("far", [0.0, 1e4, 1e6])
def test_what_a_mask_hides_may_hold_anything(held, where, far, rng):
    "Candidates and their labels, and queries: values, gradients and the number of classes are those without them."
    q, x, y = data(rng, classes=3)
    q, x = (100 * q + far).float(), (100 * x + far).float()
    mask, knn = torch.rand(6, 15, generator=rng) < 0.7, SoftKNN(2, tau=3e3)
    mask[:, 0], y[:3] = True, torch.arange(3)

    def pad(t, value, dim):
        i = dict(front=0, middle=t.shape[dim] // 2, end=t.shape[dim])[where]
        shape = [20 if j == dim % t.ndim else n for j, n in enumerate(t.shape)]
        return torch.cat([t.narrow(dim, 0, i), torch.full(shape, value, dtype=t.dtype), t.narrow(dim, i, t.shape[dim] - i)], dim)

    want = with_gradients(lambda q, x: knn(q, x, y, mask).exp(), q, x)
    for label in (-100, 0, 1000):
        shown = pad(pad(mask, False, 1), False, 0)
        p, gq, gx = with_gradients(lambda q, x: knn(q, x, pad(y, label, 0), shown)[shown.any(1)].exp(), pad(q, held, 0), pad(x, held, 0))
        assert_near((p, gq[shown.any(1)], gx[shown.any(0)]), want, 1e-5)
        assert (gq[~shown.any(1)] == 0).all() and (gx[~shown.any(0)] == 0).all()


def test_what_one_query_may_not_see_does_not_reach_it(rng):
    q, x, y = data(rng, classes=2)
    mask = torch.ones(6, 15, dtype=torch.bool)
    mask[:3, 7], x[7] = False, math.nan                                        # the others see it
    p, gq, _ = with_gradients(lambda q, x: SoftKNN(2, tau=1.0, classes=2)(q, x, y, mask).exp(), q, x)
    kept = torch.arange(15) != 7
    assert_near((p[:3], gq[:3]), with_gradients(lambda q, x: SoftKNN(2, tau=1.0, classes=2)(q, x, y[kept]).exp(), q[:3], x[kept])[:2], 1e-12)
    assert p[3:].isnan().all()


def test_every_mode_hides_what_the_mask_hides(rng):
    q, x, y = data(rng, classes=2)
    mask = torch.rand(6, 15, generator=rng) < 0.7
    mask[:, 0], mask[:, 7] = True, False
    shown, knn = torch.arange(15) != 7, SoftKNN(2, tau=1.0, classes=2)
    bad = torch.where(shown[:, None], x, math.nan)
    f = lambda q, x: knn(q, x, y, mask)[:, 0].exp().sum()
    want = with_gradients(lambda q, x: knn(q, x, y[shown], mask[:, shown]).exp(), q, x[shown])[1:]
    for got in (torch.func.grad(f, (0, 1))(q, bad), [g[0] for g in torch.func.vmap(torch.func.grad(f, (0, 1)))(q.expand(2, 6, 3), bad.expand(2, 15, 3))]):
        assert_near((got[0], got[1][shown]), want, 1e-12)
        assert (got[1][7] == 0).all()
    some = torch.func.vmap(lambda m: knn(q, bad, y, m))(torch.stack([mask, mask.roll(1, 0)]))
    assert_close(some[1], knn(q, bad, y, mask.roll(1, 0)))
    z = bad.clone().requires_grad_()
    g, = torch.autograd.grad(f(q, z), z, create_graph=True)
    assert torch.autograd.grad(g.square().sum(), z)[0].isfinite().all()


def test_log_domain_keeps_a_gradient_where_probabilities_underflow():
    x = torch.tensor([[0.0], [1.0], [100.0]], requires_grad=True)
    log_p = SoftKNN(2, tau=1.0)(torch.zeros(1, 1), x, torch.tensor([0, 0, 1]))
    assert log_p[0, 1] < -1000
    g, = torch.autograd.grad(log_p[0, 1], x)
    assert g.isfinite().all() and g[2] < -100


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_masks_and_gradients(dtype, rng):
    q, x, y = data(rng, dtype=dtype)
    mask = torch.rand(6, 15, generator=rng) < 0.5
    mask[0], mask[0, 3] = False, True                                                # a single candidate for k = 3
    knn = SoftKNN(3, tau=0.8, classes=4)
    got = knn(q, x, y, mask)
    assert got.dtype == dtype
    for i in range(6): assert_close(got[i], SoftKNN(min(3, int(mask[i].sum())), tau=0.8, classes=4)(q[i:i + 1], x[mask[i]], y[mask[i]])[0])
    x.requires_grad_()
    g, = torch.autograd.grad(knn(q, x, y, mask).exp()[:, 0].sum(), x)
    assert g.isfinite().all() and g.abs().sum() > 0
    if dtype == torch.float64: assert torch.autograd.gradcheck(lambda q, x: knn(q, x, y, mask).exp(), (q.requires_grad_(), x))


def test_half_types_and_a_learnable_temperature(rng):
    q, x, y = data(rng)
    knn = SoftKNN(2, SoftSort(torch.nn.Parameter(torch.tensor(0.5))), classes=4)
    (-knn(q, x, y)[:, y[0]].exp().mean()).backward()
    assert [p.grad.isfinite().item() for p in knn.parameters()] == [True]
    got = SoftKNN(2, tau=0.5, classes=4)(q.bfloat16(), x.bfloat16(), y)
    assert got.dtype == torch.bfloat16 and (got.exp().sum(-1) - 1).abs().max() < 0.05


@pytest.mark.parametrize("call, error, text", [
    (lambda q, x, y: SoftKNN(0), ValueError, "k must be"), (lambda q, x, y: SoftKNN(16)(q, x, y), ValueError, "k must be in 1..15"),
    (lambda q, x, y: SoftKNN(1)(q[:, :2], x, y), ValueError, "the same d"), (lambda q, x, y: SoftKNN(1)(q, x, y[:3]), ValueError, "labels must be"),
    (lambda q, x, y: SoftKNN(1)(q, x, y.float()), TypeError, "labels must be"), (lambda q, x, y: SoftKNN(1)(q.long(), x, y), TypeError, "queries must be"),
    (lambda q, x, y: SoftKNN(1, method="softort")(q, x, y), ValueError, "softsort")])
def test_errors(call, error, text, rng):
    with pytest.raises(error, match=text): call(*data(rng))


def test_imports_without_scikit_learn():
    code = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in ('sklearn', 'scipy'): raise ImportError(name)
sys.meta_path.insert(0, Refuse())
import torch, softsortlib.losses.knn as knn
assert knn.SoftKNN(1, tau=1.0)(torch.zeros(1, 2), torch.ones(3, 2), torch.tensor([0, 1, 1])).shape == (1, 2)
try: knn.SoftKNeighborsClassifier()
except ImportError as e: print(e)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd="/", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "pip install" in done.stdout


def checks():
    try: from sklearn.utils.estimator_checks import parametrize_with_checks
    except ImportError: return pytest.mark.skip(reason="scikit-learn is not installed")
    return parametrize_with_checks([SoftKNeighborsClassifier(max_iter=5)])


@checks()
def test_scikit_learn_checks(estimator, check): check(estimator)


def test_estimator_on_digits(rng):
    datasets = pytest.importorskip("sklearn.datasets")
    X, y = datasets.load_digits(return_X_y=True)
    X = X / 16
    model = SoftKNeighborsClassifier(3, n_components=2, max_iter=8, batch_size=128, random_state=0).fit(X[:500], y[:500])
    assert model.score(X[500:900], y[500:900]) > 0.5 and model.history_[-1] > model.history_[0]
    again = SoftKNeighborsClassifier(3, n_components=2, max_iter=8, batch_size=128, random_state=0).fit(X[:500], y[:500])
    assert (again.predict_proba(X[500:600]) == model.predict_proba(X[500:600])).all()
    assert (pickle.loads(pickle.dumps(model)).predict(X[500:600]) == model.predict(X[500:600])).all()


def test_a_given_embedding_is_copied_and_trained(rng):
    pytest.importorskip("sklearn")
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    before = [p.clone() for p in net.parameters()]
    X = torch.randn(120, 2, generator=rng).numpy()
    y = ["in" if a * a + b * b < 1 else "out" for a, b in X]
    state = torch.get_rng_state()
    model = SoftKNeighborsClassifier(3, embedding=net, method="softsort", tau=0.1, max_iter=30, random_state=1).fit(X, y)
    assert torch.equal(state, torch.get_rng_state())                                  # the global generator is not touched
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters()))
    assert any((a - b).abs().max() > 1e-3 for a, b in zip(before, model.embedding_.parameters()))
    assert set(model.predict(X[:5])) <= {"in", "out"} and model.score(X, y) > 0.9 and model.points_.dtype == torch.float32
    fixed = SoftKNeighborsClassifier(3, embedding=torch.nn.Identity(), max_iter=5).fit(X, y)
    assert fixed.history_ == [] and fixed.score(X, y) > 0.9
    with pytest.raises(ValueError, match="n_neighbors"): SoftKNeighborsClassifier(0).fit(X, y)


def test_every_wrong_argument_of_the_module_is_named(rng):
    q, c, l = torch.randn(2, 4, generator=rng), torch.randn(5, 4, generator=rng), torch.tensor([0, 1, 0, 1, 1])
    for options, error, says in ((dict(k=0), ValueError, "k must"), (dict(k=2.5), TypeError, "k must"), (dict(method="softrot"), ValueError, "did you mean 'softsort'"), (dict(method=None), TypeError, "method"),
                                 (dict(method="laplace"), ValueError, "did you mean 'lapsum'"), (dict(tau=0.0), ValueError, "tau"), (dict(tau="a"), TypeError, "tau"), (dict(classes=0), ValueError, "classes"),
                                 (dict(classes=2.5), TypeError, "classes"), (dict(classes=-1), ValueError, "classes")):
        with pytest.raises(error, match=says): SoftKNN(**options)
    for args, error, says in (((q, c, l - 1), ValueError, "class numbers from 0"), ((q.double(), c, l), TypeError, "one dtype"), ((q[:0], c, l), ValueError, "at least one query"), ((q, c[:1], l[:1]), ValueError, "number of candidates"),
                              ((q.expand(3, 2, 4), c.expand(2, 5, 4), l), ValueError, "batch dimensions"), ((q, c, l.expand(3, 5)), ValueError, "labels must broadcast"), ((q, c, l.float()), TypeError, "labels"), ((q, c[:, :3], l), ValueError, "same d")):
        with pytest.raises(error, match=says): SoftKNN(2)(*args)
    with pytest.raises(ValueError, match="from 0 to 0"): SoftKNN(2, classes=1)(q, c, l)
    with pytest.raises(RuntimeError, match="classes must be given"): torch.func.vmap(lambda l: SoftKNN(2)(q, c, l))(l.expand(3, 5))
    many = torch.func.vmap(lambda l: SoftKNN(2, classes=2)(q, c, l))(torch.stack([l, 1 - l]))
    for one, labels in zip(many, (l, 1 - l)): torch.testing.assert_close(one, SoftKNN(2)(q, c, labels))


@pytest.mark.parametrize("options, error, says", [
    (dict(n_neighbors=0), ValueError, "n_neighbors"), (dict(n_neighbors=2.5), TypeError, "n_neighbors"), (dict(n_neighbors=None), TypeError, "n_neighbors"), (dict(max_iter="a"), TypeError, "max_iter"),
    (dict(batch_size=1), ValueError, "batch_size must be more than n_neighbors"), (dict(n_components=0), ValueError, "n_components"), (dict(n_components=2.5), TypeError, "n_components"),
    (dict(embedding="a"), TypeError, "embedding must be"), (dict(embedding=abs), TypeError, "embedding must be"), (dict(learning_rate="a"), TypeError, "learning_rate"), (dict(learning_rate=-1), ValueError, "learning_rate"),
    (dict(tau="foo"), ValueError, "'auto'"), (dict(tau=0.0), ValueError, "tau"), (dict(method="softrot"), ValueError, "did you mean")])
def test_every_wrong_parameter_of_the_classifier_is_named(options, error, says):
    pytest.importorskip("sklearn")
    import numpy as np
    X, y = np.random.RandomState(0).randn(12, 3), np.array([0, 1, 2] * 4)
    with pytest.raises(error, match=says): SoftKNeighborsClassifier(**{**dict(max_iter=1), **options}).fit(X, y)


def test_lapsum_counts_each_neighbour_once(rng):
    q, c, l = torch.randn(6, 3, generator=rng).double(), torch.randn(9, 3, generator=rng).double(), torch.arange(9)
    w = 3 * SoftKNN(3, "lapsum", tau=2.0)(q, c, l).exp()                          # a class for each candidate: the votes are the weights
    assert (w <= 1 + 1e-12).all() and torch.allclose(w.sum(-1), torch.full((6,), 3.0).double())


def test_an_operator_brings_its_own_temperature(rng):
    pytest.importorskip("sklearn")
    X, y = torch.randn(30, 3, generator=rng).numpy(), torch.arange(30).numpy() % 2
    model = SoftKNeighborsClassifier(2, method=SoftSort(0.2), max_iter=2, random_state=0).fit(X, y)
    assert model.knn_.tau is None and model.knn_.method.tau == 0.2 and model.predict(X).shape == (30,)


def test_points_that_are_all_alike_are_voted_on():
    "Their principal components have no length to be scaled to."
    pytest.importorskip("sklearn")
    X, y = torch.ones(6, 3).double().numpy(), [0, 0, 0, 0, 1, 1]
    model = SoftKNeighborsClassifier(2, max_iter=2, random_state=0).fit(X, y)
    assert all(p.isfinite().all() for p in model.embedding_.parameters())
    assert_close(torch.from_numpy(model.predict_proba(X)), torch.tensor([[4 / 6, 2 / 6]]).double().expand(6, 2), atol=1e-6, rtol=0)
