"""Write tests/peers/*.npz: what other libraries, and the code of the papers' authors, give for small inputs.

    python tests/peers/record_peers.py [torchsort ...]

Run it where they are installed (`make bench-peers` installs what the package index serves: torchsort, diffsort, difftopk,
softtorch, POT, ott-jax, rax). fast_soft_sort, lapsum, allRank and the listings of SoftSort and NeuralSort are on no index, or not with the
versions that go together; have their authors' repositories on PYTHONPATH. A peer that cannot be imported keeps its file, and is named.

A file holds groups of cases: each row of a batch is one. `<i>/s` are the scores, `<i>/out` what came out, `<i>/grad` the gradient
of `(out * cotangent(out)).sum()` to the scores; `groups` is a JSON list that says of each group what was called
and how. Nothing in it is pickled.
"""
import importlib.metadata
import json
import sys
from itertools import product
from pathlib import Path

import numpy as np
import torch

FOLDER = Path(__file__).resolve().parent
ROWS = 12


def cotangent(shape):
    "The weights against which gradients are recorded: no two alike, of both signs."
    return torch.arange(int(np.prod(shape)), dtype=torch.float64).add(1).cos().reshape(shape)


def packed(a):
    "Doubles to nine digits and a half: bits beyond are zero, which compresses."
    return (a.view(np.uint64) + np.uint64(1 << 20) & ~np.uint64((1 << 21) - 1)).view(np.float64) if a.dtype == np.float64 else a


class Recording:
    "The groups of one peer."
    def __init__(self, seed):
        self.rng = torch.Generator().manual_seed(seed)
        self.groups, self.arrays = [], {}

    def scores(self, n, rows=ROWS):
        "Multiples of 2^-18, exact in single precision and without ties, at which peers choose subgradients of their own; the last row is of large spread."
        s = torch.randn(rows, n, generator=self.rng, dtype=torch.float64).mul(1 << 18).round().div(1 << 18)
        s[-1] *= 8
        return s

    def add(self, call, options, f, s, gradient=True, **remarks):
        "Call f at s, and keep what it gives."
        leaf = s.clone().requires_grad_(gradient)
        out = f(leaf)
        arrays = dict(s=s.float(), out=out.detach().double())
        if gradient: arrays["grad"] = torch.autograd.grad((out.double() * cotangent(out.shape)).sum(), leaf)[0].double()
        i = len(self.groups)
        if gradient and not arrays["grad"].isfinite().all():
            arrays.pop("grad")
            remarks["no_gradient"] = "some of its gradients are no numbers"
        self.arrays.update({f"{i}/{name}": packed(a.contiguous().numpy()) for name, a in arrays.items()})
        self.groups.append(dict(call=call, rows=len(s), **options, **remarks))

    def save(self, name, version):
        text = np.array(json.dumps(dict(peer=name, version=version, groups=self.groups)))
        np.savez_compressed(FOLDER / f"{name}.npz", groups=text, **self.arrays)
        size = (FOLDER / f"{name}.npz").stat().st_size
        print(f"{name} {version}: {sum(g['rows'] for g in self.groups)} cases in {len(self.groups)} groups, {size // 1000} kB")


def alone(f):
    "A function of one set as a function of a batch, with values only: numpy in, numpy out."
    def batch(s): return torch.stack([torch.as_tensor(np.array(f(row.detach().numpy())), dtype=torch.float64) for row in s])
    return batch


def torchsort(r):
    import torchsort as peer
    for call, kind, tau, n in product(("rank", "sort"), ("l2", "kl"), (0.01, 0.1, 1.0, 10.0), (1, 2, 5, 9)):
        f = {"rank": peer.soft_rank, "sort": peer.soft_sort}[call]
        r.add(call, dict(kind=kind, tau=tau), lambda s: f(s, regularization=kind, regularization_strength=tau), r.scores(n))


