"""Exports networks of kinds that the other two files lack, written by hand, random weights.

    python benchmarks/other_models.py --out other_models               # all of them
    python benchmarks/other_models.py --out other_models yolo video
    python benchmarks/compare.py other_models/*.onnx --rounds 3

A detector, networks that make or enlarge images, video, recommendation, groups, gates and experts:
trying them for the first time told what was missing. Most are smaller than published.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import onnx
import torch
from export_command import traced, write_models
from torch import nn

Inputs = tuple[torch.Tensor, ...]


class Residual(nn.Module):
    """x + scale * body(x), by way of another branch where the shape changes."""

    def __init__(self, *body: nn.Module, way: nn.Module | None = None, scale: float = 1.0) -> None:
        super().__init__()
        self.body = nn.Sequential(*body)
        self.way = way or nn.Identity()
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.way(x) + self.scale * self.body(x)


class Gate(nn.Module):
    """Squeeze and excitation."""

    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        squeeze = (nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, inner, 1), nn.ReLU())
        self.body = nn.Sequential(*squeeze, nn.Conv2d(inner, channels, 1), nn.Hardsigmoid())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.body(x)


def conv(
    inner: int,
    outer: int,
    kernel: int = 3,
    stride: int = 1,
    groups: int = 1,
    act: type | None = nn.ReLU,
) -> nn.Sequential:
    """Convolution, batch norm and perhaps an activation."""
    layer = nn.Conv2d(inner, outer, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outer), *([act()] if act else []))


def classifier(channels: int, classes: int = 1000) -> nn.Sequential:
    """Mean of the image, then a product."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


