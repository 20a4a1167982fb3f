"Sorting networks: the 0-1 principle, the public implementation, fast against plain, torch's contracts, losses, memory."
import json, os, subprocess, sys
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from softsortlib.networks.comparators import run_network, sorting_network
from softsortlib.core.permutation import is_doubly_stochastic
from softsortlib.core.spread import plain_spread
from softsortlib.networks.error_free import error_free_differences
from softsortlib.networks.swaps import lane_differences
from softsortlib.networks.layers_autograd import network_arguments, network_matrix, network_send, sorting_size
from softsortlib.losses.orders import permutation_bce, permutation_nll
from softsortlib.networks.operator import SortingNetwork, default_steepness
from softsortlib.core.operators import get_operator

KINDS, SIGMOIDS = ("bitonic", "odd_even"), ("logistic", "gaussian", "cauchy", "reciprocal", "optimal")
NAMES = {"logistic_phi": dict(sigmoid="logistic", art_lambda=0.25), "logistic": dict(sigmoid="logistic", art_lambda=0)}


def public(name): return NAMES.get(name, dict(sigmoid=name))


@pytest.mark.parametrize("kind", KINDS)
def test_no_lanes_need_no_network_and_less_than_none_is_an_error(kind):
    assert run_network(sorting_network(kind, 0), torch.ones(3, 0)).shape == (3, 0)
    with pytest.raises(ValueError, match="n must be at least 0"): sorting_network(kind, -1)


