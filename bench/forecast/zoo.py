"""Trainings for the measurements of forecasts: families of networks, batches, optimizers.

Plain PyTorch, written for this bench. Knows: networks. Must not know: how they are measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn


class Training(NamedTuple):
    """One row of the table: `make` returns a model, `batch` its inputs on the processor."""

    name: str
    family: str
    make: Callable[[], nn.Module]
    batch: Callable[[], tuple[torch.Tensor, ...]]
    optimizer: str = "AdamW"
    precision: str = "float32"


class Residual(nn.Module):
    def __init__(self, inner: int, outer: int, stride: int, groups: int = 1) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inner, outer, 3, stride, 1, groups=groups if inner == outer else 1,
                      bias=False),
            nn.BatchNorm2d(outer), nn.ReLU(inplace=True),
            nn.Conv2d(outer, outer, 3, 1, 1, groups=groups, bias=False), nn.BatchNorm2d(outer),
        )  # fmt: skip
        self.short = (
            nn.Identity()
            if inner == outer and stride == 1
            else nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False),
                               nn.BatchNorm2d(outer))
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.body(x) + self.short(x))


def resnet(depth: int, width: int, groups: int = 1) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, 1, 1), nn.BatchNorm2d(width), nn.ReLU()]
    inner = width
    for stage in range(3):
        for block in range(depth):
            outer = width << stage
            layers.append(Residual(inner, outer, 2 if stage and not block else 1, groups))
            inner = outer
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inner, 100))


def vgg(depth: int, width: int) -> nn.Module:
    layers: list[nn.Module] = []
    inner = 3
    for stage in range(3):
        for _ in range(depth):
            layers += [nn.Conv2d(inner, width << stage, 3, 1, 1), nn.ReLU(inplace=True)]
            inner = width << stage
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(inner * 64, 512), nn.ReLU(),
                         nn.Linear(512, 100))  # fmt: skip


class UNet(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.down = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a, b, 3, 1, 1), nn.GroupNorm(4, b), nn.SiLU())
            for a, b in ((3, width), (width, 2 * width), (2 * width, 4 * width))
        )
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(a, b, 2, 2) for a, b in ((4 * width, 2 * width), (4 * width, width))
        )
        self.head = nn.Conv2d(2 * width, 10, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one = self.down[0](x)
        two = self.down[1](F.max_pool2d(one, 2))
        three = self.down[2](F.max_pool2d(two, 2))
        x = torch.cat([self.up[0](three), two], 1)
        x = torch.cat([self.up[1](x), one], 1)
        return self.head(x).mean((2, 3))


class Attention(nn.Module):
    """A transformer block as language models have it; the mask is causal or none."""

    def __init__(self, width: int, heads: int, is_causal: bool) -> None:
        super().__init__()
        self.heads, self.is_causal = heads, is_causal
        self.one, self.two = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(),
                                 nn.Linear(4 * width, width))  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(self.one(x)).chunk(3, -1)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.is_causal)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.two(x))


class Language(nn.Module):
    def __init__(self, width: int, depth: int, is_causal: bool, words: int = 2_000) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(words, width), nn.Embedding(512, width)
        self.body = nn.Sequential(*(Attention(width, 4, is_causal) for _ in range(depth)))
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(x.shape[1], device=x.device)
        return self.head(self.body(self.words(x) + self.positions(positions)))


class Vision(nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, 4)
        self.body = nn.Sequential(*(Attention(width, 4, False) for _ in range(depth)))
        self.head = nn.Linear(width, 100)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.patch(x).flatten(2).transpose(1, 2)).mean(1))


def mlp(width: int, depth: int) -> nn.Module:
    layers: list[nn.Module] = [nn.Flatten(), nn.Linear(3 * 32 * 32, width)]
    for _ in range(depth):
        layers += [nn.ReLU(), nn.BatchNorm1d(width), nn.Linear(width, width)]
    return nn.Sequential(*layers, nn.ReLU(), nn.Linear(width, 100))


def mobile(width: int, depth: int) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, 2, 1)]
    for _ in range(depth):
        layers += [
            nn.Conv2d(width, 4 * width, 1), nn.BatchNorm2d(4 * width), nn.Hardswish(),
            nn.Conv2d(4 * width, 4 * width, 3, 1, 1, groups=4 * width), nn.BatchNorm2d(4 * width),
            nn.Hardswish(), nn.Conv2d(4 * width, width, 1),
        ]  # fmt: skip
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 100))


def images(count: int) -> Callable[[], tuple[torch.Tensor, ...]]:
    return lambda: (torch.randn(count, 3, 64, 64), torch.randint(0, 100, (count,)))


def small_images(count: int) -> Callable[[], tuple[torch.Tensor, ...]]:
    return lambda: (torch.randn(count, 3, 32, 32), torch.randint(0, 100, (count,)))


def digits(count: int) -> Callable[[], tuple[torch.Tensor, ...]]:
    return lambda: (torch.randn(count, 3, 64, 64), torch.randint(0, 10, (count,)))


def words(count: int, length: int) -> Callable[[], tuple[torch.Tensor, ...]]:
    return lambda: (torch.randint(0, 2_000, (count, length)),) * 2


Networks = tuple[tuple[str, Callable[[], nn.Module], Any], ...]

FAMILIES: dict[str, Networks] = {
    "resnet": tuple(
        (f"depth {d} width {w}", lambda d=d, w=w: resnet(d, w), small_images)
        for d, w in ((1, 32), (2, 32), (3, 16), (2, 64))
    ),
    "resnext": (("depth 2 width 32", lambda: resnet(2, 32, 8), small_images),),
    "vgg": tuple(
        (f"depth {d} width {w}", lambda d=d, w=w: vgg(d, w), images)
        for d, w in ((1, 16), (2, 16), (2, 32))
    ),
    "mobilenet": tuple(
        (f"depth {d}", lambda d=d: mobile(24, d), images) for d in (2, 4)
    ),
    "unet": tuple((f"width {w}", lambda w=w: UNet(w), digits) for w in (8, 16)),
    "vit": tuple(
        (f"width {w} depth {d}", lambda w=w, d=d: Vision(w, d), small_images)
        for w, d in ((128, 2), (192, 4))
    ),
    "gpt": tuple(
        (f"width {w} depth {d}", lambda w=w, d=d: Language(w, d, True), words)
        for w, d in ((128, 2), (256, 2), (128, 6))
    ),
    "bert": tuple(
        (f"width {w} depth {d}", lambda w=w, d=d: Language(w, d, False), words)
        for w, d in ((128, 2), (256, 3))
    ),
    "mlp": tuple(
        (f"width {w} depth {d}", lambda w=w, d=d: mlp(w, d), small_images)
        for w, d in ((512, 2), (2_048, 1), (256, 8))
    ),
}  # fmt: skip
VARIANTS = ((8, "AdamW", "float32"), (32, "SGD", "float32"), (16, "AdamW", "mixed"))
"""Batch, optimizer, precision."""


def trainings() -> Iterator[Training]:
    for family, networks in FAMILIES.items():
        for name, make, batches in networks:
            for count, optimizer, precision in VARIANTS:
                batch = batches(count, 128) if batches is words else batches(count)
                title = f"{family} {name}, {count}, {optimizer}, {precision}"
                yield Training(title, family, make, batch, optimizer, precision)


def train(training: Training, device: str, steps: int = 2) -> None:
    """The loop of an ordinary script."""
    model = training.make().to(device)
    options: dict[str, Any] = {"momentum": 0.9} if training.optimizer == "SGD" else {}
    optimizer = getattr(torch.optim, training.optimizer)(
        model.parameters(), lr=1e-3, foreach=True, **options
    )
    for _ in range(steps):
        inputs, labels = (part.to(device) for part in training.batch())
        mixed = training.precision == "mixed"
        with torch.autocast(device, dtype=torch.bfloat16, enabled=mixed):
            found = model(inputs)
            loss = F.cross_entropy(found.flatten(0, -2), labels.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
