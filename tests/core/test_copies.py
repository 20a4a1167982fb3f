"""Every operator, loss and layer is pickled, copied, saved and sent to a new process, and computes there what it computes here."""
import copy
import inspect
import io
import multiprocessing
import pickle

import pytest
import torch
from tables import OPERATORS
from torch import nn
from torch.testing import assert_close

from softsortlib import Operator, Permutahedron, SinkhornSort, SoftSort, Stochastic, losses, soft_permutation, soft_topk
from softsortlib.core import RankOperator, SampleMean
from softsortlib.losses import SoftKNN
from softsortlib.transport import GumbelSinkhorn, soft_matching

S = torch.randn(3, 6, generator=torch.Generator().manual_seed(0))
GRADES = torch.tensor([[2, 0, 1, 0, 3, 0], [0, 1, 0, 0, 0, 2], [1, 1, 0, 0, 2, 0]])

BINARY = (losses.AUCLoss, losses.AveragePrecisionLoss, losses.PrecisionLoss, losses.QuantisedAPLoss, losses.RecallLoss, losses.ReciprocalRankLoss, losses.SLatKLoss)


def modules():
    "A module of every class, with temperatures that are numbers, buffers and parameters."
    made = {"squares": SoftSort(power=2), "entropic": Permutahedron(regularization="kl"), "gumbel": GumbelSinkhorn(nn.Parameter(torch.tensor(0.5)), noise=0.0),
            "stochastic": Stochastic("softsort", 3, torch.Generator().manual_seed(0)), "knn": SoftKNN(2, classes=2, method=SoftSort(nn.Parameter(torch.tensor(0.3)))),
            "milestones": SinkhornSort(milestones=torch.tensor([0.0, 0.4, 1.0]), a=torch.arange(1.0, 7.0))}
    for name, cls in {**Operator.names, **RankOperator.names}.items():
        for kind, tau in (("number", 0.5), ("buffer", torch.tensor(0.5)), ("parameter", nn.Parameter(torch.tensor(0.5)))): made[f"{name}-{kind}"] = cls(tau=tau)
    for name, cls in inspect.getmembers(losses, lambda v: inspect.isclass(v) and issubclass(v, nn.Module) and v is not SoftKNN):
        made[name] = cls(**{option: SoftSort(nn.Parameter(torch.tensor(0.3))) for option in cls.defaults if option == "method" and cls is not losses.PermutationNLL})
    return made


MODULES = modules()


def value(module):
    "Something that depends on all of the module."
    torch.manual_seed(0)  # some draw
    if isinstance(module, SoftKNN): return module(S[:2], S, torch.tensor([0, 1, 1]))
    if isinstance(module, GumbelSinkhorn): return module(S[:, :3]).to_dense()
    if isinstance(module, (losses.PermutationNLL, losses.PermutationBCE)): return module(SoftSort(0.5)(S), GRADES.argsort(-1))
    if isinstance(module, (losses.TopKLoss, losses.ZeroOneLoss)): return module(S, GRADES[:, 0])
    if isinstance(module, (Operator, RankOperator)):
        out = module(S)
        return out if isinstance(out, torch.Tensor) else out @ S
    if isinstance(module, BINARY): return module(S, GRADES > 0)
    return module(S, GRADES)


def through_a_file(module):
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


WAYS = {"pickle": lambda m: pickle.loads(pickle.dumps(m)), "copy": copy.deepcopy, "file": through_a_file}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", sorted(MODULES))
def test_a_copy_is_the_same_and_shares_nothing(name, way):
    module = MODULES[name]
    twin = WAYS[way](module)
    assert repr(twin) == repr(module) and not {p.data_ptr() for p in twin.parameters()} & {p.data_ptr() for p in module.parameters()}
    if name == "stochastic": twin.generator.set_state(state := module.generator.get_state())
    found, want = value(twin), None
    if name == "stochastic": module.generator.set_state(state)
    assert_close(found, value(module), rtol=0, atol=0)


@pytest.mark.parametrize("name", sorted(MODULES))
def test_a_state_goes_into_another_module_through_a_file_of_weights(name):
    module, file = MODULES[name], io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    other = copy.deepcopy(module)
    with torch.no_grad():
        for t in (*other.parameters(), *other.buffers()): t.mul_(3)
    other.load_state_dict(torch.load(file, weights_only=True))
    if name != "stochastic": assert_close(value(other), value(module), rtol=0, atol=0)


def in_a_new_process(pipe):
    made = pickle.loads(pipe.recv_bytes())
    pipe.send({name: value(m).detach().tolist() for name, m in made.items()})


def test_a_spawned_worker_computes_the_same():
    "As data loaders and launchers start one where processes are not forked."
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    worker = context.Process(target=in_a_new_process, args=(there,))
    worker.start()
    there.close()
    sent = {name: m for name, m in MODULES.items() if name != "stochastic"}
    here.send_bytes(pickle.dumps(sent))
    assert here.poll(120)
    found = here.recv()
    worker.join(30)
    for name, m in sent.items(): assert_close(torch.tensor(found[name]), value(m).detach().float(), rtol=1e-6, atol=1e-7)


def maps():
    "Every soft permutation, small and large, with a mask and without, and what is made of it; scores that have a graph."
    for n in (3, 20, 140):
        s = torch.randn(2, n, generator=torch.Generator().manual_seed(n)).requires_grad_()
        mask = (torch.arange(n) < n - 1).expand(2, n)
        for row in OPERATORS:
            for m in (None, mask): yield f"{row.name}, {n}", row.make()(2 * s, m)
        for name in ("sinkhorn", "lapsum"): yield f"learned tau, {name}, {n}", Operator.names[name](tau=nn.Parameter(torch.tensor(0.5)))(s)
    x, offsets = torch.randn(7, generator=torch.Generator().manual_seed(0)).requires_grad_(), torch.tensor([0, 3, 3, 7])
    yield "lists", soft_permutation(2 * x, offsets=offsets)
    yield "first rows of lists", soft_topk(2 * x, 2, offsets=offsets)[1]
    yield "no list", soft_permutation(x[:0], offsets=torch.tensor([0]))
    yield "matching", soft_matching(torch.eye(4).requires_grad_() * 2)
    yield "mean of samples", SampleMean(Stochastic("softsort", 3, torch.Generator().manual_seed(0))(2 * x))


@pytest.mark.parametrize("way", ["pickle", "file"])        # torch does not deepcopy what has a graph
def test_a_soft_permutation_is_pickled_and_saved(way):
    for name, P in maps():
        for form, Q in (("whole", P), ("rows", P[..., :2, :]), ("transposed", P.mT), ("rounded", P.straight_through())):
            twin, x = WAYS[way](Q), torch.randn(Q.shape[-1], generator=torch.Generator().manual_seed(1))
            assert type(twin) is type(Q) and twin.shape == Q.shape and twin.dtype == Q.dtype, (name, form)
            assert_close(twin @ x, Q @ x, rtol=0, atol=0, msg=lambda said, at=(name, form): f"{at}: {said}")
