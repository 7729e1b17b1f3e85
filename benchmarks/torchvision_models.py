"""Exports torchvision's models: detectors whole, with their suppression of boxes, and others.

    python3 -m venv torchvision_env && torchvision_env/bin/pip install torchvision onnx
    torchvision_env/bin/python benchmarks/torchvision_models.py --out torchvision_models
    .venv-bench/bin/python benchmarks/compare.py torchvision_models/*.onnx --rounds 3 \\
        --engines tvm_ext,onnxruntime,openvino

In an environment of its own, since torchvision asks for one version of torch and the peers for
another. Weights are random, in feature extractors such that activations neither vanish nor grow
(He et al. 2015). Detectors keep 50 boxes, of any score: theirs mean nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import onnx
import torch
import torchvision
from export_command import traced, write_models
from torch import nn

OPSET = 17
Inputs = tuple[Any, ...]
Model = tuple[Callable[[], nn.Module], Inputs]

BLANK = {"weights": None, "weights_backbone": None}
KEPT = {"topk_candidates": 200, "detections_per_img": 50, "score_thresh": 0.005}
REGIONS = {
    "rpn_pre_nms_top_n_test": 200,
    "rpn_post_nms_top_n_test": 100,
    "box_detections_per_img": 50,
    "box_score_thresh": 0.0,
}


def _drawn(model: nn.Module, *inputs: torch.Tensor) -> nn.Module:
    """The model, its convolutions and products drawn anew, its norms those of what it makes of
    two pictures."""
    for part in model.modules():
        if isinstance(part, (nn.Conv2d, nn.Conv3d, nn.Linear)):
            nn.init.kaiming_normal_(part.weight, nonlinearity="relu")
    model.eval()
    for part in model.modules():
        if isinstance(part, (nn.BatchNorm2d, nn.BatchNorm3d)):
            part.train()
            part.momentum = 1.0
    with torch.no_grad():
        model(*(torch.cat([one, torch.randn_like(one)]) for one in inputs))
    return model.eval()


def _detector(name: str, extent: int, **options: Any) -> nn.Module:
    model: nn.Module = getattr(torchvision.models.detection, name)(**BLANK, **options)
    _drawn(model.backbone, *_image(extent))  # heads are drawn small, and stay so
    return model


class _Out(nn.Module):
    """Segmentation, of which a dictionary comes out."""

    def __init__(self, name: str) -> None:
        super().__init__()
        model = getattr(torchvision.models.segmentation, name)(**BLANK)
        self.model = _drawn(model, *_image(224))

    def forward(self, image: torch.Tensor) -> Any:
        return self.model(image)["out"]


class _Flow(nn.Module):
    """Optical flow between two images after four refinements."""

    def __init__(self) -> None:
        super().__init__()
        model = torchvision.models.optical_flow.raft_small(weights=None)
        self.model = _drawn(model, *_image(128, 192), *_image(128, 192))

    def forward(self, one: torch.Tensor, other: torch.Tensor) -> Any:
        return self.model(one, other, num_flow_updates=4)[-1]


def _image(height: int, width: int | None = None) -> Inputs:
    return (torch.randn(1, 3, height, width or height),)


def _detectors() -> dict[str, Model]:
    sized = {"min_size": 256, "max_size": 256}
    found: dict[str, Model] = {}
    for name, extent, options in (
        ("fasterrcnn_mobilenet_v3_large_320_fpn", 320, REGIONS),
        ("fasterrcnn_resnet50_fpn", 256, REGIONS | sized),
        ("retinanet_resnet50_fpn", 256, KEPT | sized),
        ("fcos_resnet50_fpn", 256, KEPT | sized),
        ("ssd300_vgg16", 300, KEPT),
        ("ssdlite320_mobilenet_v3_large", 320, KEPT),
    ):
        images = ([torch.rand(3, extent, extent)],)
        found[name] = (partial(_detector, name, extent, **options), images)
    return found


def _classifier(name: str, *inputs: torch.Tensor) -> nn.Module:
    return _drawn(torchvision.models.get_model(name, weights=None), *inputs)


EXTENTS = {"inception_v3": 299, "swin_v2_t": 256}
CLASSIFIERS = (
    "alexnet convnext_tiny densenet121 efficientnet_b0 efficientnet_v2_s googlenet inception_v3 "
    "maxvit_t mnasnet1_0 mobilenet_v3_large mobilenet_v3_small regnet_x_800mf regnet_y_400mf "
    "resnext50_32x4d shufflenet_v2_x1_0 squeezenet1_1 swin_t swin_v2_t vgg11_bn vit_b_32 "
    "wide_resnet50_2"
)
SEGMENTERS = "fcn_resnet50 deeplabv3_mobilenet_v3_large lraspp_mobilenet_v3_large"
VIDEOS = {"r3d_18": 112, "mc3_18": 112, "r2plus1d_18": 112, "swin3d_t": 224}


def _classifiers() -> dict[str, Model]:
    inputs = {name: _image(EXTENTS.get(name, 224)) for name in CLASSIFIERS.split()}
    inputs |= {name: (torch.randn(1, 3, 16, at, at),) for name, at in VIDEOS.items()}
    return {name: (partial(_classifier, name, *given), given) for name, given in inputs.items()}


MODELS: dict[str, Model] = {
    **_detectors(),
    **{name: (partial(_Out, name), _image(224)) for name in SEGMENTERS.split()},
    "raft_small": (_Flow, (*_image(128, 192), *_image(128, 192))),
    **_classifiers(),
}


def _export(name: str, seed: int) -> onnx.ModelProto:
    torch.manual_seed(seed)
    torch.backends.mha.set_fastpath_enabled(False)  # which the exporter cannot write
    build, inputs = MODELS[name]
    return traced(build, inputs, opset=OPSET)


if __name__ == "__main__":
    write_models(__doc__, MODELS, _export)
