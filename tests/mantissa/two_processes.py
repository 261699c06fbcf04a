"""Trains two processes on the CPU (gloo) with a monitor: under DDP, then under FSDP, then under fully_shard.

    python -m torch.distributed.run --nproc-per-node 2 tests/mantissa/two_processes.py FOLDER

FOLDER/ddp, FOLDER/fsdp and FOLDER/fully_shard get the weights before and after as whole checkpoints, the lines of the monitor, and the
last look of each process.
"""

import sys
from pathlib import Path
from typing import Any, cast

import torch
from torch import distributed, nn
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM

from analyzers.language_models.samples import sample_folder
from mantissa.training import UpdateMonitor

STEPS = 4


def wrapped(model: nn.Module, kind: str) -> nn.Module:
    """Wrap the model for training."""
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    if kind == "fsdp":
        from torch.distributed.fsdp import FullyShardedDataParallel

        return FullyShardedDataParallel(model, use_orig_params=True, device_id=torch.device("cpu"))
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    for layer in cast(Any, model).model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def save(model: nn.Module, outer: nn.Module, kind: str, folder: Path) -> None:
    """Write the whole weights, in which every process takes part."""
    if kind == "fsdp":
        from torch.distributed.fsdp import FullyShardedDataParallel

        with FullyShardedDataParallel.summon_full_params(outer, writeback=False):
            state = {name.replace("_fsdp_wrapped_module.", ""): value.detach().clone() for name, value in outer.named_parameters()}
    else:
        state = {name: value.full_tensor() if isinstance(value, DTensor) else value for name, value in model.state_dict().items()}
    if distributed.get_rank() == 0:
        cast(Any, model).save_pretrained(folder, state_dict={name: value.contiguous() for name, value in state.items()})


def train(kind: str, folder: Path) -> None:
    """Train, look, save."""
    folder.mkdir(exist_ok=True)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(sample_folder("tiny-bf16"), dtype=torch.float32)
    model.config.tie_word_embeddings = True
    outer = wrapped(model, kind)
    save(model, outer, kind, folder / "before")
    optimizer = torch.optim.AdamW(outer.parameters(), lr=1e-4)
    with UpdateMonitor(outer, optimizer, every=STEPS, mode="exact", path=folder / "looks.jsonl") as monitor:
        generator = torch.Generator().manual_seed(distributed.get_rank())
        for _ in range(STEPS):
            token_ids = torch.randint(0, 512, (2, 16), generator=generator)
            outer(input_ids=token_ids, labels=token_ids).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            look = monitor.step()
        assert look is not None
        (folder / f"look-{distributed.get_rank()}.json").write_text(look.model_dump_json())
    save(model, outer, kind, folder / "after")
    distributed.barrier()


if __name__ == "__main__":
    distributed.init_process_group("gloo")
    for each in ("ddp", "fsdp", "fully_shard"):
        train(each, Path(sys.argv[1]) / each)
    distributed.destroy_process_group()
