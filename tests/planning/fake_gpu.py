"""What autograd would hold on a GPU, found by running the real decoder on tensors without data."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from skytrain.models import decoder, recompute
from skytrain.planning.memory import TrainingJob


class CudaAutocast(TorchFunctionMode):
    """CUDA's rules of autocast, which a CPU build of torch has not: products in bfloat16, norms in float32 by one fused kernel.

    float16 is as wide, so one stands for both.
    """

    def __init__(self) -> None:
        super().__init__()
        self.copies: dict[int, torch.Tensor] = {}

    def __exit__(self, *error: Any) -> None:
        self.copies.clear()
        super().__exit__(*error)

    def narrow(self, tensor: torch.Tensor | None) -> torch.Tensor | None:
        if tensor is None or tensor.dtype == torch.bfloat16:
            return tensor
        if not isinstance(tensor, torch.nn.Parameter):
            return tensor.to(torch.bfloat16)
        return self.copies.setdefault(id(tensor), tensor.to(torch.bfloat16))

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function is F.linear:
            return function(
                *(self.narrow(tensor) for tensor in args),
                **{name: self.narrow(value) for name, value in kwargs.items()},
            )
        if function is F.rms_norm:  # keeps what the fused layer norm keeps
            return F.layer_norm(args[0].float(), args[1], kwargs["weight"], None, kwargs["eps"])
        return function(*args, **kwargs)


class Live(TorchDispatchMode):
    """Bytes of storages that are alive, and the most there ever were."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self.peak = 0
        self.seen: weakref.WeakSet[Any] = weakref.WeakSet()

    def forget(self, size: int) -> None:
        self.bytes -= size

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for tensor in tree_iter(result):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage() not in self.seen:
                storage = tensor.untyped_storage()
                self.seen.add(storage)
                self.bytes += storage.nbytes()
                self.peak = max(self.peak, self.bytes)
                weakref.finalize(storage, self.forget, storage.nbytes())
        return result


def peak_bytes(job: TrainingJob, monkeypatch: Any) -> int:
    """The peak of one optimizer step with AdamW's state in place."""
    monkeypatch.setattr(decoder, "check_tokens", lambda *args, **kwargs: None)  # it reads values, and there are none
    precision = CudaAutocast if job.precision in ("bf16-mixed", "16-mixed") else contextlib.nullcontext
    held = torch.bfloat16 if job.precision == "bf16-true" else torch.float32
    with FakeTensorMode(), Live() as live:
        with torch.device("meta"):
            model = decoder.Decoder(job.model)
        for module in model.modules():
            for name, parameter in list(module._parameters.items()):
                if parameter is not None:
                    module._parameters[name] = torch.nn.Parameter(
                        torch.empty(parameter.shape, device="cpu", dtype=held)
                    )
        model.tie()
        if job.checkpointing or job.selective:
            for block in model.blocks.values():
                block.forward = _checkpointed(block.forward, precision, job.selective)
        copies = (
            3 if held == torch.bfloat16 else 2
        )  # AdamW's moments, and the weights in float32 where the model's are not
        states = [torch.zeros(p.shape, dtype=torch.float32) for p in model.parameters() for _ in range(copies)]
        for _ in range(job.accumulation):
            batch = torch.zeros(job.micro_batch, job.sequence_length + 1, dtype=torch.long)
            with precision():
                loss = model.loss(batch[:, :-1], batch[:, 1:])
            loss.backward()
            del loss
        if job.precision == "bf16-true":  # gradients for the float32 copies, all of them at once
            updates = [parameter.grad.float() for parameter in model.parameters() if parameter.grad is not None]
        elif job.precision == "16-mixed":  # the roots of the second moments, where AdamW is no fused kernel
            updates = [torch.empty(p.shape, dtype=torch.float32) for p in model.parameters()]
        else:
            updates = []
        assert states and (updates or job.precision in ("bf16-mixed", "32-true"))
        return live.peak


def _checkpointed(forward: Any, precision: Any, selective: bool) -> Any:
    def contexts() -> tuple[Any, Any]:
        if not selective:
            return contextlib.nullcontext(), precision()
        keep, again = create_selective_checkpoint_contexts(recompute._policy)

        @contextlib.contextmanager
        def both() -> Iterator[None]:
            with precision(), again:
                yield

        return keep, both()

    return lambda *args: checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, context_fn=contexts)
