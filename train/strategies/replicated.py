"""``ddp``: every process holds the whole network; gradients are averaged in buckets while backward still runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from train.strategies.base import Replica


class Replicated(Replica):
    """`DistributedDataParallel`."""

    training_module: DistributedDataParallel

    def prepare(self, model: nn.Module) -> nn.Module:
        """Let batch norm see all ranks, if asked."""
        return nn.SyncBatchNorm.convert_sync_batchnorm(model) if self.options.sync_bn else model

    def wrap(self, module: nn.Module) -> nn.Module:
        """Average gradients in buckets, in bfloat16 if asked."""
        wrapped = DistributedDataParallel(
            module,
            device_ids=[self.device.index] if self.device.type == "cuda" else None,
            bucket_cap_mb=self.options.bucket_mb,
            gradient_as_bucket_view=True,
            static_graph=self.options.static_graph,
        )
        if self.options.grad_compression == "bf16":
            from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

            wrapped.register_comm_hook(None, bf16_compress_hook)
        return wrapped

    @contextmanager
    def micro_batch(self, *, last: bool) -> Iterator[None]:
        """Communicate in the last micro-batch only."""
        with nullcontext() if last else self.training_module.no_sync():
            yield
