"""One Lightning strategy over the mesh (pipeline, replicate, shard, context, tensor).

The trainer keeps its automatic optimization, so ordinary callbacks work. The module holds its network as `model`, and has
its loss computed and its gradients clipped by this strategy (`compute_loss`, `clip_gradients`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import ParallelStrategy
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.experimental import implicit_replication
from torch.distributed.tensor.parallel import loss_parallel

from ..models import (
    InitialValues,
    LossSettings,
    WithAuxiliary,
    join_auxiliary,
    lm_loss,
    split_auxiliary,
    token_loss,
)
from ..planning import Mesh
from ..tokens import Batch
from . import state
from .apply import Settings, parallelize
from .by_name import StateByName
from .clip import clip_gradients
from .context import Context, join_context
from .lightning_internals import (
    ends_step,
    forget_module,
    is_fitting,
    reduce_over_ranks,
    set_module_device,
    set_rank_zero,
)
from .pipeline import Pipeline, StageParts, TiedWeights
from .scoring import SharedScores


class MeshStrategy(StateByName, ParallelStrategy):
    """FSDP, HSDP, context, tensor and pipeline parallelism and their products.

    A model on the meta device has `initial_values(name, shape)`, of which each rank keeps its part.
    """

    def __init__(self, mesh: Mesh, settings: Settings) -> None:
        super().__init__()
        self.spec = mesh
        self.settings = settings
        self.pipeline: Pipeline | None = None
        self.context: Context | None = None
        self._parts: list[nn.Module] = []
        self._same: dict[str, str] = {}  # tied names
        self._tied: list[TiedWeights] = []
        self._contexts = ExitStack()
        self._loss: Callable[..., Tensor] = token_loss
        self._loss_settings = LossSettings()

    # What Lightning requires of a strategy with several processes.

    @property
    def is_distributed(self) -> bool:
        return True

    @property
    def root_device(self) -> torch.device:
        assert self.parallel_devices is not None
        return self.parallel_devices[self.local_rank]

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        replicate, shard = (self.mesh.get_local_rank(name) for name in ("replicate", "shard"))
        return {"num_replicas": self.spec.data, "rank": replicate * self.spec.shard + shard // self.spec.context}

    def setup_environment(self) -> None:
        super().setup_environment()
        set_rank_zero(self.global_rank)
        spec, settings = self.spec, self.settings
        degrees = spec.device_degrees
        self.mesh: DeviceMesh = init_device_mesh(
            self.root_device.type, tuple(degrees.values()), mesh_dim_names=tuple(degrees)
        )
        if spec.context > 1:
            self.context = join_context(self.mesh, spec.context, settings.context_method, settings.sequence_length)

    def model_to_device(self) -> None:
        return  # each part was created on its device

    def barrier(self, name: str | None = None) -> None:
        dist.barrier()

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        told = [obj]
        dist.broadcast_object_list(told, src, device=torch.device("cpu"))
        return told[0]

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        return reduce_over_ranks(tensor, group, reduce_op) if isinstance(tensor, Tensor) else tensor

    def teardown(self) -> None:
        self._contexts.close()
        module = self.lightning_module
        if module is not None and any(weight.is_meta for weight in module.parameters()):
            # An error occurred before the weights existed. Lightning would move them, and hide it by another error.
            forget_module(self)
        super().teardown()

    # From a whole model to this rank's parts.

    def setup(self, trainer: pl.Trainer) -> None:
        assert self.accelerator is not None
        self.accelerator.setup(trainer)
        self._build(self._module)
        if self.spec.tensor > 1:
            # Logits stay sharded over the vocabulary through the loss and its gradient, together with plain tensors.
            self._contexts.enter_context(loss_parallel())
            self._contexts.enter_context(implicit_replication())
        if is_fitting(trainer):
            self.setup_optimizers(trainer)
        self.setup_precision_plugin()

    @property
    def _module(self) -> Any:
        assert self.lightning_module is not None
        return self.lightning_module

    def _build(self, module: Any) -> None:
        whole: nn.Module = module.model
        self._same = state.tied_names(whole)
        self._loss_settings = getattr(whole, "loss_settings", self._loss_settings)
        from_meta = any(parameter.is_meta for parameter in whole.parameters())
        self._parts = parallelize(whole, self.mesh, self.settings, self.context)
        if from_meta:
            for part in self._parts:
                state.allocate(part, torch.device("cpu") if self.settings.cpu_offload else self.root_device)
        pipelined = self.spec.pipeline > 1
        if pipelined:
            module.model = StageParts(self._parts)
        if from_meta:
            value: InitialValues | None = getattr(whole, "initial_values", None)
            assert value is not None, "a model on the meta device needs initial values"
            state.fill(self._named(), lambda name, shape: value(self._same.get(name, name), shape))
        if self.settings.compile_blocks:
            self._loss = torch.compile(token_loss, dynamic=False)
        if pipelined:
            self.pipeline = Pipeline(
                self._parts, self.mesh, self.settings, self.root_device, self._plain_loss, self._auxiliary_loss
            )
            named = self._named()
            self._tied = [
                TiedWeights(named.get(first), named.get(again), self.mesh, self.settings.schedule)
                for again, first in self._same.items()
            ]
        set_module_device(module, self.root_device)

    def _named(self) -> dict[str, nn.Parameter]:
        return dict(self._module.model.named_parameters())

    # Steps.

    def _plain_loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        def compute(targets: Tensor) -> Tensor:
            loss = self._loss(logits, targets, self._loss_settings.z_loss if self._module.training else 0.0)
            return loss.full_tensor() if isinstance(loss, DTensor) else loss

        return self._own_loss(compute, targets)

    def _own_loss(self, compute: Callable[[Tensor], Tensor], targets: Tensor) -> Tensor:
        """Return the loss of this rank's part of the targets; its mean over ranks is the loss of the batch."""
        return compute(targets) if self.context is None else self.context.loss(compute, targets)

    def _auxiliary_loss(self, own: Tensor) -> Tensor:
        """Return the mean of the blocks' auxiliary loss over ranks that divide a sequence in tensor-parallel regions.

        Its gradient is this rank's part of that mean: the gradients of what precedes are summed over these ranks.
        """
        if isinstance(own, DTensor):
            return own.full_tensor()
        if self.spec.tensor == 1:
            return own
        part = own / self.spec.tensor
        whole = part.detach().clone()
        dist.all_reduce(whole, group=self.mesh["tensor"].get_group())
        return part + (whole - part.detach())

    def compute_loss(self, model: nn.Module, batch: Batch) -> WithAuxiliary:
        """Return the loss of a micro-batch, and the blocks' auxiliary loss where they have one.

        A pipeline has run all of its micro-batches forward and backward when this returns.
        """
        tokens, targets = batch.tokens, batch.targets
        if self.context is not None:
            tokens = self.context.positions.cut(tokens)
        if self.settings.kernels is not None:
            return model(tokens, targets, document_starts_bt=batch.document_starts)
        if self.pipeline is not None:
            if not self._module.training:
                return self.pipeline.evaluate(tokens, targets)
            runs = self._module.trainer.accumulate_grad_batches
            share = None if self._module.targets_in_step() is None else self._module.share_of_step(targets)
            return self.pipeline.train(tokens, targets, runs, share)
        starts = () if batch.document_starts is None else (batch.document_starts,)
        compiled = self.settings.compile_blocks and getattr(model, "loss_is_of_logits", False)
        if self.spec.tensor > 1 or (compiled and self._loss_settings.chunk_tokens is None):
            named = {} if batch.document_starts is None else {"document_starts_bt": batch.document_starts}
            logits, auxiliary = split_auxiliary(model(tokens, **named))
            return self._with_auxiliary(self._plain_loss(logits, targets), auxiliary)
        own_auxiliary: list[Tensor | None] = []

        def compute(own_targets: Tensor) -> Tensor:
            loss, auxiliary = split_auxiliary(lm_loss(model, tokens, own_targets, *starts))
            own_auxiliary.append(auxiliary)
            return loss

        loss = self._own_loss(compute, targets)
        return self._with_auxiliary(loss, own_auxiliary[0])

    def _with_auxiliary(self, loss: Tensor, auxiliary: Tensor | None) -> WithAuxiliary:
        return join_auxiliary(loss, None if auxiliary is None else self._auxiliary_loss(auxiliary))

    @property
    def clears_gradients(self) -> bool:
        """Whether the strategy clears gradients itself.

        A pipeline computes them in the training step, after which Lightning would clear them.
        """
        return self.pipeline is not None

    # Scores for evaluators: forward only, on all ranks together, for whole sequences in any number of rows.

    def target_scores(self, tokens_bt: Tensor, targets_bt: Tensor) -> Tensor:
        """Return each target's log-probability and its gap to the argmax, after the tokens up to its position."""
        rows = zip(*(x.split(self.settings.micro_batch) for x in (tokens_bt, targets_bt)), strict=True)
        return torch.cat([self._scores.targets(self._logits(tokens), targets) for tokens, targets in rows], dim=1)

    def logits_at(self, tokens_bt: Tensor, position: int) -> Tensor:
        """Return the logits (B, vocabulary) of one position."""
        parts = tokens_bt.split(self.settings.micro_batch)
        return torch.cat([self._scores.logits_at(self._logits(part), position, part.shape) for part in parts])

    @property
    def _scores(self) -> SharedScores:
        return SharedScores(self.mesh, self.context, self._module.model.config.vocab_size)

    def _logits(self, tokens_bt: Tensor) -> Tensor | None:
        """Return this rank's part of the logits; None without the last pipeline stage."""
        if self.context is not None:
            tokens_bt = self.context.positions.cut(tokens_bt)
        if self.pipeline is not None:
            return self.pipeline.logits(tokens_bt)
        model = self._module.model
        fused = self.settings.kernels is not None
        logits: Tensor = model(tokens_bt, None) if fused else model(tokens_bt)
        return logits

    def backward(self, closure_loss: Tensor, optimizer: Any, *args: Any, **kwargs: Any) -> Tensor:
        if self.pipeline is None:
            return super().backward(closure_loss, optimizer, *args, **kwargs)
        # The schedule has done it; only the hooks around it are left.
        closure_loss = self.precision_plugin.pre_backward(closure_loss, self._module)
        if ends_step(self._module.trainer):
            for tied in self._tied:
                tied.add_gradients()
        return self.precision_plugin.post_backward(closure_loss, self._module)

    def optimizer_step(self, optimizer: Any, closure: Callable[[], Any], model: Any = None, **kwargs: Any) -> Any:
        result = super().optimizer_step(optimizer, closure, model, **kwargs)
        if self.pipeline is not None:
            optimizer.zero_grad()
        return result

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Defer the reduction of gradients; Lightning enters this for all micro-batches of a step except the last."""
        if self.pipeline is not None or not self.settings.reduce_once:
            yield
            return
        self._set_gradient_sync(False)
        yield
        self._set_gradient_sync(True)

    def _set_gradient_sync(self, on: bool) -> None:
        for part in self._parts:
            assert isinstance(part, FSDPModule)
            part.set_requires_gradient_sync(on)

    def clip_gradients(self, parameters: Any, limit: float) -> Tensor:
        copies = frozenset(tied.copy for tied in self._tied if tied.copy is not None)
        stage_ranks = self.world_size // self.spec.pipeline
        return clip_gradients(parameters, limit, stage_ranks=stage_ranks, repeated=copies)

    def on_validation_end(self) -> None:
        """Reshard weights, some of which stay gathered when no backward pass follows."""
        self._reshard()

    def _reshard(self) -> None:
        for part in self._parts:
            for module in part.modules():
                if isinstance(module, FSDPModule):
                    module.reshard()

    # Checkpoints: each rank saves its parts, under the names of the whole model.

    def same_names(self) -> Mapping[str, str]:
        return self._same

    def lightning_module_state_dict(self) -> dict[str, Any]:
        self._reshard()
        return super().lightning_module_state_dict()
