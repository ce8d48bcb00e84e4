# More than one process: data workers, distributed training, fork in the middle of training.
#
# SPDX-License-Identifier: MIT
import os
import pickle
import select
import signal
import tempfile
import threading
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from . import add, as_array, program


def network():
    return nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 256))


class Differentiating(torch.utils.data.Dataset):
    """Its workers run autograd themselves."""

    def __len__(self):
        return 12

    def __getitem__(self, i):
        x = torch.randn(128, 256, generator=torch.Generator().manual_seed(i), requires_grad=True)
        (x * 2).tanh().sum().backward()
        return x.grad


def sum_of_batches():
    loader = torch.utils.data.DataLoader(Differentiating(), batch_size=3, num_workers=2,
                                         multiprocessing_context="fork", timeout=20)
    return sum(batch.sum(0) for batch in loader)


def ask_again_after_a_hang(ask, tries=3):
    """A fork while another thread trains can leave one of PyTorch's own locks locked in the child, also
    without libmesa: about one loader in 350 times out. That it happens each time is no such chance."""
    for left in reversed(range(tries)):
        try:
            return ask()
        except RuntimeError as error:
            if "timed out" not in str(error) or left == 0:
                raise


@program()
def workers_by_fork_while_a_thread_trains(record):
    stop, linear = threading.Event(), nn.Linear(256, 256)

    def train():
        while not stop.is_set():
            F.gelu(linear(torch.ones(128, 256))).sum().backward()

    thread = threading.Thread(target=train, daemon=True)
    thread.start()
    try:
        total = sum(ask_again_after_a_hang(sum_of_batches) for _ in range(3))
    finally:
        stop.set()
        thread.join(30)
    record.gradient("gradient", total)


def load_by(record, how):
    """Two epochs of batches made of gradients; each worker process loads libmesa anew, or has it."""
    model = network()
    loader = torch.utils.data.DataLoader(Differentiating(), batch_size=3, num_workers=2,
                                         multiprocessing_context=how, timeout=120,
                                         persistent_workers=True)
    for epoch in range(2):
        for i, batch in enumerate(loader):
            record.gradient(f"{epoch} {i} batch", batch)
            # Not what came out of the worker, which may differ: each run trains on the same data.
            data = torch.randn(384, 256, generator=torch.Generator().manual_seed(i))
            model(data).pow(3).mean().backward()
    record.model("model", model)


for how in ("fork", "spawn", "forkserver"):
    add(f"processes.workers_by_{how}", lambda record, how=how: load_by(record, how))


def in_child(work, tries=3):
    """What work() returns in a forked process. One that hangs is tried again: a lock of PyTorch's own
    that another thread has at the moment of the fork (RecordFunction's, oneDNN's, the generator's)
    stays taken, about once in 300 forks. libmesa's own are asked for in tests/unit/torch."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        try:
            with os.fdopen(write, "wb") as file:
                pickle.dump(work(), file)
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        hangs = not select.select([file], [], [], 30)[0]
        if hangs:
            os.kill(child, signal.SIGKILL)
        data = b"" if hangs else file.read()
    status = os.waitpid(child, 0)[1]
    if hangs and tries > 1:
        return in_child(work, tries - 1)
    assert os.waitstatus_to_exitcode(status) == 0, f"the child ended with {status}"
    return pickle.loads(data) if data else None


@program()
def fork_between_forward_and_backward(record):
    """Parent and child both run the graph backward that one of them has built."""
    model = network()
    loss = model(torch.randn(128, 256)).pow(3).mean()

    def backward():
        loss.backward()
        return [as_array(p.grad) for p in model.parameters()]

    child = in_child(backward)
    record.gradients_of("child", map(torch.from_numpy, child))
    loss.backward()
    record.model("parent", model)


@program()
def fork_and_train_on(record):
    """The child trains, drops graphs of the parent, and forks itself."""
    model = network()
    loss = model(torch.randn(128, 256)).pow(3).mean()
    data = torch.randn(128, 256)

    def grandchild():
        model.zero_grad()
        model(data).exp().mean().backward()
        return [as_array(p.grad) for p in model.parameters()]

    def child():
        nonlocal loss
        del loss
        model(data).pow(3).mean().backward()
        return [as_array(p.grad) for p in model.parameters()], in_child(grandchild)

    own, other = in_child(child)
    record.gradients_of("child", map(torch.from_numpy, own))
    record.gradients_of("grandchild", map(torch.from_numpy, other))
    loss.backward()
    record.model("parent", model)


@program()
def fork_while_threads_train(record):
    """A fork at any moment: no lock may be left taken in the child."""
    stop, model = threading.Event(), network()

    def train(mine):
        while not stop.is_set():
            mine(torch.ones(64, 256)).relu().sum().backward()  # a mask: asks who unpacks it

    threads = [threading.Thread(target=train, args=(network(),), daemon=True) for _ in range(2)]
    data = torch.randn(64, 256)
    for thread in threads:
        thread.start()

    def child():
        model(data).relu().pow(3).mean().backward()
        return [as_array(p.grad) for p in model.parameters()]

    try:
        for i in range(10):
            record.gradients_of(f"child {i}", map(torch.from_numpy, in_child(child)))
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)


def spawned(rank, work, folder, more):
    """One process of a distributed run: its results go into a file of its own."""
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    try:
        torch.save(work(rank, *more), f"{folder}/{rank}")
    finally:
        dist.destroy_process_group()


def two_processes(work, *more):
    """What work(rank, ...) returns in each of two processes."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(spawned, (work, folder, more), nprocs=2)
        return [torch.load(f"{folder}/{rank}") for rank in range(2)]


