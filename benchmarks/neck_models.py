"""Exports what joins coarse maps to fine ones: necks of detectors, a head of a segmenter.

    python benchmarks/neck_models.py --out neck_models                 # all of them
    python benchmarks/neck_models.py --out neck_models yolo8
    python benchmarks/compare.py neck_models/*.onnx --engines tvm_ext,onnxruntime,openvino

Of the sizes of YOLOv5s, YOLOv8n and v8s for pictures of 640, and of DeepLabv3+ for 512. Weights are
random.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx
import torch
from export_command import traced, write_models
from torch import nn
from torch.nn.functional import interpolate, silu

Inputs = tuple[torch.Tensor, ...]


class Stage(nn.Module):
    """Two ways through half of the channels each, one of them by 3 x 3 (YOLOv5's C3)."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        half = outer // 2
        self.long, self.short = nn.Conv2d(inner, half, 1), nn.Conv2d(inner, half, 1)
        self.first, self.second = nn.Conv2d(half, half, 1), nn.Conv2d(half, half, 3, padding=1)
        self.last = nn.Conv2d(outer, outer, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        way = silu(self.second(silu(self.first(silu(self.long(x))))))
        return silu(self.last(torch.cat([way, silu(self.short(x))], 1)))


class Neck(nn.Module):
    """Coarse maps doubled and joined to finer ones, twice; `narrowed` first (YOLOv5) or as wide as
    they are (YOLOv8)."""

    def __init__(self, width: int, *, narrowed: bool, mode: str = "nearest") -> None:
        super().__init__()
        self.mode = mode
        fine, middle, coarse = width, 2 * width, 4 * width
        self.narrow = nn.ModuleList(
            nn.Conv2d(2 * size, size, 1) if narrowed else nn.Identity() for size in (middle, fine)
        )
        joined = (2 * middle, 2 * fine) if narrowed else (coarse + middle, middle + fine)
        self.stages = nn.ModuleList([Stage(joined[0], middle), Stage(joined[1], fine)])

    def forward(
        self, fine: torch.Tensor, middle: torch.Tensor, x: torch.Tensor
    ) -> list[torch.Tensor]:
        found = []
        for narrow, stage, beside in zip(self.narrow, self.stages, (middle, fine), strict=True):
            x = narrow(x)
            found.append(x)
            large = interpolate(x, scale_factor=2.0, mode=self.mode)
            x = stage(torch.cat([large, beside], 1))
        return [*found, x]


class Head(nn.Module):
    """DeepLabv3+ (Chen et al. 2018) behind its pyramid, with 1 x 1 convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.fine, self.both = nn.Conv2d(256, 48, 1), nn.Conv2d(304, 256, 1)
        self.labels = nn.Conv2d(256, 21, 1)

    def forward(self, x: torch.Tensor, fine: torch.Tensor) -> torch.Tensor:
        large = interpolate(x, scale_factor=4.0, mode="bilinear")
        y = self.both(torch.cat([large, self.fine(fine).relu()], 1)).relu()
        return interpolate(self.labels(y), scale_factor=4.0, mode="bilinear")


def maps(width: int) -> Inputs:
    """Those of a picture of 640 x 640, as an eighth, a sixteenth and a 32nd of it."""
    sizes = ((width, 80), (2 * width, 40), (4 * width, 20))
    return tuple(torch.randn(1, channels, size, size) for channels, size in sizes)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Inputs]] = {
    "bilinear": (lambda: Neck(128, narrowed=True, mode="bilinear"), maps(128)),
    "deeplab_head": (Head, (torch.randn(1, 256, 32, 32), torch.randn(1, 256, 128, 128))),
    "yolo5": (lambda: Neck(128, narrowed=True), maps(128)),
    "yolo8": (lambda: Neck(128, narrowed=False), maps(128)),
    "yolo8_nano": (lambda: Neck(64, narrowed=False), maps(64)),
}


def export(name: str, seed: int) -> onnx.ModelProto:
    """One model in ONNX."""
    torch.manual_seed(seed)
    build, inputs = NETWORKS[name]
    model = build()
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
    return traced(lambda: model, inputs)


if __name__ == "__main__":
    write_models(__doc__, NETWORKS, export)
