"""On a real GPU: every operator against its own float64 result on the CPU, values and gradients, output by output. Run by `make gpu`.

Without a GPU the same tests rehearse: with SOFTSORTLIB_REHEARSE=1 and TRITON_INTERPRET=1 tensors stay on the CPU, the library
takes it for a GPU, and Triton's interpreter runs the kernels, on small sets in small chunks (test_rehearsal.py does it).
"""
import contextlib
import os

import pytest
import torch
from interpreted import ask_once
from torch.testing import assert_close

import softsortlib.engine.dispatch as dispatch
from softsortlib import LapSum, NeuralSort, Operator, Permutahedron, SinkhornSort, SoftSort, SortingNetwork, get_operator
from softsortlib import functional, losses, ranks
from softsortlib.core import get_rank_operator
from softsortlib.engine.level_sums import level_sums, level_sums_dense
from softsortlib.engine.scan import exp_scan, exp_scan_dense
from softsortlib.engine.sums import kernel_sums
from softsortlib.networks.swaps import SIGMOIDS
from softsortlib.ragged import offsets_of

REHEARSE = os.environ.get("SOFTSORTLIB_REHEARSE") == "1"
if REHEARSE: ask_once()
DEVICE = "cpu" if REHEARSE else "cuda"
pytestmark = [pytest.mark.cuda, pytest.mark.filterwarnings("ignore"),
              pytest.mark.skipif(not (REHEARSE or torch.cuda.is_available()), reason="no CUDA device here")]
real_gpu = pytest.mark.skipif(REHEARSE, reason="the interpreter has none of this")
EDGES = [1, 8, 9] if REHEARSE else [1, 5, 64, 1000, 1024, 1025, 2048, 5000]      # a chunk has 8, or 1024 elements
FEW = [9] if REHEARSE else [64, 1025]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    "In a rehearsal, chunks of 8, so that a few numbers make several."
    if not REHEARSE: return
    import softsortlib.engine.mean_triton as mean
    import softsortlib.engine.scan_triton as scan
    import softsortlib.ranks.pooling_triton as pooling
    def cut(n, d, most=None): return 8, 2 if d > 1 else 1, -(-n // 8)
    for module in (scan, mean): monkeypatch.setattr(module, "cut", cut)
    monkeypatch.setattr(pooling, "CHUNK", 4)
    import softsortlib.rowwise.softsort as softsort
    monkeypatch.setattr(softsort, "_SMALL", 0)         # where the plain formula would do


@contextlib.contextmanager
def there():
    "Work as on the GPU."
    if not REHEARSE:
        yield
        return
    dispatch.HOME["cpu"] = "triton"
    try: yield
    finally: dispatch.HOME["cpu"] = "numba"


def compared(f, inputs, dtype=torch.float32, tolerance=None):
    "f of the inputs, and each gradient of each output by itself: on the GPU in `dtype`, on the CPU in double precision."
    tolerance = tolerance or (1e-9 if dtype == torch.float64 else 2e-4)
    def run(device, dtype):
        args = [a.to(device, dtype if a.is_floating_point() else a.dtype).requires_grad_(a.is_floating_point()) for a in inputs]
        outs = f(*args)
        wanted = [a for a in args if a.requires_grad]
        found = []
        for k, out in enumerate(outs):
            G = torch.linspace(-1, 1, max(1, out.numel()), dtype=torch.float64)[:out.numel()].view(out.shape).to(device, out.dtype)
            found.append((f"output {k}", out))
            for j, g in enumerate(torch.autograd.grad(out, wanted, G, retain_graph=True, allow_unused=True)):
                if g is not None: found.append((f"gradient of output {k} to input {j}", g))
        return [(name, a.detach().cpu().double()) for name, a in found]
    with there(): fast = run(DEVICE, dtype)
    for (name, a), (_, b), (_, own) in zip(fast, run("cpu", torch.float64), run("cpu", dtype)):
        assert (a - b).norm() <= max(tolerance * (1e-2 + b.norm()), 2 * (own - b).norm()), (name, a, b)      # or twice what rounding does on the CPU


def draw(*shape, seed=0): return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).float().double()


TAU = {"neuralsort": 20.0}
SLOW = {"sinkhorn", "stochastic", "perturbed"}
NAMES = sorted(name for name in Operator.names if name not in SLOW)


