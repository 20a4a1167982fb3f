"""On a real GPU: every operator against its own float64 result on the CPU, values and gradients. Run by `make gpu`."""
import pytest
import torch
from torch.testing import assert_close

from softsortlib import Operator, get_operator

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")]


def everything(op, s, x, target):
    s, x = s.detach().requires_grad_(), x.detach().requires_grad_()
    P = op(s)
    out = [P @ x, P.mT @ x, P.log_prob(target), P[..., :3, :] @ x]
    if s.shape[-1] <= 3000: out.append(P.to_dense())
    grads = torch.autograd.grad(sum((o.double() * (1 + o.detach().double())).sum() for o in out), (s, x))
    return [o.detach().cpu().double() for o in (*out, *grads)], P.hard().cpu()


@pytest.mark.parametrize("n", [1, 5, 64, 1000, 2048])
@pytest.mark.parametrize("batch", [1, 20])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", sorted(Operator.names))
def test_gpu_equals_cpu(name, dtype, batch, n):
    rng = torch.Generator().manual_seed(n)
    s, x = torch.rand(batch, n, generator=rng), torch.randn(batch, n, 2, generator=rng)
    if name in ("sinkhorn", "odd_even") and n > 100: pytest.skip("covered by the small sizes, slow on the CPU")
    target = s.argsort(descending=True)
    op = get_operator(name, tau=100.0 if name == "neuralsort" else 0.1, descending=True)
    cpu, hard = everything(op, s.double(), x.double(), target)
    gpu, hard_gpu = everything(op, s.to("cuda", dtype), x.to("cuda", dtype), target.cuda())
    for a, b in zip(gpu, cpu):
        assert (a - b).norm() <= (1e-4 if dtype == torch.float32 else 1e-10) * (1e-6 + b.norm())
    assert torch.equal(hard, hard_gpu)


@pytest.mark.parametrize("n", [10_000, 1_000_000])
def test_a_million_on_the_gpu(n):
    s = torch.rand(n, generator=torch.Generator().manual_seed(0))
    op = get_operator("softsort", tau=0.01, descending=True)
    a, b = ((op(z) @ z).cpu().double() for z in (s.cuda(), s.double()))
    assert_close(a, b, rtol=1e-5, atol=1e-6)