def ddp(rank):
    torch.manual_seed(0)
    model = network()
    parallel = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    torch.manual_seed(rank)
    with parallel.no_sync():
        parallel(torch.randn(128, 256)).pow(3).mean().backward()
    parallel(torch.randn(128, 256)).pow(3).mean().backward()
    return [p.grad.clone() for p in model.parameters()]


def fsdp2(rank):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (2,))
    model = nn.Sequential(network(), nn.ReLU(), network())
    fully_shard(model[0], mesh=mesh)
    fully_shard(model[2], mesh=mesh)
    fully_shard(model, mesh=mesh)
    torch.manual_seed(rank)
    for _ in range(2):
        model(torch.randn(128, 256)).pow(3).mean().backward()
    return [p.grad.full_tensor() for p in model.parameters()]


def tensor_parallel(rank):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (ColwiseParallel, RowwiseParallel,
                                                   parallelize_module)

    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (2,))
    model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    x = torch.randn(128, 256, requires_grad=True)
    model(x).pow(3).mean().backward()
    return [p.grad.full_tensor() for p in model.parameters()] + [x.grad]


def everything_distributed(rank):
    return {work.__name__: work(rank) for work in (ddp, fsdp2, tensor_parallel)}


@program()
def two_distributed_processes(record):
    """One start for all three, as it is most of the time that this takes."""
    for rank, works in enumerate(two_processes(everything_distributed)):
        for name, grads in works.items():
            record.gradients_of(f"{name}, rank {rank}", grads)


@program()
def ddp_in_one_process(record):
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=0, world_size=1)
        model = network()
        parallel = nn.parallel.DistributedDataParallel(model, static_graph=True)
        for _ in range(2):
            parallel(torch.randn(128, 256)).pow(3).mean().backward()
        record.model("model", model)
        dist.destroy_process_group()


def make_tensor(queue):
    torch.set_num_threads(1)
    x = torch.randn(256, 256, generator=torch.Generator().manual_seed(1)).share_memory_()
    queue.put(x)
    queue.close()
    queue.join_thread()
    while x[0, 0] != 7:  # the parent says that it has the tensor by writing into it
        time.sleep(0.01)


@program()
def tensor_from_another_process(record):
    """Saved in one process, owned by another that ends before backward."""
    context = torch.multiprocessing.get_context("spawn")
    queue = context.Queue()
    child = context.Process(target=make_tensor, args=(queue,), daemon=True)
    child.start()
    x = queue.get(timeout=120)
    w = torch.randn(256, 256, requires_grad=True)
    y = F.gelu(x @ w / 16)
    before = x.clone()
    x.view(-1)[0:1].data.fill_(7)
    child.join(60)
    x.data.copy_(before)
    y.sum().backward()
    record.gradient("gradient", w.grad)
