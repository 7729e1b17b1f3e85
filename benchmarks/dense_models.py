"""Exports networks that answer for each point, and others of shapes not met so far; random weights.

    python benchmarks/dense_models.py --out dense_models               # all of them
    python benchmarks/dense_models.py --out dense_models cyclegan
    python benchmarks/compare.py dense_models/*.onnx --rounds 3

Images of images, labels or depths for every pixel, sound, points in space, lines of text: instance
norms, reflected borders, holes in kernels, enlarged maps, transposed convolutions by odd kernels.
Architectures as published, smaller.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import onnx
import torch
from export_command import traced, write_models
from other_models import Inputs, Residual, conv, image, initialise
from torch import nn
from torch.nn import functional


def _padded(inner: int, outer: int, kernel: int, stride: int = 1) -> list[nn.Module]:
    return [nn.ReflectionPad2d(kernel // 2), nn.Conv2d(inner, outer, kernel, stride)]


def _normed(inner: int, outer: int, kernel: int, stride: int = 1) -> list[nn.Module]:
    return [
        *_padded(inner, outer, kernel, stride),
        nn.InstanceNorm2d(outer, affine=True),
        nn.ReLU(),
    ]


def cyclegan(width: int = 32) -> nn.Module:
    """Zhu et al. 2017: down twice, residual blocks, up twice by transposed convolutions."""
    deep = 4 * width

    def up(inner: int, outer: int) -> list[nn.Module]:
        larger = nn.ConvTranspose2d(inner, outer, 3, 2, 1, output_padding=1)
        return [larger, nn.InstanceNorm2d(outer), nn.ReLU()]

    blocks = (
        Residual(*_normed(deep, deep, 3), *_padded(deep, deep, 3), nn.InstanceNorm2d(deep))
        for _ in range(4)
    )
    return nn.Sequential(
        *_normed(3, width, 7),
        nn.Conv2d(width, 2 * width, 3, 2, 1),
        nn.InstanceNorm2d(2 * width),
        nn.ReLU(),
        nn.Conv2d(2 * width, deep, 3, 2, 1),
        nn.InstanceNorm2d(deep),
        nn.ReLU(),
        *blocks,
        *up(deep, 2 * width),
        *up(2 * width, width),
        *_padded(width, 3, 7),
        nn.Tanh(),
    )


def style(width: int = 32) -> nn.Module:
    """Johnson et al. 2016: the same with enlarged maps in place of transposed convolutions."""
    deep = 4 * width
    blocks = (
        Residual(
            *_normed(deep, deep, 3), *_padded(deep, deep, 3), nn.InstanceNorm2d(deep, affine=True)
        )
        for _ in range(3)
    )
    return nn.Sequential(
        *_normed(3, width, 9),
        *_normed(width, 2 * width, 3, 2),
        *_normed(2 * width, deep, 3, 2),
        *blocks,
        nn.Upsample(scale_factor=2),
        *_normed(deep, 2 * width, 3),
        nn.Upsample(scale_factor=2),
        *_normed(2 * width, width, 3),
        *_padded(width, 3, 9),
    )


def holes(inner: int, outer: int, rate: int) -> nn.Module:
    """A window with holes, batch norm and an activation."""
    layer = nn.Conv2d(inner, outer, 3, padding=rate, dilation=rate, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outer), nn.ReLU())


class Pyramid(nn.Module):
    """DeepLab's head (Chen et al. 2017): holes of several sizes, the whole image, then enlarged."""

    def __init__(
        self, inner: int, width: int, classes: int, rates: tuple[int, ...] = (6, 12, 18)
    ) -> None:
        super().__init__()
        branches = (holes(inner, width, rate) for rate in rates)
        self.branches = nn.ModuleList([conv(inner, width, 1), *branches])
        self.whole = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(inner, width, 1), nn.ReLU())
        self.last = nn.Sequential(conv(5 * width, width, 1), nn.Conv2d(width, classes, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = [branch(x) for branch in self.branches]
        size = (int(x.shape[2]), int(x.shape[3]))
        found.append(functional.interpolate(self.whole(x), size))
        labels = self.last(torch.cat(found, 1))
        return functional.interpolate(labels, scale_factor=8.0, mode="bilinear")


def deeplab() -> nn.Module:
    """A small residual network by 8, and the pyramid on it."""

    def block(inner: int, outer: int, stride: int) -> nn.Module:
        way = conv(inner, outer, 1, stride, act=None) if inner != outer else None
        return nn.Sequential(
            Residual(conv(inner, outer, 3, stride), conv(outer, outer, 3, act=None), way=way),
            nn.ReLU(),
        )

    trunk = [conv(3, 64, 7, 2), block(64, 64, 1), block(64, 128, 2), block(128, 256, 2)]
    return nn.Sequential(*trunk, Pyramid(256, 96, 21))


def dilated() -> nn.Module:
    """ResNet-50 by 8: in its last two stages windows have holes in place of strides."""

    def block(inner: int, width: int, stride: int, rate: int) -> nn.Module:
        outer = 4 * width
        way = conv(inner, outer, 1, stride, act=None) if inner != outer else None
        middle = holes(width, width, rate) if rate > 1 else conv(width, width, 3, stride)
        body = conv(inner, width, 1), middle, conv(width, outer, 1, act=None)
        return nn.Sequential(Residual(*body, way=way), nn.ReLU())

    layers, inner = [conv(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)], 64
    for width, count, stride, rate in (
        (64, 3, 1, 1),
        (128, 4, 2, 1),
        (256, 6, 1, 2),
        (512, 3, 1, 4),
    ):
        for place in range(count):
            layers.append(block(inner, width, 1 if place else stride, rate))
            inner = 4 * width
    return nn.Sequential(*layers)


def fcn() -> nn.Module:
    """Shelhamer et al. 2017, on a dilated network."""
    head = conv(2048, 512), nn.Conv2d(512, 21, 1)
    return nn.Sequential(dilated(), *head, nn.Upsample(scale_factor=8, mode="bilinear"))


class Exchange(nn.Module):
    """High-resolution network (Wang et al. 2020): maps of several sizes, each given to all."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()

        def block(width: int) -> nn.Module:
            body = conv(width, width), conv(width, width, act=None)
            return nn.Sequential(Residual(*body), nn.ReLU())

        def way(here: int, there: int) -> nn.Module:
            if there <= here:
                return conv(widths[here], widths[there], 1, act=None)
            steps = [conv(widths[here], widths[here], 3, 2) for _ in range(there - here - 1)]
            return nn.Sequential(*steps, conv(widths[here], widths[there], 3, 2, act=None))

        self.blocks = nn.ModuleList(nn.Sequential(*(block(w) for _ in range(2))) for w in widths)
        sizes = range(len(widths))
        self.ways = nn.ModuleList(nn.ModuleList(way(i, j) for i in sizes) for j in sizes)

    def forward(self, maps: list[torch.Tensor]) -> list[torch.Tensor]:
        maps = [block(x) for block, x in zip(self.blocks, maps, strict=True)]
        found = []
        for place, ways in enumerate(self.ways):
            size = (int(maps[place].shape[2]), int(maps[place].shape[3]))
            parts = [
                functional.interpolate(way(x), size, mode="bilinear") if i > place else way(x)
                for i, (way, x) in enumerate(zip(ways, maps, strict=True))
            ]
            found.append(torch.relu(torch.stack(parts).sum(0)))
        return found


class HighResolution(nn.Module):
    """Three sizes, two exchanges, a heat map for each of 17 joints."""

    def __init__(self, widths: tuple[int, ...] = (32, 64, 128)) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv(3, 64, 3, 2), conv(64, widths[0], 3, 2))
        smaller = pairwise(widths)
        self.down = nn.ModuleList(conv(inner, outer, 3, 2) for inner, outer in smaller)
        self.exchanges = nn.ModuleList(Exchange(widths) for _ in range(2))
        self.last = nn.Conv2d(widths[0], 17, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        maps = [self.stem(x)]
        for layer in self.down:
            maps.append(layer(maps[-1]))
        for exchange in self.exchanges:
            maps = exchange(maps)
        return self.last(maps[0])


class Depth(nn.Module):
    """Monodepth2 (Godard et al. 2019), a small encoder: reflected borders, ELU, skips."""

    def __init__(self, widths: tuple[int, ...] = (32, 64, 96, 128)) -> None:
        super().__init__()
        ends = zip((3, *widths), widths, strict=False)
        self.down = nn.ModuleList(conv(inner, outer, 3, 2) for inner, outer in ends)
        self.up, self.after = nn.ModuleList(), nn.ModuleList()
        for inner, outer in zip(reversed(widths), (*reversed(widths[:-1]), 16), strict=True):
            self.up.append(nn.Sequential(*_padded(inner, outer, 3), nn.ELU()))
            both = outer if outer == 16 else 2 * outer
            self.after.append(nn.Sequential(*_padded(both, outer, 3), nn.ELU()))
        self.last = nn.Sequential(*_padded(16, 1, 3), nn.Sigmoid())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = []
        for layer in self.down:
            x = layer(x)
            skips.append(x)
        skips.pop()
        for up, after in zip(self.up, self.after, strict=True):
            x = functional.interpolate(up(x), scale_factor=2.0)
            x = after(torch.cat([x, skips.pop()], 1) if skips else x)
        return self.last(x)


class Points(nn.Module):
    """PointNet (Qi et al. 2017): the same layers on every point, the greatest of each feature."""

    def __init__(self) -> None:
        super().__init__()

        def layer(inner: int, outer: int) -> list[nn.Module]:
            return [nn.Conv1d(inner, outer, 1), nn.BatchNorm1d(outer), nn.ReLU()]

        self.each = nn.Sequential(*layer(3, 64), *layer(64, 64), *layer(64, 128))
        self.more = nn.Sequential(*layer(128, 1024))
        self.label = nn.Sequential(*layer(1024 + 128, 256), *layer(256, 128), nn.Conv1d(128, 50, 1))

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        each = self.each(points)
        whole = self.more(each).max(2, keepdim=True).values
        return self.label(torch.cat([each, whole.expand(-1, -1, each.shape[2])], 1))


class Line(nn.Module):
    """Text of a line (Shi et al. 2015): convolutions, then a recurrent layer over its columns."""

    def __init__(self) -> None:
        super().__init__()
        self.columns = nn.Sequential(
            *(conv(1, 32), nn.MaxPool2d(2), conv(32, 64), nn.MaxPool2d(2)),
            *(conv(64, 128), conv(128, 128), nn.MaxPool2d((2, 1))),
            *(conv(128, 256), nn.MaxPool2d((2, 1)), nn.Conv2d(256, 256, (2, 1))),
        )
        self.recurrent = nn.LSTM(256, 128, bidirectional=True)
        self.letters = nn.Linear(256, 96)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        columns = self.columns(x).squeeze(2).permute(2, 0, 1)
        return self.letters(self.recurrent(columns)[0])


class Sound(nn.Module):
    """HiFi-GAN (Kong et al. 2020), narrow: frames to samples by transposed convolutions."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv1d(80, width, 7, padding=3)]
        for rate, kernel in ((8, 16), (8, 16), (2, 4)):
            pad = (kernel - rate) // 2
            layers += [nn.LeakyReLU(0.1), nn.ConvTranspose1d(width, width // 2, kernel, rate, pad)]
            width //= 2
            for size in (3, 7):
                body = (
                    (nn.LeakyReLU(0.1), nn.Conv1d(width, width, size, 1, d * (size // 2), d))
                    for d in (1, 3)
                )
                layers.append(Residual(*(layer for pair in body for layer in pair)))
        self.body = nn.Sequential(
            *layers, nn.LeakyReLU(0.1), nn.Conv1d(width, 1, 7, padding=3), nn.Tanh()
        )

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        return self.body(frames)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Inputs]] = {
    "cyclegan": (cyclegan, image(128)),
    "deeplab": (deeplab, image(192)),
    "deeplab_wide": (
        lambda: nn.Sequential(dilated(), Pyramid(2048, 256, 21, (12, 24, 36))),
        image(256),
    ),
    "depth": (Depth, image(192)),
    "fcn": (fcn, image(256)),
    "high_resolution": (HighResolution, image(192)),
    "line": (Line, (torch.randn(1, 1, 32, 256),)),
    "points": (Points, (torch.randn(1, 3, 1024),)),
    "sound": (Sound, (torch.randn(1, 80, 64),)),
    "style": (style, image(128)),
}


def export(name: str, seed: int) -> onnx.ModelProto:
    """One model in ONNX."""
    torch.manual_seed(seed)
    build, inputs = NETWORKS[name]

    def initialised() -> nn.Module:
        model = build().eval()
        initialise(model, inputs)
        return model.eval()

    return traced(initialised, inputs)


if __name__ == "__main__":
    write_models(__doc__, NETWORKS, export)
