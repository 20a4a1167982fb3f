"""What `torch.onnx.export` makes of the operators: a model of torch's operators alone, with equal results, or an error."""
import numpy as np
import pytest
import torch

from softsortlib import (
    GaussianRank, LapSum, LaplaceRank, NeuralSort, Permutahedron, SigmoidRank, SinkhornSort, SoftSort, SortingNetwork, soft_median, soft_quantile, soft_rank, soft_sort,
    soft_topk, soft_topk_mask,
)

for package in ("onnx", "onnxscript"): pytest.importorskip(package, reason=f"{package} is not installed: pip install onnx onnxscript onnxruntime")
runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install onnx onnxscript onnxruntime")
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.skipif(torch.__version__ < "2.13", reason="older exporters find other operators missing")]


class Model(torch.nn.Module):
    def __init__(self, f):
        super().__init__()
        self.f = f

    def forward(self, x): return self.f(x)


def exported(f, x): return torch.onnx.export(Model(f), (x,), dynamo=True, verbose=False).model_proto


def run(model, x):
    [out] = runtime.InferenceSession(model.SerializeToString()).run(None, {model.graph.input[0].name: x.numpy()})
    return torch.from_numpy(np.asarray(out))


GOES = {
    "SoftSort": lambda x: SoftSort(0.3)(x) @ x, "its matrix": lambda x: SoftSort(0.3)(x).to_dense(), "its transpose": lambda x: SoftSort(0.3)(x).mT @ x, "of squares": lambda x: SoftSort(0.3, power=2)(x) @ x,
    "sparse rows": lambda x: SoftSort(0.3, simplex="sparsemax")(x) @ x, "straight through": lambda x: SoftSort(0.3)(x).straight_through() @ x,
    "NeuralSort": lambda x: NeuralSort(0.3)(x) @ x, "hard": lambda x: NeuralSort(0.3)(x).hard(),
    "SigmoidRank": SigmoidRank(0.3), "GaussianRank": GaussianRank(0.3), "LaplaceRank": LaplaceRank(0.3),
    "soft_sort": lambda x: soft_sort(x, tau=0.3), "soft_rank": lambda x: soft_rank(x, tau=0.3), "soft_topk": lambda x: soft_topk(x, 3, tau=0.3)[0],
    "soft_quantile": lambda x: soft_quantile(x, 0.3, tau=0.3), "soft_median": lambda x: soft_median(x, tau=0.3),
    "lapsum mask": lambda x: soft_topk_mask(x, 3, method="lapsum", tau=0.3), "threshold mask": lambda x: soft_topk_mask(x, 3, method="threshold", tau=0.3),
}
STAYS = {"SortingNetwork": lambda x: SortingNetwork()(x) @ x, "SinkhornSort": lambda x: SinkhornSort()(x) @ x, "LapSum": lambda x: LapSum(0.3)(x) @ x, "Permutahedron": Permutahedron(0.3)}


@pytest.mark.parametrize("name", GOES)
def test_the_model_says_the_same(name, rng):
    x = torch.randn(3, 8, generator=rng)
    model = exported(GOES[name], x)
    assert {node.domain for node in model.graph.node} <= {"", "pkg.onnxscript.torch_lib", "pkg.onnxscript.torch_lib.common"}
    for z in (x, x.flip(0) * 2, torch.randn(3, 8, generator=rng).round()): torch.testing.assert_close(run(model, z), GOES[name](z), atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("name", STAYS)
def test_what_does_not_go_is_an_error_and_no_wrong_model(name, rng):
    with pytest.raises(torch.onnx.OnnxExporterError if hasattr(torch.onnx, "OnnxExporterError") else Exception): exported(STAYS[name], torch.randn(3, 8, generator=rng))


def test_a_larger_set_and_what_comes_after_an_export(rng):
    x = torch.randn(2, 200, generator=rng)
    f = GOES["SoftSort"]
    torch.testing.assert_close(run(exported(f, x), x), f(x), atol=1e-5, rtol=1e-5)
    program = torch.export.export(Model(f), (x,), strict=False)
    assert any("softsortlib" in str(n.target) for n in program.graph.nodes), "the usual export keeps the fast operators"