class CrossStage(nn.Module):
    """YOLOv8's block: halves, and what the second becomes step by step, side by side."""

    def __init__(self, inner: int, outer: int, steps: int) -> None:
        super().__init__()
        half = outer // 2
        self.first = conv(inner, outer, 1, act=nn.SiLU)
        self.last = conv(half * (2 + steps), outer, 1, act=nn.SiLU)
        pairs = [[conv(half, half, act=nn.SiLU) for _ in range(2)] for _ in range(steps)]
        self.steps = nn.ModuleList(Residual(*pair) for pair in pairs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = list(self.first(x).chunk(2, 1))
        for step in self.steps:
            parts.append(step(parts[-1]))
        return self.last(torch.cat(parts, 1))


class Yolo(nn.Module):
    """A detector in the manner of YOLOv8 nano, without what decodes its boxes."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList(
            nn.Sequential(conv(a, b, stride=2, act=nn.SiLU), CrossStage(b, b, steps))
            for a, b, steps in ((16, 32, 1), (32, 64, 2), (64, 128, 2), (128, 256, 1))
        )
        self.stem = conv(3, 16, stride=2, act=nn.SiLU)
        self.up = nn.Upsample(scale_factor=2)
        self.down = nn.ModuleList((CrossStage(384, 128, 1), CrossStage(192, 64, 1)))
        self.heads = nn.ModuleList(
            nn.Sequential(conv(c, 80, act=nn.SiLU), nn.Conv2d(80, 144, 1)) for c in (64, 128, 256)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, found = self.stem(x), []
        for stage in self.stages:
            x = stage(x)
            found.append(x)
        middle = self.down[0](torch.cat([self.up(found[3]), found[2]], 1))
        fine = self.down[1](torch.cat([self.up(middle), found[1]], 1))
        made = [h(y).flatten(2) for h, y in zip(self.heads, (fine, middle, found[3]), strict=True)]
        boxes, classes = torch.cat(made, 2).split((64, 80), 1)
        sides = boxes.unflatten(1, (4, 16)).softmax(2).flatten(1, 2)
        return torch.cat([sides, classes.sigmoid()], 1)


def edsr() -> nn.Module:
    """Enlarges an image four times (Lim et al., 2017), six blocks of 64 channels."""

    def plain(inner: int, outer: int) -> nn.Conv2d:
        return nn.Conv2d(inner, outer, 3, padding=1)

    blocks = [Residual(plain(64, 64), nn.ReLU(), plain(64, 64), scale=0.1) for _ in range(6)]
    larger = [layer for _ in range(2) for layer in (plain(64, 256), nn.PixelShuffle(2))]
    return nn.Sequential(plain(3, 64), Residual(*blocks, plain(64, 64)), *larger, plain(64, 3))


class ImageAttention(nn.Module):
    """Attention of one head over pixels, as Stable Diffusion's autoencoder writes it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(16, channels)
        self.q, self.k, self.v, self.out = (nn.Conv2d(channels, channels, 1) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        q, k, v = (layer(y).flatten(2) for layer in (self.q, self.k, self.v))
        power = (torch.bmm(q.transpose(1, 2), k) * y.shape[1] ** -0.5).softmax(2)
        return x + self.out(torch.bmm(v, power.transpose(1, 2)).reshape(x.shape))


def autoencoder() -> nn.Module:
    """The decoder of Stable Diffusion's autoencoder, a quarter as wide."""

    def block(inner: int, outer: int) -> nn.Module:
        layers: list[nn.Module] = []
        for channels in (inner, outer):
            shape = (channels, outer, 3, 1, 1)
            layers += [nn.GroupNorm(16, channels), nn.SiLU(), nn.Conv2d(*shape)]
        return Residual(*layers, way=nn.Conv2d(inner, outer, 1) if inner != outer else None)

    def up(channels: int) -> nn.Module:
        return nn.Sequential(nn.Upsample(scale_factor=2.0), nn.Conv2d(channels, channels, 3, 1, 1))

    return nn.Sequential(
        *(nn.Conv2d(4, 128, 3, 1, 1), block(128, 128), ImageAttention(128), block(128, 128)),
        *(up(128), block(128, 64), up(64), block(64, 64), up(64), block(64, 32)),
        *(nn.GroupNorm(16, 32), nn.SiLU(), nn.Conv2d(32, 3, 3, 1, 1)),
    )


def generator() -> nn.Module:
    """DCGAN's: transposed convolutions from a vector to an image."""
    layers: list[nn.Module] = []
    for inner, outer in ((100, 512), (512, 256), (256, 128), (128, 64)):
        stride, pad = (1, 0) if inner == 100 else (2, 1)
        layer = nn.ConvTranspose2d(inner, outer, 4, stride, pad, bias=False)
        layers += [layer, nn.BatchNorm2d(outer), nn.ReLU()]
    return nn.Sequential(*layers, nn.ConvTranspose2d(64, 3, 4, 2, 1), nn.Tanh())


def video() -> nn.Module:
    """C3D (Tran et al., 2015), half as wide: convolutions of volumes."""
    layers: list[nn.Module] = []
    for inner, outer, frames in (
        (3, 32, 1),
        (32, 64, 2),
        (64, 128, 0),
        (128, 128, 2),
        (128, 256, 2),
    ):
        layers += [nn.Conv3d(inner, outer, 3, padding=1), nn.ReLU()]
        layers += [nn.MaxPool3d((frames, 2, 2))] if frames else []
    return nn.Sequential(
        *layers, nn.Flatten(), nn.Linear(256 * 2 * 3 * 3, 512), nn.ReLU(), nn.Linear(512, 101)
    )


class Recommender(nn.Module):
    """DLRM (Naumov et al., 2019): 26 embeddings, their products with each other, two networks."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Sequential(nn.Linear(13, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU())
        self.tables = nn.ModuleList(nn.Embedding(1000, 64) for _ in range(26))
        self.top = nn.Sequential(nn.Linear(793, 512), nn.ReLU(), nn.Linear(512, 1), nn.Sigmoid())

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
        x = self.dense(dense)
        rows = [table(sparse[:, place]) for place, table in enumerate(self.tables)]
        all_rows = torch.stack([x, *rows], 1)
        products = torch.bmm(all_rows, all_rows.transpose(1, 2)) / 8
        return self.top(torch.cat([x, products.flatten(1)], 1))


class Shuffled(nn.Module):
    """ShuffleNet V2's unit: one half is worked on, then the channels of both are mixed."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        half, self.grows = outer // 2, inner != outer
        own, stride = (inner, 2) if self.grows else (half, 1)
        self.right = nn.Sequential(
            conv(own, half, 1), conv(half, half, 3, stride, half, act=None), conv(half, half, 1)
        )
        wider = (conv(inner, inner, 3, 2, inner, act=None), conv(inner, half, 1))
        self.left = nn.Sequential(*wider) if self.grows else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left, right = (x, x) if self.grows else x.chunk(2, 1)
        y = torch.cat([self.left(left), self.right(right)], 1)
        return y.unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2)


def shufflenet_v2() -> nn.Module:
    """As published, 1.0x (Ma et al., 2018)."""
    widths = [24, *(width for width, times in ((116, 4), (232, 8), (464, 4)) for _ in range(times))]
    units = [Shuffled(a, b) for a, b in pairwise(widths)]
    first = (conv(3, 24, stride=2), nn.MaxPool2d(3, 2, 1))
    return nn.Sequential(*first, *units, conv(464, 1024, 1), classifier(1024))


def mobilenet_v3() -> nn.Module:
    """MobileNetV3 with ten blocks: depthwise windows of 3 and 5, gates, hard swish."""

    def block(inner: int, wide: int, outer: int, kernel: int, stride: int, gate: int) -> nn.Module:
        act = nn.Hardswish if wide >= 200 else nn.ReLU
        body = [conv(inner, wide, 1, act=act), conv(wide, wide, kernel, stride, wide, act=act)]
        body += [Gate(wide, gate)] if gate else []
        body += [conv(wide, outer, 1, act=None)]
        return Residual(*body) if stride == 1 and inner == outer else nn.Sequential(*body)

    sizes = (
        *((16, 16, 16, 3, 1, 0), (16, 64, 24, 3, 2, 0), (24, 72, 24, 3, 1, 0)),
        *((24, 72, 40, 5, 2, 24), (40, 120, 40, 5, 1, 32), (40, 240, 80, 3, 2, 0)),
        (80, 200, 80, 3, 1, 0),
        *((80, 480, 112, 3, 1, 120), (112, 672, 160, 5, 2, 168), (160, 960, 160, 5, 1, 240)),
    )
    return nn.Sequential(
        conv(3, 16, stride=2, act=nn.Hardswish),
        *(block(*size) for size in sizes),
        conv(160, 960, 1, act=nn.Hardswish),
        classifier(960),
    )


def resnext() -> nn.Module:
    """ResNeXt-50: 32 groups."""
    layers, inner = [conv(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)], 64
    for width, times, first in ((128, 3, 1), (256, 4, 2), (512, 6, 2), (1024, 3, 2)):
        for stride in (first, *(1,) * (times - 1)):
            middle = conv(width, width, 3, stride, groups=32)
            body = (conv(inner, width, 1), middle, conv(width, 2 * width, 1, act=None))
            way = conv(inner, 2 * width, 1, stride, act=None) if inner != 2 * width else None
            layers += [Residual(*body, way=way), nn.ReLU()]
            inner = 2 * width
    return nn.Sequential(*layers, classifier(inner))


class Experts(nn.Module):
    """Two of six feed-forward networks for each word, all of them computed."""

    def __init__(self, width: int = 256, count: int = 6) -> None:
        super().__init__()
        self.norm, self.gate = nn.LayerNorm(width), nn.Linear(width, count)
        self.up = nn.Parameter(torch.randn(count, width, 512) / math.sqrt(width))
        self.down = nn.Parameter(torch.randn(count, 512, width) / math.sqrt(512))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        share = self.gate(y).softmax(-1)
        top, which = share.topk(2, -1)
        share = torch.zeros_like(share).scatter(-1, which, top)
        wide = nn.functional.silu(torch.einsum("btd,edf->betf", y, self.up))
        made = torch.einsum("betf,efd->betd", wide, self.down)
        return x + (made * share.permute(0, 2, 1).unsqueeze(-1)).sum(1)


def image(size: int = 224) -> Inputs:
    """One picture."""
    return (torch.randn(1, 3, size, size),)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Inputs]] = {
    "autoencoder": (autoencoder, (torch.randn(1, 4, 16, 16),)),
    "edsr": (edsr, image(64)),
    "experts": (lambda: nn.Sequential(Experts(), Experts()), (torch.randn(1, 64, 256),)),
    "generator": (generator, (torch.randn(1, 100, 1, 1),)),
    "mobilenet_v3": (mobilenet_v3, image()),
    "recommender": (Recommender, (torch.randn(32, 13), torch.randint(0, 1000, (32, 26)))),
    "resnext": (resnext, image()),
    "shufflenet_v2": (shufflenet_v2, image()),
    "video": (video, (torch.randn(1, 3, 16, 56, 56),)),
    "yolo": (Yolo, image(320)),
}
"""How to build each model, and what it takes."""


