"""torch.cuda and its neighbours as a script finds them on a machine with one idle GPU.

Each stub is a row of a table: its name and its answer. Knows: the Python functions of PyTorch that
reach a driver or worker processes. Must not know: operators (hybrid), files (checkpoints), the end
of a run.
"""

from __future__ import annotations

import collections
import contextlib
import importlib
import os
import types
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from torch.utils._pytree import tree_leaves, tree_map

from .. import outcome
from . import checkpoints, tensor_kinds
from .hybrid import Hybrid
from .ranks import Ranks

GPU_BYTES = 80 << 30
"""The memory that a script sees, so that it chooses no smaller batch by itself."""
ADDRESS_BITS = 15
"""Addresses of tensors without memory are so far apart that no two tensors overlap."""
NAME, CAPABILITY, CORES = "NVIDIA A100-SXM4-80GB", (8, 0), 108


class StreamStub:
    """A stream or an event: all work is done at once."""

    cuda_stream = 0
    stream_id = 0
    device_index = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.device = torch.device("cuda", 0)

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def elapsed_time(self, _end: Any) -> float:
        return 1.0

    def record_event(self, event: Any = None) -> Any:
        return event or StreamStub()

    def _nothing(self, *args: Any, **kwargs: Any) -> None:
        pass

    record = wait = synchronize = wait_event = wait_stream = _nothing

    def __enter__(self) -> StreamStub:
        return self

    def __exit__(self, *args: Any) -> None:
        pass


def _nothing(*args: Any, **kwargs: Any) -> None:
    pass


