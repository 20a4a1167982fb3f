"""One registration: who computes, what each function is handed, and all the rules that come of a declaration."""
import pytest
import torch
from torch.testing import assert_close

import softsortlib.engine.dispatch as dispatch
from softsortlib.engine.mechanism import Later, declared, mechanism


def scaled(name, learned=None, **kernels):
    "y = s / tau for s (..., n) and tau (...), and n ** 2 beside it, whose gradient nobody has."
    def grads(g, s, tau, learn=True):
        if learned is not None: learned.append(learn)
        return g / tau[..., None], -(g * s).sum(-1) / tau**2
    pull = mechanism(f"{name}_backward(g, s, tau, bool learn) -> s, tau", "tests", grads, again=lambda g, s, tau: grads(g, s, tau))
    return mechanism(f"{name}(s, tau, Tensor? shared, int n, str backend) -> y=s, m=tau", "tests",
                     lambda s, tau, n: (s / tau[..., None], torch.full_like(tau, n**2)), gradient=pull, **kernels)


@pytest.fixture
def leaves(rng):
    return torch.randn(2, 3, generator=rng, dtype=torch.float64, requires_grad=True), torch.tensor([0.5, 2.0], dtype=torch.float64, requires_grad=True)


def test_all_derivatives_are_those_of_the_formula(leaves):
    op = scaled("all_derivatives")
    f = lambda s, tau: op(s, tau, None, 3, "")[0]
    plain = lambda s, tau: s / tau[..., None]
    torch.autograd.gradcheck(f, leaves)
    torch.autograd.gradgradcheck(f, leaves)
    s, tau = (a.detach() for a in leaves)
    for transform in (lambda f: torch.func.jvp(f, (s, tau), (s.cos(), tau.sin()))[1], lambda f: torch.func.vmap(f)(s, tau),
                      lambda f: torch.func.hessian(lambda tau: f(s, tau).square().sum())(tau), lambda f: torch.func.vmap(torch.func.grad(lambda s, tau: f(s, tau).sin().sum()))(s, tau)):
        assert_close(transform(f), transform(plain))
    torch.library.opcheck(op.op, (*leaves, None, 3, ""), test_utils=("test_schema", "test_autograd_registration", "test_faketensor"))


def test_a_gradient_says_what_it_wants_and_the_rest_is_not_kept(leaves):
    learned = []
    op = scaled("what_is_wanted", learned)
    s, tau = leaves
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda a: kept.append(a) or a, lambda a: a):
        y, m = op(s, tau.detach(), torch.ones(7), 3, "")
    assert [a.shape for a in kept] == [s.shape, tau.shape]      # not `shared`, nor a result
    y.sum().backward()
    op(s, tau, None, 3, "")[0].sum().backward()
    assert learned == [False, True] and tau.grad is not None
    assert op(s, tau, None, 3, "")[1].tolist() == [9, 9]
    (grad,) = torch.autograd.grad(op(s, tau, None, 3, "")[1].sum(), s, allow_unused=True)
    assert grad is None                                         # the second result has no derivative


@pytest.mark.parametrize("home, backend, dtype, n, who", [
    ("numba", "", torch.float64, 3, "cpu"), ("numba", "torch", torch.float64, 3, "plain"), ("torch", "", torch.float64, 3, "plain"),
    ("numba", "", torch.float32, 3, "plain"), ("numba", "", torch.float64, 4, "plain"), ("torch", "numba", torch.float64, 3, "cpu")])
def test_who_computes(home, backend, dtype, n, who, monkeypatch):
    monkeypatch.setitem(dispatch.HOME, "cpu", home)
    asked = []
    def computes(name):
        def f(s): return asked.append(name) or s.clone()
        return f
    op = mechanism("who_computes(s, int n, str backend) -> s", "tests", computes("plain"), computes("cpu"), "no.such.kernel",
                   dtypes=(torch.float64,), cpu_if=lambda n: n == 3)
    op(torch.ones(2, dtype=dtype), n, backend)
    assert asked == [who]


