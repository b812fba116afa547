"""Each rank builds the full state on the CPU before rank 0 saves it."""

import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def full_state(model, optim):
    return {
        "model": {name: value.detach().cpu().clone() for name, value in model.state_dict().items()},
        "optim": {
            i: {k: v.clone() if torch.is_tensor(v) else v for k, v in s.items()}
            for i, s in enumerate(optim.state.values())
        },
    }


def worker(rank, world):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29641")
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(2048, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 2048))
    optim = torch.optim.Adam(model.parameters(), lr=1e-4)
    for step in range(60):
        loss = model(torch.randn(8, 2048)).pow(2).mean()
        optim.zero_grad()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
        optim.step()
        if step and step % 40 == 0:
            state = full_state(model, optim)
            dist.barrier()
            if rank == 0:
                torch.save(state, "full.pt")
            del state
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(worker, args=(2,), nprocs=2)