def initialise(model: nn.Module, inputs: Inputs) -> None:
    """He-like weights; batch norms have the statistics of what meets them."""
    for module in model.modules():
        weight = getattr(module, "weight", None)
        if isinstance(module, nn.ConvTranspose2d):
            seen = weight.shape[0] * weight[0, 0].numel() / math.prod(module.stride)
            nn.init.normal_(weight, std=seen**-0.5)
        elif isinstance(module, nn.Conv2d | nn.Conv3d | nn.Linear):
            nn.init.normal_(weight, std=weight[0].numel() ** -0.5)
        elif weight is not None and weight.ndim == 1:
            nn.init.normal_(weight, 1.0, 0.1)
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.momentum = 1.0
            module.train()
    fours = (tensor.repeat(4, *(1,) * (tensor.ndim - 1)) for tensor in inputs)
    # drawn anew, after the seed: what the networks are traced with is not
    model(*(torch.randn_like(x) if x.is_floating_point() else x for x in fours))


def export(name: str, seed: int) -> onnx.ModelProto:
    """One model in ONNX."""
    torch.manual_seed(seed)
    build, inputs = NETWORKS[name]

    def initialised() -> nn.Module:
        model = build().eval()
        initialise(model, inputs)
        return model

    return traced(initialised, inputs)


if __name__ == "__main__":
    write_models(__doc__, NETWORKS, export)
