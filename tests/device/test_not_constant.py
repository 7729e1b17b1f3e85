"""What has to be a constant and is none is said in one line; as far as data may say how much there
is, they do."""

from __future__ import annotations

import pytest
from onnx_cases import check_case

from tvm_ext.errors import ModelError


@pytest.mark.parametrize(
    ("case", "fed", "message"),
    [
        ("top_k", "k", r"TopK \(node 'values'\) takes 'K' from input 'k', which is no constant"),
        ("reduce_sum_do_not_keepdims_random", "axes", "takes 'axes' from input 'axes'"),
        ("edge_pad", "pads", "takes 'pads' from input 'pads'"),
        ("split_variable_parts_2d_opset18", "split", "takes 'split' from input 'split'"),
        ("cumsum_1d", "axis", "takes 'axis' from input 'axis'"),
        ("onehot_with_axis", "depth", "takes 'depth' from input 'depth'"),
        ("center_crop_pad_crop", "shape", "Pad .* takes 'pads' from input 'shape'"),
        ("range_int32_type_negative_delta_expanded", "limit", "takes 'M' from .*input 'limit'"),
        ("hannwindow", "", "Range .* makes as many elements as data say, and TVM .* cannot"),
        ("split_to_sequence_nokeepdims", "", "output 'seq' is a sequence; only tensors"),
    ],
)
def test_what_has_to_be_a_constant(case: str, fed: str, message: str) -> None:
    """It names the node, what it takes and the input that this hangs on."""
    with pytest.raises(ModelError, match=message) as refused:
        check_case(case, fed=[fed] if fed else [])
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("case", "fed"),
    [
        ("compress_bfloat16", ["condition"]),
        ("unique_bfloat16_sorted_without_axis", []),
        ("range_float16_type_positive_delta", ["limit", "delta"]),
    ],
)
def test_halves_of_which_data_say_how_many(case: str, fed: list[str]) -> None:
    """They are not computed in more bits: TVM casts nothing of unknown extents."""
    check_case(case, fed=fed)
