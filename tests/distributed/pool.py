"""Processes that stay: four workers, and the groups of the first one, two, three and four of them."""
import datetime
import os
import tempfile
import traceback
import warnings

TIMEOUT = 30


def serve(rank, path, requests, replies):
    "Answer calls of functions of cases.py until told to stop."
    warnings.simplefilter("ignore")
    os.environ.update(OMP_NUM_THREADS="1", NUMBA_NUM_THREADS="1")
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=4, timeout=datetime.timedelta(seconds=TIMEOUT))
    groups = [dist.new_group(list(range(P)), timeout=datetime.timedelta(seconds=TIMEOUT)) for P in (1, 2, 3, 4)]
    import cases
    while True:
        call = requests.get()
        if call is None: break
        name, P, kwargs = call
        try: replies.put((rank, getattr(cases, name)(groups[P - 1], dist.get_rank(groups[P - 1]), P, **kwargs)))
        except Exception: replies.put((rank, traceback.format_exc()))
    dist.destroy_process_group()


class Pool:
    def __init__(self):
        import torch.multiprocessing as mp
        context = mp.get_context("spawn")
        self.path = tempfile.mktemp()
        self.requests = [context.Queue() for _ in range(4)]
        self.replies = context.Queue()
        self.processes = [context.Process(target=serve, args=(rank, self.path, queue, self.replies), daemon=True) for rank, queue in enumerate(self.requests)]
        for process in self.processes: process.start()

    def __call__(self, case, P, **kwargs):
        "What `cases.case` returned on each of P processes, or the text of its error."
        for queue in self.requests[:P]: queue.put((case, P, kwargs))
        got = dict(self.replies.get(timeout=120) for _ in range(P))
        return [got[rank] for rank in range(P)]

    def close(self):
        for queue in self.requests: queue.put(None)
        for process in self.processes: process.join(10)
        for process in self.processes:
            if process.is_alive(): process.kill()