def fast_soft_sort(r):
    from fast_soft_sort import numpy_ops as peer
    for call, kind, tau, n, down in product(("rank", "sort"), ("l2", "kl"), (0.1, 1.0, 5.0), (2, 4, 7), (False, True)):
        make = {"rank": peer.SoftRank, "sort": peer.SoftSort}[call]
        class Peer(torch.autograd.Function):
            @staticmethod
            def forward(ctx, s):
                ctx.ops = [make(row.numpy(), "DESCENDING" if down else "ASCENDING", tau, kind) for row in s]
                return torch.stack([torch.from_numpy(np.array(op.compute())) for op in ctx.ops])

            @staticmethod
            def backward(ctx, g):
                return torch.stack([torch.from_numpy(np.array(op.vjp(v.numpy()))) for op, v in zip(ctx.ops, g)])
        wrong = call == "sort" and kind == "kl"
        r.add(call, dict(kind=kind, tau=tau, descending=down), Peer.apply, r.scores(n), gradient=not wrong)
        if wrong and tau == 5.0: r.add(call, dict(kind=kind, tau=tau, descending=down), Peer.apply, r.scores(n), wrong="its gradient of a sort under KL leaves the target out, whose order is the scores'")


def diffsort(r):
    import diffsort as peer
    torch.set_default_dtype(torch.float64)
    sizes = [("bitonic", 2), ("bitonic", 4), ("odd_even", 3), ("odd_even", 5)]
    for (kind, n), sigmoid, steepness in product(sizes, ("logistic", "logistic_phi", "gaussian", "cauchy", "reciprocal", "optimal"), (2.0, 16.0)):
        net = peer.DiffSortNet(kind, n, steepness=steepness, art_lambda=0.25, distribution=sigmoid)
        for at, call in enumerate(("network_sort", "network_matrix")):
            r.add(call, dict(kind=kind, sigmoid=sigmoid, tau=1 / steepness), lambda s: net(s)[at], r.scores(n, rows=6))
    torch.set_default_dtype(torch.float32)


def difftopk(r):
    import difftopk as peer
    for power, tau, n in product((1.0, 2.0), (0.1, 1.0), (2, 5)):
        r.add("softsort_matrix", dict(power=power, tau=tau, descending=True), peer.SoftSort(tau, pow=power), r.scores(n))
    for tau, n in product((1.0, 4.0), (2, 4)):
        def up(s): return peer.NeuralSort(tau)(s.float()).mT
        r.add("neuralsort_matrix", dict(tau=tau), up, r.scores(n), tolerance=1e-4)
    for shares, tau, n in product(([0.5, 0.5], [0.2, 0.2, 0.6]), (2.0, 5.0), (4, 6)):
        loss = peer.TopKCrossEntropyLoss("softsort", 1 / tau, shares, n, top1_mode="sort")
        def each(s): return torch.stack([loss(row[None], torch.tensor([i % n])) for i, row in enumerate(s)])
        r.add("topk_loss", dict(k=shares, tau=tau), each, r.scores(n)[:-1], tolerance=1e-5)
        if tau > 2: continue
        def far(s): return each(100 * s)
        r.add("topk_loss", dict(k=shares, tau=tau, scale=100), far, r.scores(n),
              wrong="the chance is mixed with a floor of 1e-7, so the loss ends at 16.1 and its gradient at nothing")
    for tau, n in product((0.1, 0.5), (4,)):
        for kind, sigmoid in product(("bitonic", "odd_even"), ("cauchy", "logistic")):
            net = peer.DiffTopkNet(kind, n, n, steepness=1 / tau, art_lambda=0.25, distribution=sigmoid)
            def matrix(s): return net(s.float())[1]
            r.add("network_matrix", dict(kind=kind, sigmoid=sigmoid, tau=tau), matrix, r.scores(n), tolerance=1e-4)


