"""Every bad model or shape gives one line that names its subject and a remedy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_models import LIGHT, make_model, value

from tvm_ext.errors import ModelError, ShapeError, TvmExtError
from tvm_ext.frontend.from_onnx import import_onnx
from tvm_ext.frontend.load import load_onnx
from tvm_ext.frontend.shapes import parse_shape, resolve_shapes

SQUEEZENET = LIGHT / "light_squeezenet.onnx"


def assert_one_line(error: TvmExtError, *parts: str) -> None:
    message = str(error)
    assert "\n" not in message
    for part in parts:
        assert part in message, f"{part!r} is not in {message!r}"


def load_error(source: Path | onnx.ModelProto, *parts: str) -> None:
    with pytest.raises(ModelError) as caught:
        load_onnx(source)
    assert_one_line(caught.value, *parts)


def import_error(model: onnx.ModelProto, *parts: str) -> None:
    with pytest.raises(ModelError) as caught:
        import_onnx(model)
    assert_one_line(caught.value, *parts)


def relu(x: onnx.ValueInfoProto, **attributes: object) -> onnx.ModelProto:
    return make_model([helper.make_node("Relu", ["x"], ["y"])], [x], ["y"], **attributes)


# Files


def test_missing_file(tmp_path: Path) -> None:
    load_error(tmp_path / "no.onnx", "no.onnx", "no such file", "check the path")


def test_directory_names_the_model_in_it(tmp_path: Path) -> None:
    load_error(tmp_path, str(tmp_path), "is a directory", "give a .onnx file")
    (tmp_path / "inner.onnx").write_bytes(b"x")
    load_error(tmp_path, "is a directory", str(tmp_path / "inner.onnx"))


def test_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "empty.onnx"
    path.touch()
    load_error(path, "empty.onnx", "is empty", "export it again")


@pytest.mark.parametrize("kept", [1, 100, 5000, -1])
def test_truncated_file(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "cut.onnx"
    whole = SQUEEZENET.read_bytes()
    path.write_bytes(whole[:kept])
    load_error(path, "cut.onnx", "truncated", f"holds {len(whole[:kept])} bytes", "copy")


def test_damaged_file(tmp_path: Path) -> None:
    path = tmp_path / "bad.onnx"
    whole = bytearray(SQUEEZENET.read_bytes())
    # A field inside the graph is made to claim more than the graph holds.
    whole[whole.index(b"conv10_b_0") - 1] = 0x7F
    path.write_bytes(whole)
    load_error(path, "bad.onnx", "is damaged", "copy or download it again")


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"\x89PNG\r\n\x1a\n" + bytes(100), "PNG image"),
        (b"PK\x03\x04" + bytes(100), "zip archive"),
        (b"\x80\x04\x95" + bytes(100), "Python pickle"),
        (b"just some text\n", "text file"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (bytes(range(256)), "not an ONNX model"),
    ],
)
def test_file_of_another_kind(tmp_path: Path, content: bytes, what: str) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    load_error(path, "model.onnx", "is not an ONNX model", what)


def test_another_protobuf_message(tmp_path: Path) -> None:
    path = tmp_path / "tensor.onnx"
    path.write_bytes(helper.make_tensor_type_proto(TensorProto.FLOAT, [1]).SerializeToString())
    load_error(path, "tensor.onnx", "is not an ONNX model")


def external(tmp_path: Path) -> Path:
    model = make_model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        [value("x", 4, 64)],
        ["y"],
        {"w": np.ones((64, 64), np.float32)},
    )
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights.bin")
    return path


def test_external_data_is_read(tmp_path: Path) -> None:
    model = load_onnx(external(tmp_path))
    assert onnx.numpy_helper.to_array(model.graph.initializer[0]).sum() == 64 * 64


def test_external_data_missing(tmp_path: Path) -> None:
    path = external(tmp_path)
    (tmp_path / "weights.bin").unlink()
    load_error(path, "model.onnx", "weights.bin is missing", "'w'", "put it beside the model")


def test_external_data_truncated(tmp_path: Path) -> None:
    path = external(tmp_path)
    (tmp_path / "weights.bin").write_bytes(bytes(100))
    load_error(path, "weights.bin is truncated", "100 bytes", "copy or download it again")


def test_external_data_outside_the_folder_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    path = external(tmp_path / "inner")
    (tmp_path / "secret.bin").write_bytes(bytes(64 * 64 * 4))
    model = onnx.load(path, load_external_data=False)
    next(
        e for e in model.graph.initializer[0].external_data if e.key == "location"
    ).value = "../secret.bin"
    path.write_bytes(model.SerializeToString())
    load_error(path, "secret.bin")


def test_model_with_external_data_not_loaded(tmp_path: Path) -> None:
    model = onnx.load(external(tmp_path), load_external_data=False)
    load_error(model, "'w' is not loaded", "give the path")


# Models


def test_no_outputs() -> None:
    load_error(make_model([], [value("x", 1)], []), "has no outputs", "export it again")


def test_newer_opset() -> None:
    load_error(relu(value("x", 1), opset=999), "opset 999", "knows up to", "upgrade onnx")


def test_newer_ir_version() -> None:
    model = relu(value("x", 1))
    model.ir_version = 999
    load_error(model, "IR version 999", "knows up to", "upgrade onnx")


def test_invalid_model_gets_the_checkers_first_line() -> None:
    model = make_model([helper.make_node("Add", ["x", "ghost"], ["y"])], [value("x", 1)], ["y"])
    load_error(model, "is not a valid ONNX model", "'ghost'", "topologically sorted")


def test_constant_that_does_not_fill_its_shape() -> None:
    for extent in (3, 3000):
        model = make_model(
            [helper.make_node("Add", ["x", "w"], ["y"])], [value("x", extent)], ["y"]
        )
        model.graph.initializer.append(
            TensorProto(name="w", data_type=1, dims=[extent], raw_data=bytes(4 * extent + 4))
        )
        import_error(model, "'w'", "does not fill its shape", f"({extent},)", "export")


def test_inputs_that_are_no_tensors() -> None:
    sequence = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None)
    model = make_model([helper.make_node("SequenceLength", ["s"], ["y"])], [sequence], ["y"])
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    import_error(model, "input 's' is a sequence", "only tensors")
    strings = value("x", 2, dtype=TensorProto.STRING)
    model = make_model([helper.make_node("Identity", ["x"], ["y"])], [strings], ["y"])
    import_error(model, "input 'x' holds strings")


def test_all_unsupported_operators_are_listed_with_their_nodes() -> None:
    model = make_model(
        [
            helper.make_node("Relu", ["x"], ["a"]),
            helper.make_node("Det", ["a"], ["b"], name="first"),
            helper.make_node("Det", ["x"], ["c"]),
            helper.make_node("Unheard", ["b"], ["d"], name="standard domain, unknown"),
            helper.make_node("Foo", ["c"], ["e"], name="custom", domain="my.domain"),
            # A name that the importer knows, from a domain that it does not.
            helper.make_node("Relu", ["d"], ["f"], name="other relu", domain="my.domain"),
            helper.make_node("Add", ["e", "f"], ["y"]),
        ],
        [value("x", 1, 5, 5)],
        ["y"],
    )
    model.opset_import.append(helper.make_opsetid("my.domain", 1))
    import_error(
        model,
        "Det of more than 4 rows (node 'first', 'c')",
        "Unheard (node 'standard domain, unknown')",
        "my.domain::Foo (node 'custom')",
        "my.domain::Relu (node 'other relu')",
        "export without them",
    )


@pytest.mark.parametrize(
    ("node", "constants", "part"),
    [
        (
            helper.make_node("ConvTranspose", ["x", "w"], ["y"], output_shape=[10, 10]),
            {"w": np.ones((2, 2, 3, 3), np.float32)},
            "output_shape=(10, 10)",
        ),
        (
            helper.make_node("Dropout", ["x", "", "training"], ["y"]),
            {"training": np.array(True)},
            "in training mode",
        ),
        (helper.make_node("Expand", ["x", "s"], ["y"]), {}, "from input 's', which is no constant"),
    ],
)
def test_what_the_importer_would_get_wrong_is_refused(
    node: onnx.NodeProto, constants: Mapping[str, np.ndarray], part: str
) -> None:
    inputs = [value("x", 1, 2, 5, 5)]
    if "s" in node.input and not constants:
        inputs.append(value("s", 4, dtype=TensorProto.INT64))
    model = make_model([node], inputs, ["y"], constants)
    import_error(model, f"{node.op_type}", part, "node 'y'")


def test_resizes_that_cannot_be_compiled_are_named() -> None:
    half = {"s": np.array([1, 1, 0.5, 0.5], np.float32)}
    resize = helper.make_node("Resize", ["x", "", "s"], ["y"], mode="linear")
    bytes_ = value("x", 1, 2, 5, 5, dtype=TensorProto.UINT8)
    model = make_model([resize], [bytes_], [value("y", dtype=TensorProto.UINT8)], half)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    import_error(model, "Resize of other than floats", "node 'y'")
    upsample = helper.make_node("Upsample", ["x", "s"], ["y"])
    inputs = [value("x", 1, 2, 5, 5), value("s", 4)]
    model = make_model([upsample], inputs, ["y"], opset=9)
    import_error(model, "takes 'scales' from input 's', which is no constant", "node 'y'")


def test_an_error_inside_the_importer_names_the_node(capfd: pytest.CaptureFixture[str]) -> None:
    model = make_model(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="mixer")],
        [value("x", 2, 3)],
        ["y"],
        {"w": np.ones((4, 5), np.float32)},
    )
    import_error(
        model,
        "MatMul (node 'mixer')",
        "cannot be imported",
        "the LHS x has shape (2, 3), while the RHS a constant has shape (4, 5)",
        "export the model without",
    )
    printed = capfd.readouterr()
    assert printed.out == printed.err == ""


def test_shapes_that_do_not_go_together_are_told() -> None:
    add = helper.make_node("Add", ["x", "w"], ["y"])
    model = make_model([add], [value("x", 2, 3)], ["y"], {"w": np.ones(4, np.float32)})
    import_error(
        model,
        "Add (node 'y')",
        "In relax.add, the first input shape at dim 1 is 3 and the second",
        "shape at dim 0 is 4, which are not broadcastable",
    )


def test_windows_larger_than_what_they_slide_over() -> None:
    node = helper.make_node("Conv", ["x", "w"], ["y"])
    weights = {"w": np.ones((8, 8, 9), np.float32)}
    model = make_model([node], [value("x", 1, 8, 5)], ["y"], weights)
    import_error(model, "Conv (node 'y')", "its result 'y' would be of shape (1, 8, -3)")


# Shapes


def test_symbolic_dimensions_show_the_shape_to_give() -> None:
    model = make_model(
        [helper.make_node("Add", ["image", "image"], ["y"])],
        [value("image", "n", 3, "h", 224), value("tokens", "n", None)],
        ["y"],
    )
    with pytest.raises(ShapeError) as caught:
        resolve_shapes(model)
    assert_one_line(
        caught.value,
        "'image' (n, 3, h, 224)",
        "'tokens' (n, ?)",
        "--shape image=1,3,224,224 --shape tokens=1,128",
    )
    with pytest.raises(ShapeError) as caught:
        resolve_shapes(model, {"image": (8, 3, 32, 224)})
    assert_one_line(caught.value, "--shape tokens=8,128")
    assert "image" not in str(caught.value)


@pytest.mark.parametrize(
    ("shapes", "parts"),
    [
        ({"imaje": (1, 3, 8, 8)}, ["no input 'imaje'", "'image' (n, 3, 8, 8)", "did you mean"]),
        ({"zzz": (1,)}, ["no input 'zzz'", "'image'", "'mask'", "use one of them"]),
        ({"image": (1, 3, 8)}, ["'image'", "3 dimensions", "declares 4: (n, 3, 8, 8)"]),
        ({"image": (1, 4, 8, 8)}, ["'image'", "4 at position 1", "fixes it to 3", "give 3 there"]),
        ({"image": (0, 3, 8, 8)}, ["'image'", "0 is not positive"]),
        ({"n": (-1,)}, ["'n'", "-1 is not positive"]),
        ({"n": -1}, ["'n'", "-1 is not positive"]),
        ({"image": 5}, ["(5)", "'image'", "1 dimensions", "declares 4: (n, 3, 8, 8)"]),
        ({"n": (1, 3)}, ["'n' is a dimension, of input 'image' (n, 3, 8, 8)", "(1, 3)", "one"]),
        ({"n": 99_999_999_999_999}, ["'image'", "(99999999999999, 3, 8, 8)", "more than"]),
        ({"image": "1,3,8,8"}, ["'image'", "give a tuple of integers"]),
        ({"image": (1.5, 3, 8, 8)}, ["'image'", "give a tuple of integers"]),
        ({"image": (1, 3, 8, 8), "mask": (2, 8)}, ["'mask'", "'n' to 2", "'image' sets it to 1"]),
    ],
)
def test_shapes_that_do_not_fit(shapes: Mapping[str, tuple[int, ...]], parts: list[str]) -> None:
    model = make_model(
        [helper.make_node("Add", ["image", "w"], ["y"])],
        [value("image", "n", 3, 8, 8), value("mask", "n", 8), value("w", 1)],
        ["y"],
        {"w": np.ones(1, np.float32)},
    )
    with pytest.raises(ShapeError) as caught:
        resolve_shapes(model, shapes)
    assert_one_line(caught.value, *parts)
    assert "'w'" not in str(caught.value), "an initialiser is no input"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("1,3,224,224", "names no input"),
        ("=1,3", "names no input"),
        ("x=", "'' is neither a positive integer nor a name"),
        ("x=1,2.5", "'2.5' is neither"),
        ("x=1,-1", "'-1' is neither"),
        ("x=1,0", "'0' is neither"),
    ],
)
def test_shape_text_that_cannot_be_read(text: str, part: str) -> None:
    with pytest.raises(ShapeError) as caught:
        parse_shape(text)
    assert_one_line(caught.value, repr(text), part, "name=1,3,224,224")


def test_shape_text() -> None:
    assert parse_shape("x=1,3,224,224") == ("x", (1, 3, 224, 224))
    assert parse_shape(" gpu_0/data=v1=2, 3 ") == ("gpu_0/data=v1", (2, 3))
    assert parse_shape("x=n, 3,224,224") == ("x", ("n", 3, 224, 224))


def test_a_name_stands_for_an_extent() -> None:
    model = make_model(
        [helper.make_node("Add", ["image", "mask"], ["y"])],
        [value("image", "n", 3, 8), value("mask", "n", 1, 8)],
        ["y"],
    )
    given = {"image": ("k", 3, 8)}
    assert resolve_shapes(model, given, 7) == {"image": (7, 3, 8), "mask": (7, 1, 8)}
    for symbol in ("k", ("k",), 7):
        assert resolve_shapes(model, {"n": symbol}, 7) == {"image": (7, 3, 8), "mask": (7, 1, 8)}
    with pytest.raises(ShapeError) as caught:
        resolve_shapes(model, {"image": ("k", "k", 8)}, 7)
    assert_one_line(caught.value, "'image'", "'k' open at position 1", "fixes it to 3")


def test_names_are_said_not_what_stands_for_them() -> None:
    model = make_model(
        [helper.make_node("Add", ["image", "mask"], ["y"])],
        [value("image", "n", 3, 8), value("mask", "n", 1, 8)],
        ["y"],
    )
    numbers = {"p": 458, "q": 94}
    with pytest.raises(ShapeError) as caught:
        resolve_shapes(model, {"image": ("p", 3, 8), "mask": ("q", 1, 8)}, numbers)
    assert_one_line(caught.value, "(q, 1, 8)", "'mask'", "'n' to q", "'image' sets it to p")
    with pytest.raises(ShapeError) as caught:
        resolve_shapes(model, {"image": ("p", 3)}, numbers)
    assert_one_line(caught.value, "shape (p, 3) given for input 'image' has 2 dimensions")
    with pytest.raises(ModelError, match="extent 'p-460' of input 'image' is -2"):
        resolve_shapes(model, {"image": ("p-460", 3, 8)}, numbers)