@pytest.mark.parametrize("n", EDGES)
@pytest.mark.parametrize("name", NAMES)
def test_products(name, n):
    if REHEARSE and n == 8 and name not in ("softsort", "lapsum"): pytest.skip("has no edge there")
    op = get_operator(name, tau=TAU.get(name, 0.3), descending=True)
    def f(s, x): return op(s) @ x, op(s).mT @ x
    compared(f, (draw(2, n), draw(2, n, 1, seed=1)))


@pytest.mark.parametrize("n", FEW)
@pytest.mark.parametrize("name", NAMES)
def test_matrix_likelihood_rows_and_the_hard_order(name, n):
    op, s = get_operator(name, tau=TAU.get(name, 0.3), descending=True), draw(2, n)
    target = s.argsort(-1, descending=True)
    def f(s): return op(s).to_dense(), op(s).log_prob(target.to(s.device)), op(s)[..., :3, :] @ s
    compared(f, (s,))
    with there(): hard = op(s.to(DEVICE, torch.float32)).hard().cpu()
    assert torch.equal(hard, target)


@pytest.mark.parametrize("n", FEW)
@pytest.mark.parametrize("name", NAMES)
def test_masks_and_ties(name, n):
    op, s = get_operator(name, tau=TAU.get(name, 0.3)), draw(2, n)
    s[0, : n // 2] = 0.25
    mask = torch.rand(2, n, generator=torch.Generator().manual_seed(2)) < 0.7
    def f(s, x): return (op(s, mask.to(s.device)) @ x,)
    compared(f, (s, draw(2, n, 1, seed=1)))


@pytest.mark.parametrize("name", ["softsort", "neuralsort"])
def test_the_likelihood_of_masked_sets_and_a_learned_temperature(name):
    op, n = get_operator(name), FEW[-1]
    mask = torch.rand(2, n, generator=torch.Generator().manual_seed(2)) < 0.7
    s = draw(2, n)
    target = s.masked_fill(~mask, float("inf")).argsort(-1)
    def f(s, tau):
        op.tau = tau
        y = op(s, mask.to(s.device)).log_prob(target.to(s.device))
        return (y.masked_fill(~y.isfinite(), 0),)
    compared(f, (s, torch.tensor([1.0, 3.0], dtype=torch.float64) * TAU.get(name, 0.3)), tolerance=1e-3)


@pytest.mark.parametrize("n", FEW)
def test_the_soft_top_k_learns_its_temperature_and_its_size(n):
    from softsortlib.ranks.laplace import lapsum_topk
    def f(s, tau, k): return (lapsum_topk(s, k, tau),)
    compared(f, (draw(2, n), torch.tensor([0.3, 1.0], dtype=torch.float64), torch.tensor([1.5, 3.0], dtype=torch.float64)), tolerance=1e-3)


@pytest.mark.parametrize("method", ["sinkhorn", "sparse", "threshold", "simple", "lapsum"])
@pytest.mark.parametrize("n", FEW)
def test_masks_of_the_top_k(method, n):
    mask = torch.rand(2, n, generator=torch.Generator().manual_seed(2)) < 0.8
    def f(s, tau): return functional.soft_topk_mask(s, 3, method=method, tau=tau), functional.soft_topk_mask(s, 3, method=method, tau=tau, mask=mask.to(s.device))
    compared(f, (draw(2, n), torch.tensor([0.3, 1.0], dtype=torch.float64)), tolerance=1e-3)


@pytest.mark.parametrize("power", [1, 2])
def test_sinkhorn_in_tiles(power):
    "A fixed number of rounds, for which nothing is asked of the device."
    op, n = SinkhornSort(0.5, power=power, iterations=5), FEW[0]
    def f(s, x):
        P = op(s)
        return P @ x, P.mT @ x
    compared(f, (draw(2, n), draw(2, n, 3, seed=1)), tolerance=2e-3)


@pytest.mark.parametrize("name", NAMES)
def test_a_learned_temperature(name):
    op, n = get_operator(name), FEW[0]
    def f(s, x, tau):
        op.tau = tau
        return (op(s) @ x,)
    compared(f, (draw(2, n), draw(2, n, 1, seed=1), torch.tensor([1.0, 3.0], dtype=torch.float64) * TAU.get(name, 0.3)), tolerance=1e-3)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_dtypes(name, dtype):
    if REHEARSE and dtype == torch.float16: pytest.skip("as bfloat16")
    op, n = get_operator(name, tau=TAU.get(name, 0.3)), FEW[0]
    x = draw(2, 1, n, seed=1).mT                               # not contiguous
    s = draw(2, n).to(dtype).double()
    with there(): y = op(s.to(DEVICE, dtype)) @ x.to(DEVICE, dtype)
    assert y.dtype == dtype
    exact = op(s) @ x.to(dtype).double()
    assert (y.cpu().double() - exact).norm() <= {torch.float64: 1e-10, torch.bfloat16: 3e-2, torch.float16: 5e-3}[dtype] * exact.norm()


@pytest.mark.parametrize("name", NAMES)
def test_nan_stays_in_its_row(name):
    op, s = get_operator(name, tau=TAU.get(name, 0.3)), draw(2, FEW[0]).float()
    s[1, 3] = float("nan")
    with there(): y = op(s.to(DEVICE)) @ s.to(DEVICE)
    assert y[0].isfinite().all() and y[1].isnan().any()


@pytest.mark.parametrize("n", FEW)
@pytest.mark.parametrize("name", ["sigmoid", "gaussian", "laplace", "permutahedron"])
def test_ranks(name, n, monkeypatch):
    monkeypatch.setattr(ranks.laplace, "few_pairs", lambda s: False)
    op = get_rank_operator(name, tau=0.3)
    mask = torch.rand(2, n, generator=torch.Generator().manual_seed(2)) < 0.7
    def f(s): return op(s), op(s, mask.to(s.device))
    compared(f, (draw(2, n),))


@pytest.mark.parametrize("regularization", ["l2", "kl"])
@pytest.mark.parametrize("rows", ["random", "rising", "falling", "tied"])
def test_pooling(regularization, rows):
    n = 13 if REHEARSE else 3000
    s = {"random": draw(3, n), "rising": torch.arange(3.0 * n, dtype=torch.float64).view(3, n), "falling": -torch.arange(3.0 * n, dtype=torch.float64).view(3, n),
         "tied": torch.zeros(3, n, dtype=torch.float64)}[rows]
    op = Permutahedron(tau=2.0, regularization=regularization)
    def f(s): return op(s), op.sort(s)
    compared(f, (s,))


@pytest.mark.parametrize("mode", ["even", "odd", "strict"])
@pytest.mark.parametrize("n", EDGES[:7])
def test_scan(mode, n):
    s = torch.randint(max(1, n // 2), (2, n), generator=torch.Generator().manual_seed(0)).double().sort(-1).values / n
    x, tau = draw(2, n, 3), torch.tensor([0.05, 1.0], dtype=torch.float64)
    with there(): y = exp_scan(s.to(DEVICE), x.to(DEVICE), tau.to(DEVICE), mode)
    assert_close(y.cpu(), exp_scan_dense(s, x, tau, mode), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("law, m", [("logistic", -1), ("logistic", 0), ("logistic", 3), ("normal", -1), ("normal", 0), ("normal", 4)])
def test_pair_sums(law, m):
    n, k = (7, 70) if REHEARSE else (1000, 3000)
    x, t, w, tau = draw(2, n), draw(2, k, seed=1), draw(2, k, 3, seed=2), torch.tensor([0.2, 2.0], dtype=torch.float64)
    with there(): y = kernel_sums(*(a.to(DEVICE) for a in (x, t, w, tau)), law, m)
    exact = kernel_sums(x, t, w, tau, law, m, backend="torch")
    assert_close(y.cpu(), exact, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("law, m", [("logistic", -1), ("logistic", 1), ("normal", 0)])
def test_sums_of_levels(law, m, across):
    n = 70 if REHEARSE else 1000
    x, w, tau = draw(2, n), draw(2, n, 3, seed=2), torch.tensor([0.2, 2.0], dtype=torch.float64)
    levels = torch.randint(4, (2, n), generator=torch.Generator().manual_seed(3))
    with there(): y = level_sums(*(a.to(DEVICE) for a in (x, levels, w, tau, x.argsort())), law, m, across)
    assert_close(y.cpu(), level_sums_dense(x, levels, w, tau, law, m, across), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", ["logistic", "sigmoid"])
def test_kendall(kind):
    "More scores than pairs are made of one by one; grades are tied."
    n = 300 if REHEARSE else 3000
    y, mask = draw(4, n, seed=1).round(), torch.rand(4, n, generator=torch.Generator().manual_seed(2)) < 0.9
    def f(s):
        on = y.to(s), mask.to(s.device)
        return losses.kendall_loss(s, *on, tau=0.3, kind=kind), losses.weighted_kendall_loss(s, *on, tau=0.3, kind=kind)
    compared(f, (draw(4, n),))


@pytest.mark.parametrize("sigmoid", sorted(SIGMOIDS))
@pytest.mark.parametrize("kind", ["bitonic", "odd_even"])
def test_sigmoids_of_a_network(kind, sigmoid):
    n, op = 6 if REHEARSE else 40, SortingNetwork(kind, sigmoid, tau=0.3)
    def f(s, x): return (op(s) @ x,)
    for dtype in (torch.float32, torch.float64): compared(f, (draw(2, n), draw(2, n, 1, seed=1)), dtype)


@pytest.mark.parametrize("kind", ["bitonic", "odd_even"])
def test_error_free_swaps(kind):
    op, n = SortingNetwork(kind, tau=0.3, swaps="error_free"), FEW[0]
    def f(s, x): return op(s) @ x, op(s).mT @ x, op(s).to_dense()
    compared(f, (draw(2, n), draw(2, n, 1, seed=1)))


@pytest.mark.parametrize("n", [10] if REHEARSE else [3000])
def test_networks_of_any_size(n):
    op = SortingNetwork(tau=0.3)
    def f(s, x): return (op(s) @ x,)
    compared(f, (draw(1, n), draw(1, n, 40, seed=1)))


def test_quantiles():
    s, mask = draw(2, FEW[0]), torch.rand(2, FEW[0], generator=torch.Generator().manual_seed(2)) < 0.7
    def f(s): return functional.soft_quantile(s, 0.3, tau=0.3), functional.soft_median(s, tau=0.3, mask=mask.to(s.device))
    compared(f, (s,))


def test_many_columns():
    def f(s, x): return (SoftSort(0.3)(s) @ x,)
    compared(f, (draw(2, FEW[0]), draw(2, FEW[0], 5 if REHEARSE else 37, seed=1)))


LISTS = {"sort": functional.soft_sort, **{f"rank-{m}": lambda s, m=m, **more: functional.soft_rank(s, method=m, **more) for m in ("softsort", "laplace", "sigmoid")}}


@pytest.mark.parametrize("name", LISTS)
def test_lists(name):
    "Lists end to end of all lengths; the same with ties, with a temperature for each that learns, and with a list that is no number."
    lengths = [3, 0, 1, 9, 2] if REHEARSE else [3, 0, 1, 64, 65, 1, 0, 1023, 1024, 5000, 2]
    offsets, s = offsets_of(lengths), draw(2, sum(lengths))
    s[1] = s[1].round(decimals=1)
    tau = torch.rand(len(lengths), generator=torch.Generator().manual_seed(3), dtype=torch.float64).add(0.3)
    def f(s, tau): return (LISTS[name](s, tau=tau, offsets=offsets.to(s.device)),)
    for dtype in (torch.float32, torch.float64): compared(f, (s, tau), dtype)
    s = s.detach().index_fill(1, torch.tensor(2), float("nan"))
    with there(): y = LISTS[name](s.to(DEVICE), tau=0.3, offsets=offsets.to(DEVICE)).cpu()
    assert torch.equal(y.isnan(), (torch.arange(s.shape[1]) < 3).expand(s.shape))


@pytest.mark.parametrize("n", EDGES)
def test_balanced_losses(n):
    "Masked, with ties, and one temperature a list that learns; above 1,024 scores by the scan."
    y = torch.randint(0, 4, (2, n), generator=torch.Generator().manual_seed(4))
    mask, s = torch.rand(2, n, generator=torch.Generator().manual_seed(2)) < 0.7, draw(2, n)
    s[0, : n // 2] = 0.25
    mask[:, 0] = True
    def f(s, tau): return tuple(losses.neural_ndcg_loss(s, y.to(s.device), mask.to(s.device), tau=tau, iterations=i, reduction="none") for i in (1, 3 if REHEARSE else 20))
    compared(f, (s, torch.tensor([0.3, 1.0], dtype=torch.float64)), tolerance=1e-3)


@pytest.mark.parametrize("loss", [losses.approx_ndcg_loss, losses.listnet_loss, losses.listmle_loss], ids=lambda loss: loss.__name__)
def test_losses_of_lists(loss):
    offsets = offsets_of([3, 0, 1, 9, 2] if REHEARSE else [3, 0, 1, 300, 3000, 2])
    y = torch.randint(0, 4, (int(offsets[-1]),), generator=torch.Generator().manual_seed(4))
    def f(s): return (loss(s, y.to(s.device), offsets=offsets.to(s.device), tau=0.3, reduction="none"),)
    compared(f, (draw(len(y)),))


@real_gpu
def test_a_graph_captures_lists():
    "Nothing is asked of the device."
    s, offsets = torch.randn(5000, device="cuda"), offsets_of([10] * 499 + [10]).cuda()
    for f in LISTS.values():
        for _ in range(3): f(s, tau=0.3, offsets=offsets)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph): captured = f(s, tau=0.3, offsets=offsets)
        s.copy_(s.flip(-1))
        graph.replay()
        assert_close(captured, f(s, tau=0.3, offsets=offsets))


@real_gpu
def test_a_long_list_beside_many_short_ones():
    "A million items in a hundred thousand lists, the longest of 20,000."
    offsets = offsets_of([20_000] + [9] * 50_000 + [10] * 53_000)
    s = torch.randn(int(offsets[-1]), generator=torch.Generator().manual_seed(0))
    for f in LISTS.values():
        exact = f(s.double(), tau=0.3, offsets=offsets)
        assert_close(f(s.cuda(), tau=0.3, offsets=offsets.cuda()).cpu().double(), exact, rtol=1e-5, atol=2e-7 * float(exact.abs().max()))      # sums of 20,000 in single precision


@real_gpu
@pytest.mark.parametrize("op", [SoftSort(0.3), LapSum(0.3), NeuralSort(20.0)], ids=repr)
def test_beyond_the_grids_second_axis(op):
    s, x = torch.rand(70_000, 9, device="cuda"), torch.rand(1, 65, 70_000, device="cuda")
    assert (op(s) @ s).isfinite().all()
    assert (op(x[..., 0]) @ x).isfinite().all()


@real_gpu
@pytest.mark.parametrize("n", [10_000, 1_000_000])
def test_a_million_on_the_gpu(n):
    s = torch.rand(n, generator=torch.Generator().manual_seed(0))
    op = get_operator("softsort", tau=0.01, descending=True)
    a, b = ((op(z) @ z).cpu().double() for z in (s.cuda(), s.double()))
    assert_close(a, b, rtol=1e-5, atol=1e-6)


@real_gpu
@pytest.mark.parametrize("op", [SoftSort(0.3), LapSum(0.3), NeuralSort(20.0), SortingNetwork(tau=0.3)], ids=repr)
def test_a_graph_captures_it(op):
    s = torch.randn(2, 200, device="cuda")
    for _ in range(3): y = op(s) @ s
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph): captured = op(s) @ s
    s.copy_(s.flip(-1))
    graph.replay()
    assert_close(captured, op(s) @ s)


@real_gpu
@pytest.mark.parametrize("op", [SoftSort(0.3), NeuralSort(20.0)], ids=repr)
def test_it_compiles(op):
    s = torch.randn(2, 200, device="cuda")
    assert_close(torch.compile(lambda s: op(s) @ s, fullgraph=True)(s), op(s) @ s)


@real_gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is one GPU")
@pytest.mark.parametrize("name", NAMES)
def test_a_second_device(name):
    s, op = torch.randn(2, 200), get_operator(name, tau=TAU.get(name, 0.3))
    assert_close((op(s.to("cuda:1")) @ s.to("cuda:1")).cpu(), op(s.cuda()).__matmul__(s.cuda()).cpu())
