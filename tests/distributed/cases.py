"""What runs in the processes of a test: each function gets the group, this process's rank in it, the number of processes, and options."""
import torch
import torch.distributed as dist

import softsortlib
from softsortlib import losses

SPLITS = {
    "random": lambda x, P: x.split(sizes(x.shape[-1], P), -1),
    "alone": lambda x, P: [x[..., :0]] * (P - 1) + [x],
    "first": lambda x, P: [x] + [x[..., :0]] * (P - 1),
    "holes": lambda x, P: x.split([0 if p % 2 else c for p, c in enumerate(sizes(x.shape[-1], P))][:-1] + [x.shape[-1] - sum(0 if p % 2 else c for p, c in enumerate(sizes(x.shape[-1], P)[:-1]))], -1),
}


def sizes(n, P):
    "Some lengths that sum to n, none alike."
    weights = torch.arange(1, P + 1).roll(P // 2).double()
    ends = (weights.cumsum(0) / weights.sum() * n).round().long()
    return ends.diff(prepend=torch.zeros(1, dtype=torch.long)).tolist()


def scores(kind, batch, n, dtype):
    "Scores of a kind, the same in every process."
    g = torch.Generator().manual_seed(n)
    x = torch.randn(*batch, n, generator=g, dtype=torch.float64)
    if kind == "tied": x = torch.zeros_like(x)
    if kind == "few": x = (2 * x).round()
    if kind == "falling": x = x.sort(-1, descending=True).values
    if kind == "rising": x = x.sort(-1).values
    if kind == "stairs": x = torch.arange(n).double().expand(*batch, n).clone()      # with tau = 1, each rank is a tie of the isotonic regression
    if kind == "wide": x = 1e3 * x ** 3
    return x.to(dtype)


def cut(x, split, P, rank): return SPLITS[split](x, P)[rank].clone()


def call_function(name, x, k, options, group=None):
    "A public function by its name; a tensor."
    more = {} if group is None else dict(group=group)
    if name == "soft_topk": return softsortlib.soft_topk(x, k, **options, **more)[0]
    if name == "soft_quantile": return softsortlib.soft_quantile(x, torch.tensor([0.0, 0.3, 0.77, 1.0], dtype=torch.float64), **options, **more).movedim(0, -1)
    if name == "soft_median": return softsortlib.soft_median(x, **options, **more)[..., None]
    return getattr(softsortlib, name)(x, **options, **more)


WHOLE = ("soft_topk", "soft_quantile", "soft_median")     # one number for the whole


def levelled(g, x):
    "A gradient (n,) with its mean over equal scores: at ties, the permutahedron's sorted values have one derivative for each order of the tied scores."
    equal = (x[:, None] == x).to(g.dtype)
    return equal @ g / equal.sum(1)


def function(group, rank, P, name, kind="normal", split="random", batch=(), n=37, dtype=torch.float64, masked=False, options={}, level=False):
    "Largest relative error of value and gradient of a function in parts against that of one process."
    whole = scores(kind, batch, n, dtype).requires_grad_()
    mask = None
    if masked: mask = torch.rand(*batch, n, generator=torch.Generator().manual_seed(5)) < 0.7
    reference = {key: value for key, value in options.items() if key != "gather"}
    y = call_function(name, whole.double(), 3, dict(reference, mask=mask), None)      # the truth, also for single precision
    g = torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    want, = torch.autograd.grad((y * g).sum(), whole)
    y, g = y.to(dtype), g.to(dtype)
    x = cut(whole.detach(), split, P, rank).requires_grad_()
    own = dict(options, mask=None if mask is None else cut(mask, split, P, rank))
    z = call_function(name, x, 3, own, group)
    part, weight = (y, g) if name in WHOLE else (cut(y, split, P, rank), cut(g, split, P, rank))
    got, = torch.autograd.grad((z * weight).sum(), x)
    whole_gradient = want      # the unit of the error: a level of tied scores may be zero up to rounding
    if level:
        pieces = [None] * P
        dist.all_gather_object(pieces, got, group=group)
        want, got = levelled(want, whole.detach()), cut(levelled(torch.cat(pieces), whole.detach()), split, P, rank)
    return error(z, part, y), error(got, cut(want, split, P, rank), whole_gradient)


def error(got, want, whole):
    "The largest difference in terms of the largest entry of the whole; infinite for another shape, dtype, or a NaN at other places."
    if got.shape != want.shape or got.dtype != want.dtype or not torch.equal(got.isnan(), want.isnan()): return float("inf")
    scale = whole.detach().nan_to_num().abs().max().item() or 1.0
    difference = (got - want).detach().nan_to_num().abs()
    return (difference.max().item() if difference.numel() else 0.0) / scale


TWO_KINDS = ("precision_loss", "recall_loss", "PrecisionLoss", "RecallLoss", "AUCLoss", "ReciprocalRankLoss", "AveragePrecisionLoss", "QuantisedAPLoss")      # which take zeros and ones


def loss(group, rank, P, name, kind="normal", split="random", batch=(), n=37, dtype=torch.float64, masked=False, options={}):
    "Largest relative error of value and gradient of a loss in parts against that of one process."
    whole = scores(kind, batch, n, dtype).requires_grad_()
    y = (2 * torch.randn(*batch, n, generator=torch.Generator().manual_seed(3))).round().clamp(min=0)
    if name in TWO_KINDS: y = y.clamp(max=1)
    mask = torch.rand(*batch, n, generator=torch.Generator().manual_seed(5)) < 0.7 if masked else None
    f = getattr(losses, name)
    value = f(whole.double(), y, mask, **{key: v for key, v in options.items() if key != "gather"})
    want, = torch.autograd.grad(value.sum(), whole)
    value = value.to(dtype)
    x = cut(whole.detach(), split, P, rank).requires_grad_()
    own = f(x, cut(y, split, P, rank), None if mask is None else cut(mask, split, P, rank), group=group, **options)
    got, = torch.autograd.grad(own.sum(), x)
    return error(own, value, value), error(got, cut(want, split, P, rank), want)


def metric(group, rank, P, name, kind="normal", split="random", batch=(), n=37, dtype=torch.float64, masked=False, options={}, reduction="mean"):
    "Largest relative error of the hard and, where it has parts, of the soft metric of a loss in parts against one process."
    whole = scores(kind, batch, n, dtype)
    y = (2 * torch.randn(*batch, n, generator=torch.Generator().manual_seed(3))).round().clamp(min=0)
    if name in TWO_KINDS: y = y.clamp(max=1)
    mask = torch.rand(*batch, n, generator=torch.Generator().manual_seed(5)) < 0.7 if masked else None
    one, x, grades = getattr(losses, name)(**options), cut(whole, split, P, rank), cut(y, split, P, rank)
    real = None if mask is None else cut(mask, split, P, rank)
    want, own = losses.hard_metric(one, whole, y, mask, reduction=reduction), losses.hard_metric(one, x, grades, real, reduction=reduction, group=group)
    found = error(own, want, want)
    if "group" not in one.defaults: return found, 0.0
    carried = losses.hard_metric(getattr(losses, name)(**options, group=group), x, grades, real, reduction=reduction)
    soft, parts = losses.soft_metric(one, whole, y, mask), losses.soft_metric(one, x, grades, real, group=group)
    return max(found, error(carried, want, want)), error(parts, soft, soft)


def likelihood(group, rank, P, kind="normal", split="random", batch=(), n=37, dtype=torch.float64, options={}):
    "Largest relative error of the likelihood of an order in parts and of its gradient against one process."
    whole = scores(kind, batch, n, dtype).requires_grad_()
    target = torch.rand(*batch, n, generator=torch.Generator().manual_seed(7)).argsort(-1)
    own = {key: value for key, value in options.items() if key == "reduction"}
    value = losses.permutation_nll(softsortlib.soft_permutation(whole.double(), tau=options["tau"]), target, **own)
    want, = torch.autograd.grad(value.sum(), whole)
    value = value.to(dtype)
    x = cut(whole.detach(), split, P, rank).requires_grad_()
    got_value = losses.permutation_nll(x, cut(target, split, P, rank), group=group, **options)
    got, = torch.autograd.grad(got_value.sum(), x)
    return error(got_value, value, value), error(got, cut(want, split, P, rank), want)


def confined(group, rank, P, name, options={}):
    "A NaN in the second of three sets: the others are as without it."
    whole = scores("normal", (3,), 37, torch.float64)
    y = call_function(name, whole, 3, options)
    whole[1, 5] = float("nan")
    if "method" in options: y = call_function(name, whole, 3, options)      # there, the other scores of the set keep their ranks too
    z = call_function(name, cut(whole, "random", P, rank), 3, options, group)
    if name not in WHOLE: y = cut(y, "random", P, rank)
    if "method" in options: return max(error(z[i], y[i], y) for i in range(3)), True
    return max(error(z[i], y[i], y) for i in (0, 2)), bool(z[1].isnan().any() or z.shape[-1] == 0)


def disagree(group, rank, P, what):
    "The message when the last process means something else."
    last = rank == P - 1
    shape, dtype, options = (2, 5), torch.float64, dict(tau=0.1)
    if last and what == "shape": shape = (3, 5)
    if last and what == "dtype": dtype = torch.float32
    if last and what == "tau": options = dict(tau=0.2)
    if last and what == "method": options = dict(method="laplace", tau=0.1)
    x = torch.zeros(shape, dtype=dtype)
    try:
        if last and what == "function": softsortlib.soft_sort(x, group=group, **options)
        elif last and what == "error": softsortlib.soft_rank(x.long(), group=group, **options)
        elif last and what == "dim": softsortlib.soft_rank(torch.zeros(5, 2, dtype=dtype), 0, group=group, **options)
        elif what == "operator": softsortlib.soft_rank(x, method="neuralsort", group=group, **options)
        elif what == "empty": softsortlib.soft_rank(x[:, :0], group=group, **options)
        else: softsortlib.soft_rank(x, group=group, **options)
    except (ValueError, TypeError, RuntimeError, NotImplementedError) as e: return f"{type(e).__name__}: {e}"
    return "no error"


def traffic(group, rank, P, name, n, backward, options={}):
    "Numbers that this process received, by collective, without the header."
    got = dict(all_to_all=0, small=0)
    kept = dist.all_to_all_single, dist.all_gather, dist.all_reduce

    def all_to_all(out, x, receive, send, group=None):
        own = receive[rank] * out[:1].numel() if len(out) else 0
        size = out.numel() - own
        got["small" if size < 100 * P * P and out.dtype == torch.int64 else "all_to_all"] += size
        return kept[0](out, x, receive, send, group=group)

    def all_gather(parts, x, group=None):
        if x.dtype != torch.uint8: got["small"] += x.numel() * (P - 1)
        return kept[1](parts, x, group=group)

    def all_reduce(x, group=None):
        got["small"] += x.numel()
        return kept[2](x, group=group)

    dist.all_to_all_single, dist.all_gather, dist.all_reduce = all_to_all, all_gather, all_reduce
    try:
        x = cut(scores("normal", (), n, torch.float32), "random", P, rank).requires_grad_()
        y = call_function(name, x, 3, options, group)
        if backward: y.square().sum().backward()
    finally: dist.all_to_all_single, dist.all_gather, dist.all_reduce = kept
    return got


def share(group, rank, P, kind, split, n):
    "How many scores this process holds after the sort."
    from softsortlib.distributed import Party, sort_parts
    x = cut(scores(kind, (1,), n, torch.float32), split, P, rank)
    lengths = [part.shape[-1] for part in SPLITS[split](torch.zeros(1, n), P)]
    return int(sort_parts(x, Party(group, rank, lengths, False)).size)


def second(group, rank, P):
    "The gradient of a gradient, in parts and in one process."
    def of(x, more, square):
        y = softsortlib.soft_rank(x, tau=0.5, **more)
        g, = torch.autograd.grad(square(y), x, create_graph=True)
        return torch.autograd.grad(square(g), x)[0]
    whole = scores("normal", (), 23, torch.float64)
    weight = torch.arange(23).double()
    want = of(whole.clone().requires_grad_(), {}, lambda v: (v.square() * weight).sum())
    w = cut(weight, "random", P, rank)
    got = of(cut(whole, "random", P, rank).requires_grad_(), dict(group=group), lambda v: (v.square() * w).sum())
    return (error(got, cut(want, "random", P, rank), want),)


def training(group, rank, P, name, masked=False, options={}, steps=6):
    "The values of a loss of a linear model, step by step; each process holds a part of each list."
    rng = torch.Generator().manual_seed(3)
    X, y = torch.rand(3, 23, 4, generator=rng, dtype=torch.float64), torch.randint(0, 4, (3, 23), generator=rng)
    if name in TWO_KINDS: y = y.clamp(max=1)
    mask = torch.rand(3, 23, generator=rng) < 0.6 if masked else None
    lengths = sizes(23, P)
    X, y, mask = (None if a is None else a.split(lengths, 1)[rank] for a in (X, y, mask))
    W, values = torch.linspace(1, 2, 4).double().requires_grad_(), []
    for _ in range(steps):
        value = getattr(losses, name)(X @ W, y, mask, tau=0.3, group=group, **options)
        g, = torch.autograd.grad(value, W)
        dist.all_reduce(g, group=group)
        W = (W - 0.5 * g).detach().requires_grad_()
        values.append(value.item())
    return values


LOSSES_TWICE = {"spearman_loss": dict(tau=0.5), "kendall_loss": dict(tau=0.5), "approx_ndcg_loss": dict(tau=0.5)}


def second_of_losses(group, rank, P):
    "The gradient of the gradient of losses that all processes hold, and of their gathered forms, in parts and in one process."
    whole, y = scores("normal", (), 23, torch.float64), torch.arange(23).remainder(4).double()
    weight = torch.linspace(-1, 1, 23, dtype=torch.float64)
    errors = []
    for name, options in LOSSES_TWICE.items():
        f = getattr(softsortlib.losses, name)
        def twice(x, y, w, **more):
            g, = torch.autograd.grad(f(x, y, **options, **more), x, create_graph=True)
            return torch.autograd.grad((g * w).sum() + g.square().sum(), x)[0]
        want = twice(whole.clone().requires_grad_(), y, weight)
        parts = [cut(v, "random", P, rank) for v in (whole, y, weight)]
        for gather in (False, True):
            got = twice(parts[0].clone().requires_grad_(), *parts[1:], group=group, gather=gather)
            errors.append(error(got, cut(want, "random", P, rank), want))
    return tuple(errors)


def tied(group, rank, P):
    "Spearman's loss of scores that are all the same, and its largest gradient, by each method."
    found = []
    for method in ("softsort", "sigmoid", "gaussian", "laplace"):
        for n in (4, 37):
            y = cut(torch.arange(n).double(), "random", P, rank)
            s = torch.zeros_like(y).requires_grad_()
            loss = softsortlib.losses.spearman_loss(s, y, group=group, method=method)
            loss.backward()
            found.append((loss.item(), max([0.0, *s.grad.abs().tolist()])))
    return found


def one_learns(group, rank, P):
    "Only the first process wants a gradient; nobody waits."
    whole = scores("normal", (), 23, torch.float64)
    x = cut(whole, "random", P, rank).requires_grad_(rank == 0)
    y = softsortlib.soft_sort(x, tau=0.5, group=group)
    y.sum().backward()
    return x.grad is None or bool(x.grad.isfinite().all())


def towers(group, rank, P, program, steps):
    "The losses of the tutorial's program, without DDP's own group of all four: its gradients are averaged here."
    space = {"__name__": "two_towers"}
    exec(program.replace("dist.get_rank()", str(rank)).replace("dist.get_world_size()", str(P)).replace("group=dist.group.WORLD", "group=the_group"), space)

    def parallel(model): return torch.nn.parallel.DistributedDataParallel(model, process_group=group)

    space.update(the_group=group, DistributedDataParallel=parallel)
    return {name: space["train"](name, steps) for name in ("spearman", "ndcg")}


def sharded(group, rank, P, name):
    "A DTensor in, the same placement out, and the gradient through it."
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Replicate, Shard
    mesh = DeviceMesh.from_group(group, "cpu")
    whole = scores("normal", (2,), 11, torch.float64).requires_grad_()
    y = call_function(name, whole, 3, dict(tau=0.3))
    want, = torch.autograd.grad(y.square().sum(), whole)
    pieces = whole.detach().tensor_split([-(-11 // P) * p for p in range(1, P)], -1)      # as Shard cuts
    local = pieces[rank].clone().requires_grad_()
    x = DTensor.from_local(local, mesh, [Shard(1)], run_check=False, shape=whole.shape, stride=whole.stride())
    z = call_function(name, x, 3, dict(tau=0.3))
    out = z.to_local()
    got, = torch.autograd.grad(out.square().sum(), local)
    agreed = name in WHOLE
    assert z.placements == ((Replicate(),) if agreed else (Shard(1),)), z.placements
    part = y if agreed else y.tensor_split([-(-11 // P) * p for p in range(1, P)], -1)[rank]
    return error(out, part, y), error(got, want.tensor_split([-(-11 // P) * p for p in range(1, P)], -1)[rank], want)
