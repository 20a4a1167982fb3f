"""What every third notebook imports and takes a second: the process that fresh.py forks for each notebook has it already. What torch says of itself meanwhile is no notebook's fault."""
import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch._decomp.decompositions_for_jvp  # noqa: F401
    import torch._dynamo  # noqa: F401
