#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One of two ranks of an expert-parallel mixture-of-experts training job: plain PyTorch, no knowledge of any stash.

Started twice, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set. Each layer has a dense part, whose weights both
ranks hold, and experts, of which each rank holds half. Tokens go to the experts and back by an all-to-all of a fixed
size, a buffer of `capacity` times the balanced rows for each pair of ranks, on a communication stream, while the
compute stream runs half of the shared expert; backward does the reverse, and gradients of dense weights are summed
over the ranks on the communication stream as they come. The padded expert part is inside the NVTX range "moe_experts",
every step inside "step<N>".

How many rows go where is drawn on the host, by both ranks alike, so that padding can be left unwritten (--padding
empty) without a look at the device; which tokens they are of and which expert takes them is decided on the device. What
does not fit into the capacity is dropped. Nothing waits for the device in a step, and after the first --synced steps
nothing does between steps either. No kernel with atomics: rows move by gathers, forward and backward.

Prints one JSON object a step and one at the end; loss and grad_norm are the same from run to run.
"""
import argparse
import datetime
import faulthandler
import json
import math
import os
import signal
import statistics
import sys
import threading

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
p.add_argument("--steps", type=int, default=14)
p.add_argument("--layers", type=int, default=6)
p.add_argument("--tokens", type=int, default=8192, help="of each rank")
p.add_argument("--hidden", type=int, default=2048)
p.add_argument("--ffn", type=int, default=1024, help="width of an expert")
p.add_argument("--shared", type=int, default=2048, help="width of each half of the shared expert")
p.add_argument("--experts", type=int, default=16, help="of both ranks together")
p.add_argument("--topk", type=int, default=4)
p.add_argument("--capacity", type=float, default=2.0, help="rows of a buffer for a pair of ranks, over balanced ones")
p.add_argument("--padding", choices=["empty", "zeros"], default="empty", help="what padded rows hold")
p.add_argument("--skew", type=float, default=4.0, help="rows that rank 0's experts get for one of rank 1's")
p.add_argument("--spread", type=float, default=0.03, help="relative spread of the rows that rank 0's experts get")
p.add_argument("--send-from-range", action="store_true", help="what goes back is made in the range as well, so that "
               "the communication stream reads memory of the range's")
p.add_argument("--synced", type=int, default=-1, help="steps after which the host waits; -1: the first third")
p.add_argument("--lr", type=float, default=1.0)
p.add_argument("--seed", type=int, default=0)
p.add_argument("--wait", type=int, default=45, help="seconds after which a collective has hung")
a = p.parse_args()

faulthandler.enable()  # NCCL's watchdog ends a rank by abort
faulthandler.register(signal.SIGUSR1, all_threads=True)  # "where are you?", asked before a job that hangs is killed
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
if WORLD != 2 or torch.cuda.device_count() < 2:
    sys.exit(f"two_ranks.py: {WORLD} ranks, {torch.cuda.device_count()} GPUs; it takes two of each")
torch.cuda.set_device(RANK)
dev = torch.device("cuda", RANK)
torch.use_deterministic_algorithms(True)
torch.utils.deterministic.fill_uninitialized_memory = False  # padding is to be left alone

T, H, I, E, K = a.tokens, a.hidden, a.ffn, a.experts, a.topk
PAIRS = T * K  # pair k * T + t: the k-th choice of token t
CAP = int(PAIRS / WORLD * a.capacity)  # rows from one rank to another
ROWS = WORLD * CAP  # of a rank's buffer: that of rank r begins at row r * CAP
LOCAL = E // WORLD
SHARE = a.skew / (1 + a.skew)
STRIDE = 7919  # pairs are dealt out in steps of this
if E % WORLD or math.gcd(STRIDE, PAIRS) != 1:
    sys.exit(f"two_ranks.py: --experts is to be even, and --tokens times --topk no multiple of {STRIDE}")
INVERSE = pow(STRIDE, -1, PAIRS)

comm = torch.cuda.Stream(priority=-1)
every_pair = torch.arange(PAIRS, device=dev)
every_expert = torch.arange(E, device=dev)
host_rng = torch.Generator().manual_seed(a.seed + 7)  # the same on both ranks
received = []  # rows that came in, by layer


class Exchange:
    """One all-to-all: begun on the communication stream, behind what the compute stream has done so far, and awaited by
    the compute stream. What it reads and writes is of the compute stream, and is held until that has waited."""

    def begin(self, pairs):
        """pairs: of a buffer to read and one to write."""
        comm.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(comm):
            for send, receive in pairs:
                dist.all_to_all_single(receive, send)
            self.done = comm.record_event()
        self.held = pairs

    def end(self):
        torch.cuda.current_stream().wait_event(self.done)
        self.held = None


class Begin(torch.autograd.Function):
    """Rows to the other rank and from it, there only after End. numbers: sent along, or None. In backward the second
    half of the reverse."""

    @staticmethod
    def forward(ctx, send, exchange, numbers):
        ctx.exchange = exchange
        receive = torch.empty_like(send)
        pairs = [(send, receive)]
        if numbers is not None:
            exchange.numbers = torch.empty_like(numbers)
            pairs.insert(0, (numbers, exchange.numbers))
        exchange.begin(pairs)
        return receive

    @staticmethod
    def backward(ctx, grad):
        ctx.exchange.end()
        return grad, None, None


class End(torch.autograd.Function):
    @staticmethod
    def forward(ctx, receive, exchange):
        ctx.exchange = exchange
        exchange.end()
        return receive.view_as(receive)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        back = torch.empty_like(grad)
        ctx.exchange.begin([(grad, back)])
        return back, None


def gathered(rows, pieces):
    """A padded buffer; pieces: of it, where each begins and which of the rows it holds."""
    make = torch.zeros if a.padding == "zeros" else torch.empty
    buffer = make(ROWS, H, device=dev, dtype=rows.dtype)
    for begin, index in pieces:
        torch.index_select(rows, 0, index, out=buffer[begin:begin + index.numel()])
    return buffer


def pieces_of(index, counts):
    """The index's parts, one a rank, and where in a buffer each rank's rows begin."""
    return [(rank * CAP, part) for rank, part in enumerate(index[:sum(counts)].split(counts))]


class Moved(torch.autograd.Function):
    """A buffer's rows into another: there and back are the pieces of a permutation and of its inverse."""

    @staticmethod
    def forward(ctx, rows, there, back):
        ctx.back = back
        return gathered(rows, there)

    @staticmethod
    def backward(ctx, grad):
        return gathered(grad, ctx.back), None, None