def lapsum(r):
    from lapsum.rank import soft_rank
    from lapsum.topk import soft_topk
    for tau, n in product((0.05, 0.5, 4.0), (2, 5, 9)):
        r.add("lapsum_rank", dict(tau=tau), lambda s: soft_rank(s.detach(), tau), r.scores(n).sort(-1).values, gradient=False, tolerance=1e-6)
    for tau, n, up in product((0.05, 0.5, 4.0), (3, 5, 9), (True, False)):
        for k in (1, n - 1):
            def top(s): return soft_topk(s, torch.full((len(s), 1), float(k), dtype=s.dtype), torch.tensor([tau], dtype=s.dtype, requires_grad=True), 1, up)
            r.add("lapsum_topk", dict(tau=tau, k=k, largest=up), top, r.scores(n), tolerance=1e-5)


def pot(r):
    import ot as peer
    for tau, power, n, m in product((0.3, 1.0), (1, 2), (3, 6), (2, 5)):
        a, b = (np.linspace(1, 2, k) / np.linspace(1, 2, k).sum() for k in (n, m))
        y = np.linspace(-1, 1, m)
        def plan(x): return peer.bregman.sinkhorn_log(a, b, np.abs(x[:, None] - y) ** power, tau, numItermax=5000, stopThr=1e-11)
        r.add("plan", dict(tau=tau, power=power, a=a.tolist(), b=b.tolist(), y=y.tolist()), alone(plan), r.scores(n)[:-1], gradient=False, tolerance=1e-5)
    for n, p in product((3, 8), (1, 2)):
        def cost(x): return [peer.emd2_1d(x, np.linspace(-1, 1, n), metric="minkowski", p=p)]
        r.add("cost", dict(power=p), alone(cost), r.scores(n), gradient=False, tolerance=1e-9)


def ott(r):
    import jax
    jax.config.update("jax_enable_x64", True)
    from ott.tools import soft_sort as peer
    def identity(x): return x
    for call, tau, n in product(("transport_sort", "transport_rank"), (0.1, 1.0), (3, 6)):
        f = {"transport_sort": peer.sort, "transport_rank": peer.ranks}[call]
        def ours(s): return torch.from_numpy(np.array(f(jax.numpy.asarray(s.numpy()), axis=-1, epsilon=tau, squashing_fun=identity, threshold=1e-7, max_iterations=5000)))
        r.add(call, dict(tau=tau), ours, r.scores(n, rows=14)[:-1], gradient=False, tolerance=1e-4)


def softtorch(r):
    import softtorch as peer
    torch.set_default_dtype(torch.float64)
    for tau, n, down in product((0.1, 1.0), (2, 4, 8), (False, True)):
        at = dict(tau=tau, descending=down)
        def index(method): return lambda s: peer.argsort(s, softness=tau, method=method, descending=down, standardize=False)
        def rank(method): return lambda s: peer.rank(s, dim=-1, softness=tau, method=method, descending=down, standardize=False)
        r.add("softsort_matrix", at, index("softsort"), r.scores(n, rows=6))
        r.add("transport_matrix", at, index("ot"), r.scores(n, rows=6)[:-1], gradient=False, tolerance=1e-3)
        if n > 2: r.add("transport_matrix", at, index("ot"), r.scores(n, rows=6)[:-1], tolerance=1e-3, wrong="the implicit gradient of its transport is not the derivative of its values")
        if n == 8: r.add("network_matrix", dict(kind="bitonic", sigmoid="logistic", **at), lambda s: index("sorting_network")(s).mT, r.scores(n, rows=6))
        r.add("softsort_ranks", at, rank("softsort"), r.scores(n, rows=6))
    torch.set_default_dtype(torch.float32)


def listings(r):
    from neuralsort_cpu_or_gpu import NeuralSort
    from softsort import SoftSort
    for power, tau, n in product((1.0, 2.0), (0.03, 0.3, 3.0), (2, 5, 8)):
        r.add("softsort_matrix", dict(power=power, tau=tau, descending=True), SoftSort(tau, pow=power), r.scores(n))
    for tau, n in product((0.3, 1.0, 10.0), (2, 5, 8)):
        def matrix(s): return NeuralSort(tau, device="cpu")(s.float())
        r.add("neuralsort_matrix", dict(tau=tau, descending=True), matrix, r.scores(n), tolerance=2e-4)


