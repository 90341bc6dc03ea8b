#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's DistributedDataParallel over Gloo for workers_bench (workers.py): train, ddp, and
alone, which is the same step without the reduction."""

import os
import sys

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["GLOO_SOCKET_IFNAME"] = "lo"
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import workers  # noqa: E402

rank = int(sys.argv[1]) if len(sys.argv) > 1 else 0
os.environ.update(MASTER_ADDR="127.0.0.1", RANK=str(rank), WORLD_SIZE=str(workers.WORKERS))
if rank == 0:
    os.environ["MASTER_PORT"] = str(workers.free_port())


class Layers(torch.nn.Module):
    def __init__(self, weights):
        super().__init__()
        self.weights = torch.nn.ParameterList(torch.from_numpy(weight) for weight in weights)

    def forward(self, x):
        for i in range(0, len(self.weights), 2):
            x = torch.nn.functional.linear(x if i == 0 else x.relu(), self.weights[i], self.weights[i + 1])
        return x


def make(problem):
    if not dist.is_initialized():
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
    x, y = torch.from_numpy(problem.x), torch.from_numpy(problem.y)
    net = torch.nn.parallel.DistributedDataParallel(Layers(problem.weights), gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(net.parameters(), workers.RATE)

    def step():
        optimizer.zero_grad(set_to_none=False)
        torch.nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()

    def alone():
        with net.no_sync():
            step()

    def total():
        with torch.no_grad():
            return sum(weight.double().abs().sum().item() for weight in net.parameters())

    return {"train": step, "ddp": step, "alone": alone}, total


workers.serve(rank, make)
