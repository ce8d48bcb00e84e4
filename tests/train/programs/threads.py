# Several threads train; a graph is built in one and run in another.
#
# SPDX-License-Identifier: MIT
import queue
import threading

import torch
import torch.nn.functional as F
from torch import nn

from . import held_bytes, program


def join(threads, seconds=120):
    for thread in threads:
        thread.join(seconds)
        assert not thread.is_alive(), "a thread hangs"


@program()
def four_models_in_four_threads(record):
    got = [None] * 4

    def train(i):
        generator = torch.Generator().manual_seed(i)
        ws = [(torch.randn(256, 256, generator=generator) / 16).requires_grad_() for _ in range(3)]
        for _ in range(8):
            h = torch.randn(128, 256, generator=generator)
            for w in ws:
                h = F.layer_norm(F.gelu(h @ w), (256,))
            h.pow(3).mean().backward()
        got[i] = [w.grad for w in ws]

    threads = [threading.Thread(target=train, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    join(threads)
    for i, grads in enumerate(got):
        record.gradients_of(f"thread {i}", grads)


def network():
    return nn.Sequential(nn.Linear(256, 256), nn.SiLU(), nn.LayerNorm(256), nn.Linear(256, 256))


@program()
def forward_here_backward_there(record):
    model, box = network(), {}
    parameters = list(model.parameters())

    def forward():
        torch.manual_seed(1)
        box["loss"] = model(torch.randn(128, 256)).pow(3).mean()

    thread = threading.Thread(target=forward)
    thread.start()
    join([thread])
    grads = [None, None]

    def backward(i):
        grads[i] = torch.autograd.grad(box["loss"], parameters, retain_graph=True)

    threads = [threading.Thread(target=backward, args=(i,)) for i in range(2)]
    for t in threads:
        t.start()
    join(threads)
    record.check(all(torch.equal(a, b) for a, b in zip(*grads)), "both have the same bits")
    record.gradients_of("gradient", grads[0])
    # The last reference dies in another thread.
    thread = threading.Thread(target=box.clear)
    thread.start()
    join([thread])
    record.check(held_bytes() == 0, f"{held_bytes()} bytes held")


@program()
def graphs_through_a_queue(record):
    """One thread builds graphs, another runs them, some are dropped on the way."""
    model, graphs, failed = network(), queue.Queue(3), []

    def backward():
        while (loss := graphs.get()) is not None:
            try:
                loss.backward()
            except Exception as error:
                failed.append(str(error))
            del loss

    thread = threading.Thread(target=backward)
    thread.start()
    for i in range(30):
        x = torch.randn(128, 256, generator=torch.Generator().manual_seed(i))
        loss = model(x).pow(3).mean()
        if i % 3:
            graphs.put(loss)
        del loss
    graphs.put(None)
    join([thread])
    record.fact("errors", failed)
    record.model("model", model)


@program()
def threads_come_and_go(record):
    """Two hundred threads that each train one step: nothing of a thread is left behind."""
    w = torch.randn(64, 256)
    total = torch.zeros(256, 256)
    lock = threading.Lock()

    def step():
        p = torch.ones(256, 256, requires_grad=True)
        F.gelu(w @ p).sum().backward()
        with lock:
            total.add_(p.grad)

    for _ in range(50):
        threads = [threading.Thread(target=step) for _ in range(4)]
        for t in threads:
            t.start()
        join(threads)
    record.gradient("gradient", total)
    record.check(held_bytes() == 0, f"{held_bytes()} bytes held")


@program()
def collector_in_another_thread(record):
    """Graphs in cycles are collected while another thread saves."""
    import gc

    stop = threading.Event()

    def collect():
        while not stop.is_set():
            gc.collect(0)

    thread = threading.Thread(target=collect)
    thread.start()
    x = torch.randn(128, 256, requires_grad=True)
    for i in range(40):
        y = (x * (1 + i / 40)).exp().softmax(-1)
        cycle = [y]
        cycle.append(cycle)
        if i % 2:
            y.square().sum().backward()
        del y, cycle
    stop.set()
    join([thread])
    record.gradient("gradient", x.grad)


@program()
def thread_ends_in_the_middle(record):
    """A thread dies of an exception in the middle of backward, and of one in forward."""
    model = network()
    seen = []
    hook, threading.excepthook = threading.excepthook, lambda args: seen.append(str(args.exc_value))

    def broken_backward():
        h = model(torch.ones(128, 256))
        h.register_hook(lambda g: 1 // 0)
        h.sum().backward()

    def broken_forward():
        h = model[:2](torch.ones(128, 256))
        raise ValueError(str(tuple(h.shape)))

    for target in (broken_backward, broken_forward):
        thread = threading.Thread(target=target)
        thread.start()
        join([thread])
    threading.excepthook = hook
    model(torch.randn(128, 256)).sum().backward()
    record.fact("seen", seen)
    record.model("model", model)