class Dealt(torch.autograd.Function):
    """Tokens into the buffer to be sent, a row for each pair that is kept."""

    @staticmethod
    def forward(ctx, tokens, route):
        ctx.route = route
        return gathered(tokens, route.tokens)

    @staticmethod
    def backward(ctx, grad):
        return ctx.route.by_pair(grad).sum(0), None


class Combined(torch.autograd.Function):
    """Tokens from the rows that came back, weighted."""

    @staticmethod
    def forward(ctx, rows, weight, route):
        each = route.by_pair(rows)
        ctx.route = route
        ctx.save_for_backward(each, weight)
        return (each * weight.unsqueeze(-1)).sum(0)

    @staticmethod
    def backward(ctx, grad):
        each, weight = ctx.saved_tensors
        weighted = (weight.unsqueeze(-1) * grad).view(PAIRS, H)
        return gathered(weighted, ctx.route.pairs), (each * grad).sum(-1), None


class Route:
    """Where one layer's pairs go: of this rank's own, and what it makes of those that come in."""

    def __init__(self, prob):
        counts, shift = self.draw()
        own = counts[RANK]
        place = (every_pair - shift) * INVERSE % PAIRS  # of each pair, in the order they are dealt out
        pair = (every_pair * STRIDE + shift) % PAIRS  # in each place
        second = place >= own[0]  # goes to rank 1
        kept = place < sum(own)
        self.kept = kept.view(K, T, 1)
        self.row = torch.where(kept, torch.where(second, place - own[0] + CAP, place), 0)
        self.pairs = pieces_of(pair, own)
        self.tokens = pieces_of(pair % T, own)
        expert = (prob.argmax(-1).repeat(K) + place) % LOCAL
        self.numbers = torch.zeros(ROWS, device=dev, dtype=expert.dtype)
        for begin, index in self.pairs:
            torch.index_select(expert, 0, index, out=self.numbers[begin:begin + index.numel()])
        chosen = (expert + LOCAL * second).view(K, T, 1) == every_expert
        self.weight = torch.where(chosen, prob, 0.0).sum(-1).to(torch.bfloat16)
        self.incoming = [from_rank[RANK] for from_rank in counts]

    @staticmethod
    def draw():
        """Rows from each rank to each; where dealing begins."""
        counts = []
        for _ in range(WORLD):
            off = max(-2.0, min(2.0, torch.randn(1, generator=host_rng).item()))
            first = max(1, min(PAIRS - 1, int(PAIRS * SHARE * (1 + a.spread * off))))
            counts.append([min(first, CAP), min(PAIRS - first, CAP)])
        return counts, int(torch.randint(PAIRS, (1,), generator=host_rng))

    def by_pair(self, rows):
        """[K, T, H]: each pair's row of a buffer, zeros for a pair that was dropped."""
        return torch.where(self.kept, rows.index_select(0, self.row).view(K, T, H), 0)

    def sort(self, numbers):
        """Rows that came in, by expert: pieces to gather them by and to undo it, and where each expert's end."""
        first, n = self.incoming[0], sum(self.incoming)
        expert = torch.cat([numbers[:first], numbers[CAP:CAP + n - first]])
        order = expert.argsort(stable=True)
        there = [(0, torch.where(order < first, order, order - first + CAP))]
        back = pieces_of(order.argsort(stable=True), self.incoming)
        offs = (expert <= every_expert[:LOCAL].unsqueeze(1)).sum(1, dtype=torch.int32)
        received.append(n)
        return there, back, offs


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = dense(2 * a.shared, H)
        self.down = dense(H, a.shared)

    def forward(self, x):
        g, u = F.linear(x, self.up).chunk(2, -1)
        return F.linear(F.silu(g) * u, self.down)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix, self.gate = dense(H, H), dense(E, H)
        self.first, self.second = Shared(), Shared()
        self.w1, self.w2 = own(LOCAL, H, 2 * I), own(LOCAL, I, H)

    def experts(self, rows, there, back, offs):
        torch.cuda.nvtx.range_push("moe_experts")
        xs = Moved.apply(rows, there, back)
        h = F.grouped_mm(xs, self.w1, offs=offs)
        g, u = h.chunk(2, -1)
        o = F.grouped_mm(F.silu(g) * u, self.w2, offs=offs)
        if a.send_from_range:
            o = Moved.apply(o, back, there)
        torch.cuda.nvtx.range_pop()
        return o if a.send_from_range else Moved.apply(o, back, there)

    def forward(self, x):
        x = x + F.linear(F.rms_norm(x, (H,)), self.mix)
        y = F.rms_norm(x, (H,))
        route = Route(F.linear(y, self.gate).float().softmax(-1))
        exchange = Exchange()
        rows = Begin.apply(Dealt.apply(y, route), exchange, route.numbers)
        s = self.first(y)
        rows = End.apply(rows, exchange)
        rows = self.experts(rows, *route.sort(exchange.numbers))
        exchange = Exchange()
        rows = Begin.apply(rows, exchange, None)
        s = s + self.second(y)
        rows = End.apply(rows, exchange)
        return x + s + Combined.apply(rows, route.weight, route)


