"""What `torch.onnx.export` makes of the operators: a model of torch's operators alone, with equal results, or an error."""
import numpy as np
import pytest
import torch

from softsortlib import (
    GaussianRank, LapSum, LaplaceRank, NeuralSort, Permutahedron, SigmoidRank, SinkhornSort, SoftSort, SortingNetwork, soft_argsort, soft_median, soft_quantile, soft_rank,
    soft_sort, soft_topk, soft_topk_mask, soft_trimmed_mean,
)

for package in ("onnx", "onnxscript"): pytest.importorskip(package, reason=f"{package} is not installed: pip install onnx onnxscript onnxruntime")
runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install onnx onnxscript onnxruntime")
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.skipif(torch.__version__ < "2.13", reason="older exporters find other operators missing")]


class Model(torch.nn.Module):
    def __init__(self, f):
        super().__init__()
        self.f = f

    def forward(self, x): return self.f(x)


class Masked(torch.nn.Module):
    def __init__(self, f):
        super().__init__()
        self.f = f

    def forward(self, x, mask): return self.f(x, mask)


BATCH, N = torch.export.Dim("batch", min=1, max=4096), torch.export.Dim("n", min=4, max=1024)


def exported(f, x, *more, sizes=None):
    model = (Masked if more else Model)(f)
    return torch.onnx.export(model, (x, *more), dynamo=True, verbose=False, dynamic_shapes=sizes and (sizes,) * (1 + len(more))).model_proto


def run(model, *args):
    "What a model gives, one tensor or several."
    out = [torch.from_numpy(np.asarray(y)) for y in runtime.InferenceSession(model.SerializeToString()).run(None, {of.name: x.numpy() for of, x in zip(model.graph.input, args)})]
    return out[0] if len(out) == 1 else out


def compare(model, fs, args, **how):
    "What a model of several functions gives beside what they give; which of them is wrong is said. An export takes a second before it comes to what it exports."
    found = run(model, *args)
    assert len(found) == len(fs)
    for (name, f), y in zip(fs.items(), found): torch.testing.assert_close(y, f(*args), msg=lambda m: f"{name}: {m}", **how)


GOES = {
    "SoftSort": lambda x: SoftSort(0.3)(x) @ x, "its matrix": lambda x: SoftSort(0.3)(x).to_dense(), "its transpose": lambda x: SoftSort(0.3)(x).mT @ x, "of squares": lambda x: SoftSort(0.3, power=2)(x) @ x,
    "sparse rows": lambda x: SoftSort(0.3, simplex="sparsemax")(x) @ x, "straight through": lambda x: SoftSort(0.3)(x).straight_through() @ x,
    "NeuralSort": lambda x: NeuralSort(0.3)(x) @ x, "hard": lambda x: NeuralSort(0.3)(x).hard(),
    "SigmoidRank": SigmoidRank(0.3), "GaussianRank": GaussianRank(0.3), "LaplaceRank": LaplaceRank(0.3),
    "soft_sort": lambda x: soft_sort(x, tau=0.3), "soft_rank": lambda x: soft_rank(x, tau=0.3), "soft_topk": lambda x: soft_topk(x, 3, tau=0.3)[0],
    "soft_quantile": lambda x: soft_quantile(x, 0.3, tau=0.3), "soft_median": lambda x: soft_median(x, tau=0.3), "soft_argsort": lambda x: soft_argsort(x), "soft_trimmed_mean": lambda x: soft_trimmed_mean(x),
    "hard values": lambda x: soft_sort(x, tau=0.3, hard=True), "hard ranks": lambda x: soft_rank(x, hard=True),
    "lapsum mask": lambda x: soft_topk_mask(x, 3, method="lapsum", tau=0.3), "threshold mask": lambda x: soft_topk_mask(x, 3, method="threshold", tau=0.3),
}
STAYS = {"SortingNetwork": lambda x: SortingNetwork()(x) @ x, "SinkhornSort": lambda x: SinkhornSort()(x) @ x, "LapSum": lambda x: LapSum(0.3)(x) @ x, "Permutahedron": Permutahedron(0.3)}


def test_the_model_says_the_same(rng):
    x = torch.randn(3, 8, generator=rng)
    model = exported(lambda x: tuple(f(x) for f in GOES.values()), x, sizes={0: BATCH})
    assert {node.domain for node in model.graph.node} <= {"", "pkg.onnxscript.torch_lib", "pkg.onnxscript.torch_lib.common"}
    for z in (x, x.flip(0)[:1] * 2, torch.randn(50, 8, generator=rng).round()): compare(model, GOES, [z], atol=2e-6, rtol=1e-5)


PADDED = {
    "SoftSort": lambda x, mask: SoftSort(0.3)(x, mask) @ x, "NeuralSort": lambda x, mask: NeuralSort(0.3)(x, mask) @ x, "hard": lambda x, mask: SoftSort(0.3)(x, mask).hard(),
    "hard ranks": lambda x, mask: soft_rank(x, mask=mask, hard=True), "soft_median": lambda x, mask: soft_median(x, mask=mask), "mask": lambda x, mask: soft_topk_mask(x, 3, tau=0.3, mask=mask),
}


def test_a_mask_and_every_size(rng):
    def padded(B, n): return torch.randn(B, n, generator=rng), torch.arange(n) < torch.randint(n // 2 + 1, n + 1, (B, 1), generator=rng)
    model = exported(lambda x, mask: tuple(f(x, mask) for f in PADDED.values()), *padded(3, 8), sizes={0: BATCH, 1: N})
    for args in (padded(1, 8), padded(4, 40), padded(2, 200)): compare(model, PADDED, args, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", STAYS)
def test_what_does_not_go_is_an_error_and_no_wrong_model(name, rng):
    with pytest.raises(torch.onnx.OnnxExporterError if hasattr(torch.onnx, "OnnxExporterError") else Exception): exported(STAYS[name], torch.randn(3, 8, generator=rng))


def test_a_larger_set_and_what_comes_after_an_export(rng):
    x = torch.randn(2, 200, generator=rng)
    f = GOES["SoftSort"]
    torch.testing.assert_close(run(exported(f, x), x), f(x), atol=1e-5, rtol=1e-5)
    program = torch.export.export(Model(f), (x,), strict=False)
    assert any("softsortlib" in str(n.target) for n in program.graph.nodes), "the usual export keeps the fast operators"
