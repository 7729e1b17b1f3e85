"""Packaging of tvm_ext. The two TVM pins belong together: see `tvm_ext.tvm_api.check_install`."""

from pathlib import Path

from setuptools import find_packages, setup

TUNE = ["xgboost>=2.0", "psutil", "cloudpickle", "tornado"]
VERIFY = ["onnxruntime>=1.17"]
BENCH = [*VERIFY, "openvino>=2026", "torch==2.13.0", "transformers>=4.50"]
# nvcc, which makes cubins without a GPU. Unpinned, its parts resolve to releases that do not fit.
CUDA = [f"nvidia-{part}==13.0.*" for part in ("cuda-nvcc", "cuda-crt", "cuda-runtime", "nvvm")]
PLOT = ["matplotlib>=3.8"]
TEST = [*VERIFY, *PLOT, "pytest>=8", "pytest-xdist>=3.7", "hypothesis>=6", "ruff", "mypy"]

setup(
    name="tvm_ext",
    version="0.1.0",
    description="Auto-scheduler and tile-based passes for Apache TVM",
    long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.10",
    packages=find_packages(include=["tvm_ext", "tvm_ext.*"]),
    package_data={"tvm_ext": ["py.typed", "runtime/*.c"]},
    install_requires=[
        "apache-tvm==0.27.0.post1",
        "apache-tvm-ffi==0.1.14.post0",
        "numpy>=1.26",
        "onnx>=1.16",
        "onnx-ir>=1.0",
        "onnxscript>=0.7",
        "ml_dtypes",
        "scipy>=1.10",
        "msgspec>=0.18",
        "rich>=13",
        "filelock>=3.12",
        *TUNE,
    ],
    extras_require={"verify": VERIFY, "bench": BENCH, "plot": PLOT, "cuda": CUDA, "test": TEST},
)
