"""Compile the library's kernels for GPUs that are not there, as they would be launched (see pretend.py)."""
import subprocess
import tempfile
from pathlib import Path

import torch
from pretend import both_ways, cases, pretend

TYPES = {torch.float32: "fp32", torch.float64: "fp64", torch.int64: "i64", torch.int32: "i32", torch.bool: "i1"}
SHARED = {80: 163 * 1024, 90: 227 * 1024}        # bytes of shared memory that a program may have


def _type(value):
    "The type of an argument, as Triton writes it; None for a constant."
    if isinstance(value, torch.Tensor): return "*" + TYPES[value.dtype]
    if isinstance(value, float): return "fp32"
    if isinstance(value, int) and not isinstance(value, bool) and value != 1: return "i32" if value < 2**31 else "i64"
    return None


def _specialisation(launch):
    "Kernel, signature and constants of a launch; a size of one is a constant to Triton."
    constant = {p.name for p in launch.kernel.params if p.is_constexpr}
    signature, constants = {}, {}
    for name in launch.kernel.arg_names:
        value = launch.arguments[name]
        kind = None if name in constant else _type(value)
        signature[name] = kind or "constexpr"
        if kind is None: constants[name] = value
    options = {name: value for name, value in launch.arguments.items() if name not in signature}        # num_warps
    return launch.kernel, signature, constants, options


FEW = ("SoftSort, to_dense", "SoftSort, log_prob", "NeuralSort, ", "ErrorFreeNetwork, P @ x", "SinkhornTopK", "lapsum_topk", "SigmoidRank, n = 20,000", "LaplaceRank, n = 200,000", "soft_rank:softsort, lists, n = 100,000", "soft_rank:sigmoid, lists, n = 100,000", "SinkhornSort, 10 rounds, P @ x", "neural_ndcg_loss")


def launches(every):
    "What all cases launch, or few of them, in single and double precision."
    from softsortlib import LapSum, NeuralSort, Permutahedron, SinkhornSort, SoftSort, SortingNetwork
    from softsortlib.selection import SinkhornTopK, SparseTopK
    from softsortlib.networks.swaps import SIGMOIDS
    for case in cases():
        if not every and not case.name.startswith(FEW): continue
        try: yield from both_ways(case.f, *case.inputs()).kernels
        except (RuntimeError, NotImplementedError): continue                 # it asks for a number
    s, x, tau = (pretend(2, *shape, dtype=torch.float64, grad=True) for shape in ((3000,), (3000, 5), ()))
    for op in (SoftSort(1.0), LapSum(1.0), NeuralSort(1.0), Permutahedron(1.0), SortingNetwork(swaps="error_free"), *(SortingNetwork(sigmoid=sigmoid) for sigmoid in SIGMOIDS)):
        for dtype in (torch.float32, torch.float64):
            def f(s, x, tau):
                if not isinstance(op, Permutahedron): op.tau = tau
                P = op(s)
                if isinstance(op, Permutahedron): return P
                return P @ x, P.mT @ x, P[..., :3, :] @ x
            yield from both_ways(f, *(a.detach().to(dtype).requires_grad_() for a in (s, x, tau))).kernels
    for op in (SinkhornSort(1.0, 1, iterations=2), SinkhornSort(1.0, iterations=2)): yield from both_ways(lambda s, x: (op(s) @ x, op(s).mT @ x), s, x).kernels
    for op in (SinkhornTopK(7, 1.0), SparseTopK(7, 1.0), SparseTopK(7, 1.0, p=4 / 3)): yield from both_ways(op, s).kernels


def specialisations(every):
    "Each different one that is launched, or of each kernel the one with the most constants."
    found = {}
    for launch in launches(every):
        what = _specialisation(launch)
        found.setdefault((launch.kernel.__name__, *map(str, what[1:])), what)
    if every: return list(found.values())
    one = {}
    for key, what in sorted(found.items(), key=lambda item: -len(item[0][2])): one.setdefault(key[0], what)
    return list(one.values())


def check(kernel, signature, constants, options, capability):
    "Compile, and say what was used; an `AssertionError` for what a GPU has not."
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    made = triton.compile(ASTSource(fn=kernel, signature=signature, constexprs=constants), target=GPUTarget("cuda", capability, 32), options=options)
    spilled = _spilled(made.asm["ptx"], capability)
    assert made.metadata.shared <= SHARED[capability] and spilled == 0, (kernel.__name__, constants, options, made.metadata.shared, spilled)
    return f"{kernel.__name__} {capability} {made.metadata.shared} bytes shared, {spilled} spilled"


def _spilled(ptx, capability):
    "Bytes that registers spill to memory, as the assembler that comes with Triton says."
    import triton
    assembler = Path(triton.__file__).parent / "backends/nvidia/bin/ptxas"
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "kernel.ptx").write_text(ptx)
        run = subprocess.run([assembler, "-v", f"--gpu-name=sm_{capability}{'a' if capability == 90 else ''}", "kernel.ptx", "-o", "kernel.cubin"], cwd=folder, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return sum(int(line.split("bytes spill stores")[0].split(",")[-1]) for line in run.stderr.splitlines() if "bytes spill stores" in line)


def jitted(module):
    "{name: function} of the functions of Triton that a module defines."
    from triton.runtime.jit import KernelInterface
    return {name: f for name, f in vars(module).items() if isinstance(f, KernelInterface) and f.fn.__module__ == module.__name__}


def kernels():
    "The names of all functions of Triton in the library that no other one calls: those that a host has to launch."
    import importlib
    import pkgutil

    import softsortlib
    names = [m.name for m in pkgutil.walk_packages(softsortlib.__path__, "softsortlib.") if m.name.endswith("_triton")]
    found = [(name, f) for module in names for name, f in jitted(importlib.import_module(module)).items()]      # two modules may have one name
    return {name for name, _ in found} - {called for _, f in found for called in f.fn.__code__.co_names}