def test_kernels_see_one_batch_dimension(monkeypatch):
    seen = []
    def kernel(tau, s):
        seen.append((tuple(s.shape), tuple(tau.shape)))
        return s / tau[:, None], tau + 0
    op = mechanism("flat_kernel(s, tau) -> y=s, z=tau", "tests", lambda s, tau: (s, tau), kernel, batch="tau")
    for shape in ((), (4,), (2, 3), (0,)):
        s, tau = torch.ones(*shape, 5), torch.full(shape, 2.0)
        y, z = op(s, tau)
        assert torch.equal(y, s / 2) and torch.equal(z, tau)
    assert seen == [((1, 5), (1,)), ((4, 5), (4,)), ((6, 5), (6,)), ((0, 5), (0,))]


def test_mistakes_show_when_a_module_is_imported():
    with pytest.raises(TypeError, match=r"misnamed: a function asks for \['temperature'\], the operator has \['s', 'tau'\]"):
        mechanism("misnamed(s, tau) -> s", "tests", lambda s, temperature: s)
    with pytest.raises(ValueError): declared("no_results(s, tau)")
    assert declared("f(s, Tensor? rows, int n) -> P").schema == "(Tensor s, Tensor? rows, SymInt n) -> Tensor"


def test_a_kernel_is_imported_when_it_is_asked_for():
    assert Later("math").hypot(3, 4) == 5
    with pytest.raises(ModuleNotFoundError): Later("no.such.module").kernel


def test_a_kernel_in_line_is_used_where_nobody_differentiates_again():
    seen = []
    def twin(g, s, learn): seen.append("twin"); return 2 * g * s, (g * s).sum(-1, keepdim=True) if learn else None
    def loop(g, s): seen.append("loop"); return 2 * g * s, None
    pull = mechanism("in_line_backward(g, s, tau, bool learn) -> s, tau", "tests", twin, loop, cpu_if=lambda learn: not learn, inline=True)
    op = mechanism("in_line(s, tau) -> y=s", "tests", lambda s, tau: s * s + 0 * tau, gradient=pull)
    s, tau = torch.tensor([1.0, 2.0], requires_grad=True), torch.ones(1)
    assert torch.autograd.grad(op(s, tau).sum(), s)[0].tolist() == [2, 4] and seen == ["loop"]
    g, = torch.autograd.grad(op(s, tau).sum(), s, create_graph=True)
    assert torch.autograd.grad(g.sum(), s)[0].tolist() == [2, 2] and seen[1:] == ["twin"]
    op(s, tau.requires_grad_()).sum().backward()
    assert tau.grad.tolist() == [3] and seen[2:] == ["twin"] and pull.who(s, s, tau, False) == "numba"
    assert torch.func.vmap(torch.func.grad(lambda s: op(s, torch.ones(1)).sum()))(torch.ones(3, 2)).tolist() == [[2, 2]] * 3
    torch.library.opcheck(pull.operator.overload, (s.detach(), s.detach(), tau.detach(), False))      # room for what nobody wants


def test_a_gradient_may_be_a_function_and_results_whole_numbers():
    def grads(s, order, n, needs, of_x=None, of_m=None):
        assert n == 3 and order.dtype == torch.long and needs[0]
        parts = [torch.zeros_like(s).scatter(-1, order, of_x)] if of_x is not None else []
        return sum(parts + ([of_m[..., None] / s.shape[-1] + 0 * s] if of_m is not None else [])),
    op = mechanism("sorted_and_mean(s, int n) -> x=s, m, long order=s", "tests", lambda s: (s.sort()[0], s.mean(-1), s.argsort()), gradient=grads,
                   fake=lambda s: (s.new_empty(s.shape), s.new_empty(s.shape[:-1]), s.new_empty(s.shape, dtype=torch.long)))
    op_alone = mechanism("sorted_alone(s) -> x=s, long order=s", "tests", lambda s: tuple(s.sort()))
    torch.library.opcheck(op_alone.overload, (torch.ones(3),))      # what comes out is what was declared
    s = torch.tensor([3.0, 1.0, 2.0], requires_grad=True)
    x, m, order = op(s, 3)
    assert torch.autograd.grad(x[0], s, retain_graph=True)[0].tolist() == [0, 1, 0] and order.tolist() == [1, 2, 0]
    assert torch.autograd.grad(3 * m, s)[0].tolist() == [1, 1, 1]
