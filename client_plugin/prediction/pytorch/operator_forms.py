"""The shapes of results of operators that PyTorch has no form for without values.

Most are kernels for `meta`, by which tensors without values run. Knows: shapes of PyTorch's kernels
for CUDA. Must not know: what is recorded.
"""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

import torch

GRU_GATES, GRU_WORKSPACE = 3, 5
"""Times the width of a cell: its gates, and what it keeps for the backward pass."""


def _gru_cell(_input_gates: Any, _hidden_gates: Any, hidden: Any, *_biases: Any) -> Any:
    rows, width = hidden.shape
    return hidden.new_empty((rows, width)), hidden.new_empty((rows, GRU_WORKSPACE * width))


def _gru_cell_backward(gradient: Any, _workspace: Any, has_bias: bool) -> Any:
    rows, width = gradient.shape
    gates = [gradient.new_empty((rows, GRU_GATES * width)) for _ in range(2)]
    biases = [gradient.new_empty(GRU_GATES * width) if has_bias else None for _ in range(2)]
    return (*gates, gradient.new_empty((rows, width)), *biases)


def ctc_loss(
    likelihoods: Any, targets: Any, _input_lengths: Any, lengths: Any, *_options: Any
) -> Any:
    """Lengths on the GPU have no values: the longest target is as long as there is room for."""
    longest = targets.shape[-1] if isinstance(lengths, torch.Tensor) else max(lengths, default=0)
    times, batch = likelihoods.shape[:2]
    alpha = likelihoods.new_empty((batch, times, 2 * longest + 1))
    return likelihoods.new_empty(batch), alpha


def _like_second(_gradient: Any, likelihoods: Any, *_options: Any) -> Any:
    return torch.empty_like(likelihoods)


def _like_first(first: Any, *_others: Any, **_options: Any) -> Any:
    return torch.empty_like(first)


def _no(*_args: Any, **_options: Any) -> bool:
    return False


FORMS: Dict[str, Any] = {
    "_thnn_fused_gru_cell": _gru_cell,
    "_thnn_fused_gru_cell_backward": _gru_cell_backward,
    "_use_cudnn_ctc_loss": _no,
    "_use_cudnn_ctc_loss.Tensor": _no,
    "_use_miopen_ctc_loss": _no,
    "_use_miopen_ctc_loss.Tensor": _no,
    "_ctc_loss_backward": _like_second,
    "_ctc_loss_backward.Tensor": _like_second,
    "_standard_gamma_grad": _like_first,
    "_sample_dirichlet": _like_first,
    "_dirichlet_grad": _like_first,
}

_alive: List[Any] = []


def install() -> None:
    """A version of PyTorch that has a form of its own, or lacks the operator, stays as it is."""
    library = torch.library.Library("aten", "IMPL")
    _alive.append(library)
    for name, form in FORMS.items():
        packet = getattr(torch.ops.aten, name.partition(".")[0], None)
        if packet is None or (name.partition(".")[2] or "default") not in packet.overloads():
            continue
        if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "Meta"):
            library.impl(name, form, "Meta")


def packed_sequence(
    source: Any, lengths: torch.Tensor, is_batch_first: bool
) -> Tuple[Tuple[int, ...], torch.Tensor]:
    """(shape, rows of each time step) of _pack_padded_sequence. Lengths are the processor's.

    Lengths that came back from the GPU are zeros: each sequence is as long as there is room for.
    """
    longest = source.shape[1 if is_batch_first else 0]
    if not bool((lengths > 0).all()):
        lengths = torch.full_like(lengths, longest)
    times = torch.arange(int(lengths.max()))
    rows = (lengths[None, :] > times[:, None]).sum(1)
    return (int(lengths.sum()), *source.shape[2:]), rows