@pytest.mark.parametrize("sigmoid", ["cauchy", "cauchy_phi"])
@pytest.mark.parametrize("n", [7, 20, 50])
@pytest.mark.parametrize("kind", KINDS)
def test_a_temperature_that_nobody_sets_is_less_where_elements_pass_more_layers(kind, n, sigmoid, rng):
    "(C2.1): a share of the spread, less by 20 / n where there are n layers, and bent as the distances of the scores are."
    s = torch.randn(n, generator=rng, dtype=torch.float64)
    op = SortingNetwork(kind, sigmoid)
    width = float(plain_spread(s)[0]) * (20 / n if kind == "odd_even" else 1)
    tau = (op.softness * width) ** (0.75 if sigmoid == "cauchy_phi" else 1)
    assert_close(op(s).to_dense(), SortingNetwork(kind, sigmoid, tau=tau)(s).to_dense(), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("n", range(1, 17))
@pytest.mark.parametrize("kind", KINDS)
def test_every_sequence_of_zeros_and_ones_is_sorted(kind, n):
    x = ((torch.arange(2**n)[:, None] >> torch.arange(n)) & 1).to(torch.int8)
    y = run_network(sorting_network(kind, n), x)
    assert (y[:, 1:] >= y[:, :-1]).all() and torch.equal(y.sum(1), x.sum(1))


@pytest.mark.parametrize("kind", KINDS)
def test_no_lane_twice_in_a_layer(kind):
    for n in (2, 3, 17, 100):
        net = sorting_network(kind, n)
        assert (net.lo < net.hi).all() and len(net.lo) == net.ends[-1] == sorting_size(kind, n)
        for a, b in zip(net.ends, net.ends[1:]): assert len(set(torch.cat([net.lo[a:b], net.hi[a:b]]).tolist())) == 2 * (b - a)


CASES = json.loads((Path(__file__).parent / "diffsort_cases.json").read_text())["cases"]


@pytest.mark.parametrize("backend", [None, "torch"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c['kind']}-{c['distribution']}-{len(c['s'][0])}")
def test_recorded_cases_of_the_public_code(case, backend):
    s, w, u, values, P, grad = (torch.tensor(case[k], dtype=torch.float64) for k in ("s", "w", "u", "values", "P", "grad"))
    s.requires_grad_()
    ours = SortingNetwork(case["kind"], tau=0.25, backend=backend, **public(case["distribution"]))(s)
    assert_close(ours.to_dense().mT, P, rtol=1e-9, atol=1e-9)  # its rows are inputs
    assert_close(ours @ s, values, rtol=1e-9, atol=1e-9)
    assert_close(torch.autograd.grad((ours.to_dense().mT * w).sum() + ((ours @ s) * u).sum(), s)[0], grad, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("kind, n", [("bitonic", 2), ("bitonic", 16), ("bitonic", 32), ("odd_even", 2), ("odd_even", 7), ("odd_even", 16)])
@pytest.mark.parametrize("distribution", ["logistic_phi", *SIGMOIDS])
def test_public_implementation(kind, n, distribution, rng):
    diffsort = pytest.importorskip("diffsort", reason="the oracle diffsort is not installed")
    s = torch.randn(3, n, generator=rng, dtype=torch.float64).requires_grad_()
    w, u = torch.randn(3, n, n, generator=rng, dtype=torch.float64), torch.randn(3, n, generator=rng, dtype=torch.float64)
    y, Q = diffsort.DiffSortNet(kind, n, steepness=8.0, art_lambda=0.25, distribution=distribution)(s)
    P = SortingNetwork(kind, tau=0.125, **public(distribution))(s)
    assert_close(P.to_dense().mT, Q, rtol=1e-9, atol=1e-9); assert_close(P @ s, y, rtol=1e-9, atol=1e-9)
    ours, theirs = (torch.autograd.grad((D * w).sum() + (z * u).sum(), s)[0] for D, z in ((P.to_dense().mT, P @ s), (Q, y)))
    assert_close(ours, theirs, rtol=1e-7, atol=1e-8)


def everything(op, s, x, mask=None):
    "What a map does, and the gradients to scores, payload, tau and lambda."
    P = op(s, mask)
    rows = [s.shape[-1] - 1, 0]
    out = [P @ x, P.mT @ x, P[..., rows, :] @ x, P[..., rows, :].mT @ x[..., :2, :], P.to_dense(), P[..., rows, :].to_dense(), P.log_prob((s if mask is None else s.masked_fill(~mask, torch.inf)).detach().argsort()).exp()]
    inputs = [s, x, *op.parameters()]
    grads = torch.autograd.grad(sum((o * torch.linspace(0.5, 2, o.numel(), dtype=o.dtype).reshape(o.shape)).sum() for o in out), inputs)
    return [o.detach() for o in (*out, *grads)]


@pytest.mark.parametrize("dtype, tol", [(torch.float64, 1e-10), (torch.float32, 1e-4)])
@pytest.mark.parametrize("n", [2, 3, 7, 33, 65])
@pytest.mark.parametrize("kind", KINDS)
def test_fast_equals_plain(kind, n, dtype, tol, rng):
    for sigmoid, descending, d in (("cauchy", False, 1), ("logistic", True, 3), ("cauchy_phi", False, 40), ("gaussian", True, 1)):
        s, x = (torch.randn(2, n, *k, generator=rng, dtype=torch.float64).to(dtype).requires_grad_() for k in ((), (d,)))
        mask = None if descending else torch.arange(n) < torch.tensor([[n], [max(1, n - 2)]])
        results = []
        for backend in (None, "torch"):
            tau, lam = (torch.nn.Parameter(torch.tensor([a, b], dtype=dtype)) for a, b in ((0.3, 0.8), (0.25, 0.4)))
            op = SortingNetwork(kind, sigmoid, lam if sigmoid in ("logistic", "cauchy_phi") else 0.0, tau, descending, backend)
            results.append(everything(op, s, x, mask))
        for fast, plain in zip(*results): assert (fast - plain).norm() <= tol * (1e-3 + plain.norm()), (sigmoid, (fast - plain).norm(), plain.norm())


@pytest.mark.parametrize("tau", [1e-6, 1e-3, 1.0, 1e6])
@pytest.mark.parametrize("sigmoid", SIGMOIDS)
def test_extreme_temperatures_ties_and_offsets(sigmoid, tau, rng):
    for s in (torch.randn(9, generator=rng), torch.tensor([1.0, 0, 1, 1, 0, 2, 2]), 1000 + torch.rand(6, generator=rng), torch.zeros(5)):
        for kind in KINDS:
            values, grads = [], []
            for backend, dtype in ((None, torch.float32), ("torch", torch.float32), (None, torch.float64)):
                z = s.to(dtype).requires_grad_()
                P = SortingNetwork(kind, sigmoid, tau=tau, backend=backend)(z)
                out = P @ z
                values.append(P.to_dense().detach()); grads.append(torch.autograd.grad(out.square().sum() + P.log_prob(P.hard()).sum() * min(1, tau), z)[0])
                assert values[-1].isfinite().all() and grads[-1].isfinite().all() and is_doubly_stochastic(P, 1e-4)
            if len(set(s.tolist())) == len(s) and s.max() < 100:  # ties and offsets: rounding over tau is all that is left
                assert_close(values[0], values[1], rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_temperature_is_the_same_as_a_number_and_as_a_tensor(dtype, rng):
    "Also where a quarter of the largest number of the type times the temperature is beyond the type."
    s, net = torch.randn(8, generator=rng, dtype=dtype), sorting_network("bitonic", 8)
    for differences in (lane_differences, error_free_differences):
        for tau in (0.1, 100.0, 1e6):
            assert_close(differences(s, net, tau=tau), differences(s, net, tau=torch.tensor([tau], dtype=dtype)))


def test_log_probabilities_beyond_single_precision():
    s = torch.tensor([0.0, 1.0], requires_grad=True)
    log_prob = SortingNetwork("bitonic", "logistic", 0.0, tau=0.005)(s).log_prob(torch.tensor([1, 0]))
    assert_close(log_prob, torch.tensor([-200.0, -200.0]), rtol=1e-5, atol=0)
    log_prob.sum().backward()
    assert_close(s.grad, torch.tensor([400.0, -400.0]), rtol=1e-4, atol=0)
    far = SortingNetwork("bitonic", "logistic", 0.0, tau=1e-5)(s).log_prob(torch.tensor([1, 0]))
    assert far.isfinite().all() and (far < -700).all()


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_derivatives_twice(kind, rng):
    s = torch.randn(2, 4, generator=rng, dtype=torch.float64).requires_grad_()
    x = torch.randn(2, 4, 2, generator=rng, dtype=torch.float64).requires_grad_()
    tau, lam = (torch.tensor(a, dtype=torch.float64).requires_grad_() for a in (0.4, 0.3))
    def op(tau, lam, sigmoid): return SortingNetwork(kind, sigmoid, lam, tau)
    for f in (lambda s, x, tau, lam: op(tau, lam, "logistic")(s) @ x, lambda s, x, tau, lam: op(tau, lam, "cauchy_phi")(s).mT @ x[..., 0],
              lambda s, x, tau, lam: op(tau, lam, "logistic")(s).to_dense(), lambda s, x, tau, lam: op(tau, lam, "logistic")(s).log_prob(s.argsort())):
        torch.autograd.gradcheck(lambda s, x, tau, lam: f(s, x, tau, lam) + 0 * x.sum(), (s, x, tau, lam), atol=1e-5)
    for f in (lambda s: SortingNetwork(kind, tau=0.4)(s) @ s, lambda s: SortingNetwork(kind, tau=0.4)(s).to_dense()):
        torch.autograd.gradgradcheck(f, (s[:1].detach().requires_grad_(),), atol=1e-4)


def test_operators_keep_torch_s_contract(rng):
    size = torch.tensor([5, 4])
    s, x, v = (torch.randn(*shape, generator=rng).requires_grad_() for shape in ((2, 5), (2, 5, 3), (2, sorting_size("bitonic", 5))))
    tau, lam = torch.tensor([0.5, 1.0]).requires_grad_(), torch.tensor([0.2, 0.3]).requires_grad_()
    for op, args in (*((network_arguments, (s, tau, lam, size, "bitonic", "logistic", True, exact)) for exact in (False, True)), *((network_send, (v, x, size, "bitonic", "cauchy", False, exact)) for exact in (False, True)),
                     (network_matrix, (v, size, "bitonic", "cauchy", 5))):
        torch.library.opcheck(op.op, args, test_utils=("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"))


@pytest.mark.parametrize("kind", ["bitonic", "odd_even"])
@pytest.mark.parametrize("d", [1, 3])
def test_a_network_of_one_lane_sends_and_sends_back(kind, d, rng):
    v, x = torch.zeros(2, 0, requires_grad=True), torch.randn(2, 1, d, generator=rng).requires_grad_()
    for reverse in (False, True):
        y = network_send(v, x, torch.ones(2, dtype=torch.long), kind, "cauchy", reverse, False)
        assert_close(y, x, rtol=0, atol=0)
        gv, gx = torch.autograd.grad((y * 3).sum(), (v, x))
        assert gv.shape == (2, 0)
        assert_close(gx, torch.full_like(x, 3.0), rtol=0, atol=0)


@pytest.mark.parametrize("backend", [None, "torch"])
def test_compiles_and_transforms(backend, rng):
    s = torch.randn(3, 5, generator=rng)
    op = SortingNetwork("bitonic", tau=0.5, backend=backend)
    if backend is None:
        loss = lambda z: ((op(z) @ z).square().sum() + (op(z).to_dense() ** 2).sum())
        a, b = s.clone().requires_grad_(), s.clone().requires_grad_()
        torch.compile(loss, fullgraph=True, backend="aot_eager")(a).backward(); loss(b).backward()
        assert_close(a.grad, b.grad)
    assert_close(torch.vmap(lambda z: op(z) @ z)(s), op(s) @ s)
    assert_close(torch.func.jacrev(torch.func.grad(lambda z: (op(z) @ z).square().sum()))(s[0]),
                 torch.autograd.functional.hessian(lambda z: (op(z) @ z).square().sum(), s[0]), rtol=1e-4, atol=1e-4)


def test_autocast_and_half_types(rng):
    s, x = torch.randn(2, 6, generator=rng), torch.randn(2, 6, 2, generator=rng)
    op = SortingNetwork("odd_even", tau=0.5)
    with torch.autocast("cpu", dtype=torch.bfloat16): y = op(s) @ x
    assert_close(y, op(s) @ x)
    for dtype in (torch.float16, torch.bfloat16):
        assert (op(s.to(dtype)) @ x.to(dtype)).dtype == dtype
        assert_close((op(s.to(dtype)) @ x.to(dtype)).float(), op(s.to(dtype).float()) @ x.to(dtype).float(), rtol=2e-2, atol=2e-2)


def test_payload_with_more_batch_dimensions(rng):
    s, x = torch.randn(4, 5, generator=rng), torch.randn(3, 4, 5, 2, generator=rng)
    P = SortingNetwork(tau=0.4)(s)
    assert_close(P @ x, torch.stack([P @ y for y in x])); assert_close(P.mT @ x, torch.stack([P.mT @ y for y in x]))
    assert_close(SortingNetwork(tau=0.4)(s[0]) @ x, SortingNetwork(tau=0.4)(s[0]).to_dense() @ x)


@pytest.mark.parametrize("bad, error, says", [
    (dict(kind="bubble"), ValueError, "bubble"), (dict(sigmoid="relu"), ValueError, "relu"), (dict(sigmoid=3), ValueError, "sigmoid"),
    (dict(art_lambda=1.0), ValueError, "art_lambda"), (dict(art_lambda=-0.1), ValueError, "art_lambda"), (dict(art_lambda="x"), TypeError, "str"),
    (dict(art_lambda=torch.tensor(2.0)), ValueError, "2.0"), (dict(tau=0.0), ValueError, "tau"), (dict(backend="cuda"), ValueError, "backend")])
def test_errors_name_the_argument(bad, error, says):
    with pytest.raises(error, match=says): SortingNetwork(**bad)


def test_a_backend_stays_on_its_device():
    with pytest.raises(ValueError, match="triton.*cuda.*cpu"): SortingNetwork(backend="triton")(torch.ones(3))


@pytest.mark.parametrize("name", ["bitonic", "odd_even", "network"])
def test_names(name):
    assert isinstance(get_operator(name, tau=0.5), SortingNetwork) and get_operator(name).kind == ("bitonic" if name == "network" else name)


def test_losses_against_their_formulas(rng):
    s = torch.randn(3, 6, generator=rng, dtype=torch.float64)
    target = torch.stack([torch.randperm(6, generator=rng) for _ in range(3)])
    P = SortingNetwork(tau=0.4)(s)
    Q = torch.nn.functional.one_hot(target, 6).double()
    assert_close(permutation_bce(P, target), torch.nn.functional.binary_cross_entropy(P.to_dense(), Q))
    assert_close(permutation_nll(P, target), -(Q * P.to_dense().log()).sum() / 18)
    mask = torch.arange(6) < 4
    short = torch.stack([torch.randperm(4, generator=rng) for _ in range(3)])
    long = torch.cat([short, torch.tensor([[4, 5]]).expand(3, 2)], -1)
    for loss in (permutation_bce, permutation_nll):
        assert_close(loss(SortingNetwork(tau=0.4)(s, mask), long), loss(SortingNetwork(tau=0.4)(s[:, :4]), short))


@pytest.mark.parametrize("sigmoid", SIGMOIDS)
def test_losses_are_finite_for_sure_and_wrong(sigmoid):
    s = torch.tensor([3.0, 1.0, 2.0], requires_grad=True)
    for loss in (permutation_bce, permutation_nll):
        value = loss(SortingNetwork("odd_even", sigmoid, tau=1e-6)(s), torch.tensor([0, 1, 2]))
        assert value.isfinite() and value > 1 and torch.autograd.grad(value, s)[0].isfinite().all()


def test_paper_s_steepness():
    assert default_steepness("bitonic", 1024) == 110 and default_steepness("odd_even", 7) == 14
    with pytest.raises(ValueError, match="at least 2"): default_steepness("odd_even", 1)


def plain_error_free(s, kind, sigmoid, tau):
    "Error-free swaps one comparator at a time: the sorted values and the matrix, by detach alone (Kim et al. 2024, equations 9 to 12)."
    f = {"logistic": torch.sigmoid, "gaussian": lambda v: 0.5 + 0.5 * torch.erf(v / 2**0.5), "cauchy": lambda v: 0.5 + v.atan() / torch.pi,
         "reciprocal": lambda v: 0.5 + 0.5 * v / (2 + v.abs()), "optimal": lambda v: torch.where(v.abs() <= 0.25, v + 0.5, 0.5 + v.sign() * (0.5 - 1 / 16 / (v.abs() + 1e-10)))}[sigmoid]
    x, rows, net = list(s.unbind(-1)), list(torch.eye(len(s), dtype=s.dtype)), sorting_network(kind, len(s))
    for i, j in zip(net.lo.tolist(), net.hi.tolist()):
        alpha, hard = f((x[j] - x[i]) / tau), (x[j] >= x[i]).to(s.dtype)
        def both(a, b):
            soft = alpha * a + (1 - alpha) * b, (1 - alpha) * a + alpha * b
            return [z + (y - z).detach() for z, y in zip(soft, (hard * a + (1 - hard) * b, (1 - hard) * a + hard * b))]
        (x[i], x[j]), (rows[i], rows[j]) = both(x[i], x[j]), both(rows[i], rows[j])
    return torch.stack(x), torch.stack(rows)


@pytest.mark.parametrize("backend", [None, "torch"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sigmoid", SIGMOIDS)
def test_error_free_swaps_against_one_comparator_at_a_time(kind, sigmoid, backend, rng):
    "Values, matrix and gradients; the order of the comparators in a layer does not matter."
    for n in (2, 5, 8):
        s = torch.randn(n, generator=rng, dtype=torch.float64).requires_grad_()
        w, u = torch.randn(n, n, generator=rng, dtype=torch.float64), torch.randn(n, generator=rng, dtype=torch.float64)
        P = SortingNetwork(kind, sigmoid, 0.0, tau=0.3, backend=backend, swaps="error_free")(s)
        values, D = plain_error_free(s, kind, sigmoid, 0.3)
        assert_close(values, s.sort().values, rtol=0, atol=1e-12)
        assert torch.equal(P @ s, s.sort().values) and torch.equal(P.to_dense(), torch.eye(n).double()[s.argsort()])     # Prop N4.1
        assert_close(D, P.to_dense(), rtol=0, atol=1e-12)
        [ours], [theirs] = (torch.autograd.grad((A * w).sum() + (y * u).sum(), s) for A, y in ((P.to_dense(), P @ s), (D, values)))
        assert_close(ours, theirs, rtol=1e-8, atol=1e-10)


def test_error_free_swaps_fast_equals_plain(rng):
    "With padding, both directions, rows, payloads with more batch dimensions, a temperature and a strength that learn; and in single precision."
    s, x, mask = torch.randn(3, 9, generator=rng, dtype=torch.float64), torch.randn(2, 3, 9, 4, generator=rng, dtype=torch.float64), torch.arange(9) < torch.tensor([[9], [4], [7]])
    for dtype, tol in ((torch.float64, 1e-10), (torch.float32, 1e-4)):
        for descending, real in ((False, None), (True, mask)):
            found = []
            for backend in (None, "torch"):
                z, y, tau, lam = s.to(dtype).requires_grad_(), x.to(dtype).requires_grad_(), torch.nn.Parameter(torch.tensor([0.2, 0.5, 1.0], dtype=dtype)), torch.nn.Parameter(torch.tensor(0.3, dtype=dtype))
                P = SortingNetwork("bitonic", "cauchy_phi", lam, tau, descending, backend, "error_free")(z, real)
                out = [P @ y, P.mT @ y, P[..., [2, 0], :] @ y, P.to_dense(), P.soft().to_dense()]
                grads = torch.autograd.grad(sum((o * torch.linspace(0.5, 2, o.numel(), dtype=dtype).reshape(o.shape)).sum() for o in out), [z, y, tau, lam])
                found.append([o.detach() for o in (*out, *grads)])
            for fast, plain in zip(*found): assert_close(fast, plain, rtol=tol, atol=tol)


def test_error_free_swaps_are_exact_where_soft_ones_are_not(rng):
    "At a temperature that underflows, with ties, far apart; and a second derivative is refused."
    for scores in (torch.randn(50, generator=rng), torch.randn(50, generator=rng).round(), torch.tensor([1e30, -1e30, 0.0, 1e-30])):
        for tau in (1e-30, 1.0, 1e30):
            P = SortingNetwork(tau=tau, swaps="error_free")(scores)
            assert torch.equal(P @ scores, scores.sort().values) and torch.equal(P.mT @ (P @ scores), scores)
    s = torch.randn(6, generator=rng).requires_grad_()
    [g] = torch.autograd.grad((SortingNetwork(tau=0.5, swaps="error_free")(s) @ s).square().sum(), s, create_graph=True)
    with pytest.raises(NotImplementedError, match="first derivative only"): torch.autograd.grad(g.sum(), s)
    with pytest.raises(ValueError, match="swaps must be 'soft' or 'error_free', got 'hard'"): SortingNetwork(swaps="hard")


MEMORY = """
import re, torch
from softsortlib.networks.operator import SortingNetwork
torch.set_num_threads(2)
def status(key): return 1024 * int(re.search(key + r":\\s+(\\d+) kB", open("/proc/self/status").read())[1])
def extra(f):
    open("/proc/self/clear_refs", "w").write("5")  # forget the peak
    before = status("VmRSS"); f(); return status("VmHWM") - before
def run(n, dense):
    s, g = torch.randn(1, n).requires_grad_(), torch.randn(1, n, n if dense else 1)
    P = SortingNetwork(tau=0.1)(s)
    return extra(lambda: torch.autograd.grad(P.to_dense() if dense else P @ s[..., None], s, g))
assert extra(lambda: torch.ones(1 << 23)) > 30e6
run(64, True); run(64, False)
print(run({n}, {dense}) / {unit})
"""


@pytest.mark.parametrize("n, dense, unit, limit", [(1024, True, 4 * 1024**2, 8), (4096, False, 4 * 2048 * 78, 16)])
def test_memory(n, dense, unit, limit):
    "Dense: at most 8 matrices. Sorted values: a few numbers for each of the n / 2 x 78 comparators, where n x n would be 105 numbers for each."
    if not os.access("/proc/self/clear_refs", os.W_OK): pytest.skip("peak memory is read the Linux way")
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", MEMORY.format(n=n, dense=dense, unit=unit)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert 0 < float(done.stdout) <= limit, done.stdout
