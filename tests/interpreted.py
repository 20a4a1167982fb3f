"""Programs in Triton's interpreter: each in a fork of one process, which has imported what all of them import.

Before every call of a function the interpreter asks all of `triton.language` what it has to replace there, and for every value it writes
down a table of numpy's types, and checks its shape: more than half of the time of a small kernel. Here it asks once. What it computes stays the same bits.
A scan it takes through one element at a time; here whole blocks are combined in a tree, as on a GPU, where a combination that is not
associative shows. What the interpreter by itself computes differs from that by rounding (tests/engine/test_triton.py).
"""
import atexit
import json
import os
import subprocess
import sys
import tempfile
from functools import lru_cache
from pathlib import Path


def scan_in_a_tree(self, given):
    "In place of the interpreter's `generic_scan`: in each step all elements hear what stands 1, 2, 4, ... places before them."
    import numpy as np
    parts, shape = [a.handle.data for a in given], given[0].handle.data.shape
    place, step = np.arange(shape[self.axis]).reshape([-1 if k == self.axis else 1 for k in range(len(shape))]), 1
    def tensors(parts): return [self.to_tensor(part, a.dtype) for part, a in zip(parts, given)]
    while step < shape[self.axis]:
        before = [np.where(place < step, part, np.roll(part, step, self.axis)) for part in parts]
        found = self.combine_fn.fn(*tensors(before), *tensors(parts))
        found = found if isinstance(found, tuple) else (found,)
        parts = [np.where(place < step, part, new.handle.data) for part, new in zip(parts, found)]
        step *= 2
    return tensors(parts)


class Kept:
    "What the interpreter has replaced stays replaced: nothing but kernels asks triton.language in such a process."
    def restore(self): pass


def know_shapes(core):
    "Check and write out a shape once, and not for every value that has it: a block of numbers knows what was found for the first of its type and shape."
    new_block, new_tensor, known = core.block_type.__init__, core.tensor.__init__, {}
    single = (), core.constexpr(1)
    def block(self, element_ty, shape):
        if type(element_ty) is not core.dtype: return new_block(self, element_ty, shape)
        key = element_ty.name, *[s.value if type(s) is core.constexpr else s for s in shape]
        if key not in known:
            new_block(self, element_ty, shape)
            known[key] = {**self.__dict__, "of_tensors": []}
        self.__dict__.update(known[key])
    def tensor(self, handle, type):
        found = single if type.__class__ is core.dtype else type.__dict__.get("of_tensors")
        if not found:
            new_tensor(self, handle, type)
            if found is not None: found += self.shape, self.numel
            return
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = found
    core.block_type.__init__, core.tensor.__init__ = block, tensor


def ask_once():
    "Let the interpreter of this process remember what it has replaced, and numpy's types, and scan in a tree."
    import triton.language as tl
    import triton.runtime.interpreter as interpreter
    patch, numpy_type, patched, types, kept = interpreter._patch_lang, interpreter._get_np_dtype, set(), {}, Kept()
    def patch_once(fn):
        if id(fn.__globals__) not in patched: patch(fn)
        patched.add(id(fn.__globals__))
        return kept
    def known_type(t):
        if isinstance(t.scalar, tl.pointer_type): return numpy_type(t)
        if t.scalar.name not in types: types[t.scalar.name] = numpy_type(t)
        return types[t.scalar.name]
    interpreter._patch_lang, interpreter._get_np_dtype = patch_once, known_type
    know_shapes(tl.core)
    interpreter.ScanOps.generic_scan = scan_in_a_tree
    # with debug=True it would say that a sum overflows; without, it adds everything twice and says nothing
    object.__setattr__(interpreter.interpreter_builder.options, "sanitize_overflow", False)


SERVER = """
import json, os, sys, traceback
import torch, torch.testing, softsortlib
import triton.runtime.interpreter
from interpreted import ask_once
if sys.argv[1] == "quick": ask_once()
for line in sys.stdin:
    program, out, err = json.loads(line)
    pid = os.fork()
    if not pid:
        code = 1
        try:
            os.dup2(os.open(out, os.O_WRONLY), 1)
            os.dup2(os.open(err, os.O_WRONLY), 2)
            exec(compile(program, "program", "exec"), {"__name__": "__main__"})
            code = 0
        except BaseException: traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


@lru_cache(None)
def server(how):
    "The process that forks."
    path = os.pathsep.join(filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH"))))
    env = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    process = subprocess.Popen([sys.executable, "-W", "ignore", "-c", SERVER, how], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(process.communicate)        # it ends with its input
    return process


def interpret(program, how="quick"):
    "Run a program with the interpreter in place of a GPU: its exit status, and what it prints. \"own\" leaves the interpreter as it is."
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        for path in (out, err): path.touch()
        print(json.dumps([program, str(out), str(err)]), file=server(how).stdin, flush=True)
        return subprocess.CompletedProcess(program, int(server(how).stdout.readline()), out.read_text(), err.read_text())