def _answer(value: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: value


PROPERTIES = {
    "name": NAME, "major": CAPABILITY[0], "minor": CAPABILITY[1], "multi_processor_count": CORES,
    "is_integrated": 0, "warp_size": 32, "max_threads_per_multi_processor": 2_048,
    "regs_per_multiprocessor": 65_536, "shared_memory_per_block": 49_152, "L2_cache_size": 40 << 20,
    "gcnArchName": "",
}  # fmt: skip


def _number(device: Any) -> int:
    return device if isinstance(device, int) else torch.device(device).index or 0


def _first_device(device: Any = None, *_args: Any, **_kwargs: Any) -> Any:
    return contextlib.nullcontext(device)


def _first_of(callables: Any, *_args: Any, **_kwargs: Any) -> Any:
    return callables


class GraphStub:
    """A recorded graph: its operators have run once, at its recording."""

    capture_begin = capture_end = replay = reset = staticmethod(_nothing)

    def pool(self) -> int:
        return 0


CUDA: Dict[str, Any] = {
    "is_available": _answer(True), "is_initialized": _answer(True), "current_device": _answer(0),
    "get_device_name": _answer(NAME),
    "get_device_capability": _answer(CAPABILITY),
    "get_arch_list": _answer(["sm_80"]), "is_bf16_supported": _answer(True),
    "is_current_stream_capturing": _answer(False), "can_device_access_peer": _answer(False),
    "init": _nothing, "_lazy_init": _nothing, "_lazy_call": _nothing, "synchronize": _nothing,
    "empty_cache": _nothing, "ipc_collect": _nothing,
    "manual_seed": _nothing, "manual_seed_all": _nothing, "seed": _nothing, "seed_all": _nothing,
    "initial_seed": _answer(0), "get_rng_state": lambda *args: torch.get_rng_state(),
    "get_rng_state_all": lambda: [torch.get_rng_state()],
    "set_rng_state": _nothing, "set_rng_state_all": _nothing,
    "reset_peak_memory_stats": _nothing, "reset_max_memory_allocated": _nothing,
    "reset_accumulated_memory_stats": _nothing, "set_per_process_memory_fraction": _nothing,
    "memory_summary": _answer(""), "utilization": _answer(0), "memory_usage": _answer(0),
    "set_stream": _nothing, "device": _first_device, "device_of": _first_device,
    "stream": _first_device, "Stream": StreamStub, "Event": StreamStub,
    "current_stream": StreamStub, "default_stream": StreamStub, "_sleep": _nothing,
    "CUDAGraph": GraphStub, "graph": _first_device, "make_graphed_callables": _first_of,
    "cudart": _answer(types.SimpleNamespace(cudaProfilerStart=_nothing, cudaProfilerStop=_nothing)),
}  # fmt: skip
"""Function of torch.cuda -> its stub."""
ACCELERATOR: Dict[str, Any] = {
    "is_available": _answer(True),
    "current_accelerator": lambda *args, **kwargs: torch.device("cuda"),
    "current_device_index": _answer(0), "current_device_idx": _answer(0),
    "set_device_index": _nothing, "set_device_idx": _nothing, "synchronize": _nothing,
    "current_stream": StreamStub, "set_stream": _nothing, "empty_cache": _nothing,
    "reset_peak_memory_stats": _nothing,
}  # fmt: skip
NVTX: Dict[str, Any] = {
    "mark": _nothing, "range_push": _answer(0), "range_pop": _answer(0), "range_start": _answer(0),
    "range_end": _nothing,
}  # fmt: skip


class ProfileStub:
    """A profiler that measures nothing: PyTorch's own looks for a driver."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __enter__(self) -> ProfileStub:
        return self

    def __exit__(self, *args: Any) -> None:
        pass

    def events(self, *_args: Any) -> List[Any]:
        return []

    def key_averages(self, *args: Any, **kwargs: Any) -> ProfileStub:
        return self

    def table(self, *args: Any, **kwargs: Any) -> str:
        return ""

    def _nothing(self, *args: Any, **kwargs: Any) -> None:
        pass

    start = stop = step = export_chrome_trace = export_stacks = add_metadata = _nothing


def install(hybrid: Hybrid, say: Callable[[str], None], abstain: Callable[[str], None]) -> None:
    """`say` gets the name of a file that the script would have saved.

    `abstain` gets the reason why the script is not followed, and ends it.
    """
    ranks = Ranks(os.environ.get(outcome.VARIABLE, ""))
    own = {"device_count": ranks.device_count}
    for module, table in (
        (torch.cuda, {**CUDA, **own}),
        (importlib.import_module("torch.cuda.random"), {**CUDA, **own}),
        (torch.cuda.nvtx, NVTX),
        (getattr(torch, "accelerator", None), {**ACCELERATOR, **own}),
        (torch.distributed, ranks.stubs()),
        (importlib.import_module("torch.profiler"), {"profile": ProfileStub}),
    ):  # fmt: skip
        for name, stub in table.items():
            if module is not None and hasattr(module, name):
                setattr(module, name, stub)
    _memory(hybrid)
    _tensors()
    _addresses(hybrid.is_fake)
    tensor_kinds.install(hybrid.is_fake)
    _modules(hybrid, ranks)
    _inputs(hybrid)
    _optimizers()
    _attention()
    _without_cudnn()
    _lengths(hybrid.is_fake)
    checkpoints.install(hybrid.shadows, say, abstain)
    _loaders()
    _other_processes(abstain)


def _memory(hybrid: Hybrid) -> None:
    recorder: Any = hybrid.recorder
    for name in ("memory_allocated", "memory_reserved"):
        setattr(torch.cuda, name, lambda *args: recorder.live_bytes)
    for name in ("max_memory_allocated", "max_memory_reserved"):
        setattr(torch.cuda, name, lambda *args: recorder.peak_live_bytes)
    asked = hybrid.shadows.asked

    def info(*_args: Any) -> Tuple[int, int]:
        size = asked.memory(GPU_BYTES)
        return max(0, size - recorder.live_bytes), size

    class Properties(types.SimpleNamespace):
        @property
        def total_memory(self) -> int:
            return asked.memory(GPU_BYTES)

    torch.cuda.mem_get_info = info
    torch.cuda.get_device_properties = lambda *args: Properties(**PROPERTIES)
    torch.cuda.set_device = lambda device: setattr(hybrid, "current", _number(device))
    torch.cuda.memory_stats = lambda *args: collections.Counter(
        {
            f"{kind}_bytes.all.{name}": size
            for kind in ("allocated", "reserved", "active")
            for name, size in (("current", recorder.live_bytes), ("peak", recorder.peak_live_bytes))
        }
    )


def _tensors() -> None:
    """Methods that read memory, or make what a machine without a GPU lacks."""
    tensor: Any = torch.Tensor
    plain, listed, numpy = tensor.__format__, tensor.tolist, tensor.numpy
    tensor.pin_memory = lambda self, *args, **kwargs: self
    tensor.record_stream = _nothing
    tensor.__format__ = lambda self, spec: (
        self.item().__format__(spec) if self.dim() == 0 and self.is_cuda else plain(self, spec)
    )
    tensor.tolist = lambda self: listed(self.cpu() if self.is_cuda else self)
    tensor.numpy = lambda self, *args, **kwargs: numpy(
        self.detach() if kwargs.get("force") else self, **{**kwargs, "force": False}
    )
    generator = torch.Generator

    class HostGenerator(generator):  # type: ignore[misc, valid-type]
        """A generator for `cuda` is one of the processor."""

        def __new__(cls, device: Any = "cpu") -> Any:
            return generator.__new__(generator, device="cpu")

    setattr(torch, "Generator", HostGenerator)  # noqa: B010


def _addresses(is_fake: Callable[[Any], bool]) -> None:
    """By its address a library finds tensors that share memory, before it saves them."""
    tensor: Any = torch.Tensor
    storage: Any = torch.UntypedStorage
    of_tensor, of_storage = tensor.data_ptr, storage.data_ptr

    def address(one: Any) -> int:
        is_real = one.device.type != "meta"
        return int(of_storage(one)) if is_real else int(one._cdata) << ADDRESS_BITS

    storage.data_ptr = address
    tensor.data_ptr = lambda self: (
        address(self.untyped_storage()) + self.storage_offset() * self.element_size()
        if is_fake(self) else of_tensor(self)
    )  # fmt: skip


def _modules(hybrid: Hybrid, ranks: Ranks) -> None:
    """Parameters move to the fake GPU as new parameters; tied ones stay tied."""
    from torch.utils.weak import WeakTensorKeyDictionary

    moved: Any = WeakTensorKeyDictionary()
    module: Any = torch.nn.Module

    def apply(self: Any, fn: Callable[[Any], Any], recurse: bool = True) -> Any:
        if recurse:
            for child in self.children():
                child._apply(fn)
        for name, parameter in self._parameters.items():
            if parameter is not None:
                self._parameters[name] = _moved_parameter(parameter, fn, moved)
        for name, buffer in self._buffers.items():
            if buffer is not None:
                is_lazy = torch.nn.parameter.is_lazy(buffer)
                self._buffers[name] = tensor_kinds.move_later(buffer, fn) if is_lazy else fn(buffer)
        return self

    def follow(optimizer: Any, *_args: Any) -> None:
        """An optimizer that was made before the move gets the moved parameters."""
        for group in optimizer.param_groups:
            group["params"] = [moved.get(one, one) for one in group["params"]]

    module._apply = apply
    module.compile = _nothing
    _optimizer_module().register_optimizer_step_pre_hook(follow)
    lone = _wrapper(hybrid, ranks)
    for place in ("torch.nn.parallel", "torch.nn.parallel.distributed"):
        setattr(importlib.import_module(place), "DistributedDataParallel", lone)  # noqa: B010
    for place in ("torch.nn", "torch.nn.parallel", "torch.nn.parallel.data_parallel"):
        setattr(importlib.import_module(place), "DataParallel", Replica)  # noqa: B010
    plain: Any = importlib.import_module("torch.nn.modules.batchnorm")._BatchNorm
    setattr(torch.nn.SyncBatchNorm, "forward", plain.forward)  # noqa: B010


def _inputs(hybrid: Hybrid) -> None:
    """The batch of a step is the input of its first module that learns, before losses and masks."""
    module: Any = torch.nn.Module
    call = module.__call__

    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        step = hybrid.recorder.step
        learns = torch.is_grad_enabled() and next(self.parameters(), None) is not None
        if learns and not step.first_input:
            tensors = filter(hybrid.is_fake, tree_leaves((args, kwargs)))
            step.first_input = next((tuple(one.shape) for one in tensors if one.dim()), ())
        return call(self, *args, **kwargs)

    module.__call__ = called


def _moved_parameter(parameter: Any, fn: Callable[[Any], Any], moved: Any) -> Any:
    with torch.no_grad():
        if torch.nn.parameter.is_lazy(parameter):
            return tensor_kinds.move_later(parameter, fn)
        if parameter in moved:
            return moved[parameter]
        data = fn(parameter)
        if data is parameter:
            return parameter
        fresh = torch.nn.Parameter(data, parameter.requires_grad)
        tensor_kinds.become(fresh, tensor_kinds.kind(parameter))
        vars(fresh).update(tensor_kinds.attributes(parameter))
        if parameter.grad is not None:
            fresh.grad = fn(parameter.grad)
    moved[parameter] = fresh
    return fresh


class Replica(torch.nn.Module):
    """Data parallelism with one GPU: the model."""

    def __init__(self, module: Any, device_ids: Any = (0,), *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self.module = module
        self.takes_inputs = bool(device_ids)
        """Inputs of the processor are moved to the GPU."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.takes_inputs:
            args, kwargs = tree_map(_on_gpu, (args, kwargs))
        return self.module(*args, **kwargs)


def _on_gpu(one: Any) -> Any:
    return one.cuda() if isinstance(one, torch.Tensor) else one


def _wrapper(hybrid: Hybrid, ranks: Ranks) -> Any:
    class LoneReplica(Replica):
        """Distributed data parallelism as one rank sees it: the model, and its buckets' memory."""

        def __init__(
            self, module: Any, device_ids: Any = None, *_args: Any, **_kwargs: Any
        ) -> None:
            super().__init__(module, device_ids)
            hybrid.recorder.extra(
                sum(p.numel() * p.element_size() for p in module.parameters() if p.requires_grad)
            )

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            if self.training and torch.is_grad_enabled():
                ranks.meet()  # no rank is a step ahead: they sum their gradients
            return super().forward(*args, **kwargs)

        require_backward_grad_sync = True

        def no_sync(self, *_args: Any, **_kwargs: Any) -> Any:
            return contextlib.nullcontext()

        join = no_sync
        register_comm_hook = _set_static_graph = staticmethod(_nothing)

    return LoneReplica


def _optimizer_module() -> Any:
    return importlib.import_module("torch.optim.optimizer")  # hidden by a name of torch.optim


def _optimizers() -> None:
    """Fake tensors take the same code for many tensors at once as those of a GPU."""
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.utils import _foreach_utils

    optimizer = _optimizer_module()
    optimizer._foreach_supported_types.append(FakeTensor)
    known: Any = _foreach_utils
    known._has_foreach_support = lambda tensors, device: device.type in ("cpu", "cuda")
    clip: Any = torch.nn.utils.clip_grad
    clip._has_foreach_support = known._has_foreach_support


def _lengths(is_fake: Callable[[Any], bool]) -> None:
    """The lengths of CTC's loss may be the processor's: the kernel for CUDA takes them there."""
    compute = torch.ctc_loss

    def ctc_loss(
        likelihoods: Any, targets: Any, input_lengths: Any, lengths: Any, *args: Any, **kwargs: Any
    ) -> Any:
        both = [input_lengths, lengths]
        tensors = [one for one in both if isinstance(one, torch.Tensor)]
        if is_fake(likelihoods) and len(tensors) == 2:
            if any(map(is_fake, tensors)):
                both = [one.to(likelihoods.device) for one in both]
            else:
                both = [one.tolist() for one in both]
        return compute(likelihoods, targets, *both, *args, **kwargs)

    torch.ctc_loss = ctc_loss


def _attention() -> None:
    """The fused kernels of a GPU, which a build without CUDA does not choose."""
    functional: Any = torch.nn.functional
    plain = functional.scaled_dot_product_attention

    def attention(
        query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
        is_causal: bool = False, scale: Optional[float] = None, enable_gqa: bool = False,
    ) -> Any:  # fmt: skip
        if not query.is_cuda or query.dim() != 4:
            arguments = {"enable_gqa": True} if enable_gqa else {}
            return plain(query, key, value, attn_mask, dropout_p, is_causal, scale=scale,
                         **arguments)  # fmt: skip
        if enable_gqa:
            times = query.size(1) // key.size(1)
            key, value = key.repeat_interleave(times, 1), value.repeat_interleave(times, 1)
        fused: Any = torch.ops.aten
        if query.dtype in (torch.float16, torch.bfloat16) and attn_mask is None:
            return fused._scaled_dot_product_flash_attention(
                query, key, value, dropout_p, is_causal, False, scale=scale
            )[0]
        bias = _bias(attn_mask, query, key)
        return fused._scaled_dot_product_efficient_attention(
            query, key, value, bias, query.requires_grad, dropout_p, is_causal, scale=scale
        )[0]

    functional.scaled_dot_product_attention = attention


def _without_cudnn() -> None:
    """A build with cuDNN takes the kernels of one without: cuDNN calls the driver.

    A script finds it enabled, and cannot enable it.
    """
    cudnn: Any = torch.backends.cudnn
    cudnn.enabled = False
    setattr(torch._C, "_set_cudnn_enabled", _nothing)  # noqa: B010 (absent from the type stubs)
    type(cudnn).enabled = property(lambda self: True, _nothing)


def _bias(mask: Any, query: Any, key: Any) -> Any:
    if mask is None:
        return None
    if mask.dtype is torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(~mask, float("-inf"))
    return mask.expand(query.size(0), query.size(1), query.size(2), key.size(2))


def _other_processes(abstain: Callable[[str], None]) -> None:
    """A GPU's memory that several processes share is not added up; nor are shards of a model."""
    from torch._subclasses.fake_tensor import FakeTensor

    tensor: Any = torch.Tensor
    share, pickler = tensor.share_memory_, importlib.import_module("multiprocessing.reduction")
    tensor.share_memory_ = lambda self: self if self.is_cuda else share(self)

    def passed(_tensor: Any) -> Any:
        abstain(
            "the program passes tensors on the GPU to another process, and the memory of several "
            "processes is not added up: measure it on a GPU"
        )

    def grouped(*_args: Any, **_kwargs: Any) -> Any:
        abstain(
            "the program shards a model over ranks (a device mesh, or a group of processes as FSDP "
            "makes it), which is not followed: measure it on GPUs"
        )

    importlib.import_module("torch.multiprocessing.reductions")  # it registers its own
    pickler.ForkingPickler.register(FakeTensor, passed)
    if torch.distributed.is_available():
        groups: Any = importlib.import_module("torch.distributed.distributed_c10d")
        groups._nodemgr_grouped = grouped
        # FSDP has the function by its name already: the function itself becomes another
        groups._get_default_group.__code__ = (lambda: _nodemgr_grouped()).__code__  # type: ignore[name-defined]  # noqa: F821
        mesh: Any = importlib.import_module("torch.distributed.device_mesh")
        mesh.DeviceMesh.__init__ = mesh.init_device_mesh = grouped


def _loaders() -> None:
    """Data is loaded in this process: a few batches need no workers and no pinned memory."""
    from torch.utils.data import DataLoader

    make = DataLoader.__init__
    alone: List[str] = ["persistent_workers", "prefetch_factor", "multiprocessing_context",
                        "timeout", "pin_memory_device"]  # fmt: skip

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        plain = {name: value for name, value in kwargs.items() if name not in alone}
        make(self, *args[:5], **{**plain, "num_workers": 0, "pin_memory": False},
             **dict(zip(("collate_fn",), args[6:7])))  # fmt: skip

    setattr(DataLoader, "__init__", init)  # noqa: B010

    def as_it_is(model: Any = None, **_kwargs: Any) -> Any:
        return (lambda function: function) if model is None else model

    torch.compile = as_it_is