def parameter(rng, *shape):
    return nn.Parameter(torch.randn(shape, device=dev, dtype=torch.bfloat16, generator=rng) * 0.02)


def summed(weight):
    """The gradient has just been made, on the compute stream; the optimizer waits for the communication stream."""
    comm.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(comm):
        dist.all_reduce(weight.grad)


def dense(*shape):
    """The same on both ranks."""
    weight = parameter(dense_rng, *shape)
    weight.register_post_accumulate_grad_hook(summed)
    return weight


def own(*shape):
    return parameter(own_rng, *shape)


class Used(threading.Thread):
    """The most device memory that the driver reported since it was asked last, sampled every 2 ms."""

    def __init__(self):
        super().__init__(daemon=True)
        self.over = threading.Event()
        self.lock = threading.Lock()
        self.least = 1 << 62
        self.start()

    def sample(self):
        free, self.size = torch.cuda.mem_get_info(dev)
        self.least = min(self.least, free)

    def run(self):
        torch.cuda.set_device(RANK)
        while not self.over.wait(0.002):
            with self.lock:
                self.sample()

    def most_mib(self):
        with self.lock:
            self.sample()
            most, self.least = self.size - self.least, 1 << 62
        return round(most / 2**20)


dist.init_process_group("nccl", timeout=datetime.timedelta(seconds=a.wait))
dist.all_reduce(torch.zeros(1, device=dev))  # makes the communicator
dense_rng = torch.Generator(device=dev).manual_seed(a.seed)
own_rng = torch.Generator(device=dev).manual_seed(a.seed + 1000 + RANK)
data_rng = torch.Generator(device=dev).manual_seed(a.seed + 2000 + RANK)
model = nn.Sequential(*[Layer() for _ in range(a.layers)])
opt = torch.optim.SGD(model.parameters(), lr=a.lr)
used = Used()
synced = a.synced if a.synced >= 0 else a.steps // 3
unsaid, ms, most = [], [], []
for step in range(a.steps):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    torch.cuda.nvtx.range_push(f"step{step}")
    x = torch.randn(T, H, device=dev, dtype=torch.bfloat16, generator=data_rng)
    loss = model(x).float().pow(2).mean() / WORLD
    loss.backward()
    torch.cuda.current_stream().wait_stream(comm)
    norm = torch.stack([q.grad.float().norm() for q in model.parameters()]).norm()
    opt.step()
    opt.zero_grad(set_to_none=True)
    torch.cuda.nvtx.range_pop()
    end.record()
    most.append(used.most_mib())
    unsaid.append((step, loss.detach(), norm, begin, end))
    del x, loss, norm
    print(f"two_ranks.py: rank {RANK}: step {step} is enqueued", file=sys.stderr, flush=True)
    if synced <= step < a.steps - 1:
        continue
    torch.cuda.synchronize()
    for i, l, n, b, e in unsaid:
        ms.append(b.elapsed_time(e))
        print(json.dumps({"step": i, "loss": float(l).hex(), "grad_norm": float(n).hex(), "ms": round(ms[-1], 2),
                          "used_mib": most[i]}), flush=True)
    last = float(l)
    unsaid.clear()
used.over.set()
used.join()
rows = [sum(received[i:i + a.layers]) for i in range(0, len(received), a.layers)]
ROW_BYTES = 2 * (H + 4 * I)  # saved of a row: what goes in, both of silu's factors, its value, their product
print(json.dumps({
    "rank": RANK, "capacity": a.capacity, "padding": a.padding, "skew": a.skew,
    "median_ms": round(statistics.median(ms[len(ms) // 3:]), 2), "used_mib": max(most[len(most) // 3:]),
    "rows_a_layer": round(statistics.mean(received)), "capacity_rows": ROWS,
    "valid_mib": round(max(rows) * ROW_BYTES / 2**20), "padded_mib": round(a.layers * ROWS * ROW_BYTES / 2**20),
    "loss": last,
}), flush=True)
dist.destroy_process_group()