def grades(s, most=4):
    "A grade for each score, from 0 to most and neither all equal nor in the order of the scores; tests/test_peers.py takes them from here."
    b, n = s.shape
    return (torch.arange(b)[:, None] * 7 + torch.arange(n) * 3 + torch.arange(n) ** 2 * (torch.arange(b)[:, None] + 1)) % (most + 1)


def rax(r):
    import jax
    jax.config.update("jax_enable_x64", True)
    import rax as peer
    class Peer(torch.autograd.Function):
        "A loss of Rax and its gradient."
        @staticmethod
        def forward(ctx, s, loss):
            value, ctx.pull = jax.vjp(jax.vmap(loss), jax.numpy.asarray(s.numpy()), jax.numpy.asarray(grades(s).double().numpy()))
            ctx.shape = s.shape
            return torch.from_numpy(np.array(value))

        @staticmethod
        def backward(ctx, g): return torch.from_numpy(np.array(ctx.pull(jax.numpy.asarray(g.numpy()))[0])), None
    def add(call, options, loss, n, tolerance=1e-6, **remarks): r.add(call, dict(options), lambda s: Peer.apply(s, loss), r.scores(n), tolerance=tolerance, **remarks)
    for n in (3, 6):
        add("softmax_loss", {}, lambda s, y: peer.softmax_loss(s, y), n)
        add("pairwise_logistic", {}, lambda s, y: peer.pairwise_logistic_loss(s, y), n)
        for soft, tau in ((0.1, 0.1), (1.0, 1.0)):
            t12n = lambda metric: peer.approx_t12n(metric, soft)                              # noqa: E731
            add("approx_ndcg", dict(tau=tau), lambda s, y: 1 + t12n(peer.ndcg_metric)(s, y), n)


def allrank(r):
    from allrank.models import losses as peer
    def each(loss, most=4):
        def batch(s): return torch.stack([loss(row[None], y[None].to(s.dtype)) for row, y in zip(s, grades(s, most))])
        return batch
    for n in (3, 6):
        r.add("listnet", {}, each(peer.listNet), r.scores(n)[:-1], tolerance=1e-6)           # its floor of 1e-10 is felt in the last row
        for theirs, weights in (("ndcgLoss1", "ndcg1"), ("ndcgLoss2", "ndcg2"), ("lambdaRank", "lambdarank"), ("ndcgLoss2PP", "ndcg2++")):
            for sigma in (1.0, 4.0):
                def loss(s, y): return peer.lambdaLoss(s, y, weighing_scheme=f"{theirs}_scheme", sigma=sigma)
                r.add("lambda", dict(weights=weights, tau=1 / sigma), each(loss), r.scores(n)[:-1] / 4, tolerance=1e-5)
        def untied(s): return torch.stack([peer.listMLE(row[None], y[None].to(s.dtype)) for row, y in zip(s, (s * 5).sin().argsort(-1))])
        r.add("listmle", {}, untied, r.scores(n)[:-1], tolerance=1e-6)


PEERS = dict(torchsort=torchsort, fast_soft_sort=fast_soft_sort, diffsort=diffsort, difftopk=difftopk, lapsum=lapsum, pot=pot, ott=ott,
             softtorch=softtorch, listings=listings, rax=rax, allrank=allrank)
INDEX = dict(pot="POT", ott="ott-jax")

if __name__ == "__main__":
    torch.set_num_threads(1)
    for seed, (name, record) in enumerate(PEERS.items()):
        if sys.argv[1:] and name not in sys.argv[1:]: continue
        recording = Recording(seed)
        try: record(recording)
        except ImportError as error:
            print(f"{name}: not recorded, {error}")
            continue
        try: version = importlib.metadata.version(INDEX.get(name, name))
        except importlib.metadata.PackageNotFoundError: version = "from its authors' repository"
        recording.save(name, version)
