"""What the frontend makes of a good model: names, order, constants, old operators, functions."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper
from onnx_models import LIGHT, LIGHT_NAMES, light, make_model, value
from tvm import relax

from tvm_ext.frontend.from_onnx import ImportedModel, TensorInfo, import_onnx
from tvm_ext.frontend.randomise import randomise
from tvm_ext.frontend.shapes import resolve_shapes
from tvm_ext.frontend.simplify import simplify


def calls(imported: ImportedModel) -> list[str]:
    """Operators of `main` in order, without their namespace."""
    found: list[str] = []

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, tvm.ir.Call) and isinstance(expr.op, tvm.ir.Op):
            found.append(expr.op.name.rsplit(".", 1)[-1])

    relax.analysis.post_order_visit(imported.mod["main"].body, visit)
    return found


def constants(imported: ImportedModel) -> list[np.ndarray]:
    found: list[np.ndarray] = []

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, tvm.ir.GenericConst):
            found.append(expr.value.numpy())

    relax.analysis.post_order_visit(imported.mod["main"].body, visit)
    return found


def parameter_names(imported: ImportedModel) -> list[str]:
    return [parameter.name for parameter in imported.mod["main"].params]


@pytest.mark.parametrize("name", LIGHT_NAMES)
def test_light_models(name: str) -> None:
    imported = import_onnx(LIGHT / f"light_{name}.onnx")
    assert relax.analysis.check_well_formed(imported.mod)
    assert imported.notes == ()
    assert [entry.shape for entry in imported.inputs] == [(1, 3, 224, 224)]
    (output,) = light(name).graph.output
    extents = tuple(dim.dim_value for dim in output.type.tensor_type.shape.dim)
    assert imported.outputs == (TensorInfo(output.name, "float32", extents),)
    assert len(parameter_names(imported)) == 1
    assert not {"batch_norm", "dropout", "broadcast_to", "stack"} & set(calls(imported))


def test_names_become_unique_identifiers_and_are_kept_for_the_user() -> None:
    names = ["gpu_0/data", "gpu_0.data", "0", "float", "lambda", "häuser", "plain"]
    model = make_model(
        [
            helper.make_node("Sum", names, ["gpu_0_data"]),
            helper.make_node("Relu", ["gpu_0_data"], ["out/0:0"]),
        ],
        [value(name, 2) for name in names],
        [value("out/0:0", 2), value("gpu_0_data", 2)],
    )
    imported = import_onnx(model)
    assert [entry.name for entry in imported.inputs] == names
    assert [entry.name for entry in imported.outputs] == ["out/0:0", "gpu_0_data"]
    clean = parameter_names(imported)
    assert len(set(clean)) == len(names)
    assert all(re.fullmatch("[A-Za-z_][A-Za-z_0-9]*", name) for name in clean)
    assert not {"float", "lambda", "gpu_0_data"} & set(clean)
    assert clean[-1] == "plain"
    assert calls(imported)[-1] == "relu"


def test_order_types_and_scalars() -> None:
    model = make_model(
        [
            helper.make_node("Cast", ["count"], ["wide"], to=TensorProto.DOUBLE),
            helper.make_node("Mul", ["x", "wide"], ["product"]),
            helper.make_node("ReduceSum", ["product"], ["sum"], keepdims=0),
            helper.make_node("NonZero", ["product"], ["where"]),
        ],
        [
            value("x", 2, 3, dtype=TensorProto.DOUBLE),
            value("count", dtype=TensorProto.INT64),
            value("idle", 4, dtype=TensorProto.INT8),
        ],
        [
            value("where", 2, "n", dtype=TensorProto.INT64),
            value("sum", dtype=TensorProto.DOUBLE),
            value("product", 2, 3, dtype=TensorProto.DOUBLE),
        ],
    )
    imported = import_onnx(model)
    assert imported.inputs == (
        TensorInfo("x", "float64", (2, 3)),
        TensorInfo("count", "int64", ()),
        TensorInfo("idle", "int8", (4,)),
    )
    assert imported.outputs == (
        TensorInfo("where", "int64", (-1, -1)),
        TensorInfo("sum", "float64", ()),
        TensorInfo("product", "float64", (2, 3)),
    )


def test_outputs_that_no_node_computes() -> None:
    model = make_model(
        [
            helper.make_node("Relu", ["x"], ["y"]),
            helper.make_node("Constant", [], ["made"], value_floats=[1.0, 2.0]),
            helper.make_node("Shape", ["x"], ["extents"]),
        ],
        [value("x", 2, 3)],
        [
            value("x", 2, 3),
            value("y", 2, 3),
            value("y", 2, 3),
            value("w", 2),
            value("made", 2),
            value("extents", 2, dtype=TensorProto.INT64),
        ],
        {"w": np.array([3, 4], np.float32)},
    )
    imported = import_onnx(model)
    assert [entry.name for entry in imported.inputs] == ["x"]
    assert [entry.name for entry in imported.outputs] == ["x", "y", "y", "w", "made", "extents"]
    assert [entry.shape for entry in imported.outputs] == [(2, 3)] * 3 + [(2,)] * 3
    assert imported.outputs[-1].dtype == "int64"
    assert [array.tolist() for array in constants(imported)] == [[3, 4], [1, 2], [2, 3]]


def test_model_of_constants_alone() -> None:
    node = helper.make_node("Add", ["a", "a"], ["y"])
    imported = import_onnx(make_model([node], [], [value("y", 2)], {"a": np.ones(2, np.float32)}))
    assert imported.inputs == ()
    assert [array.tolist() for array in constants(imported)] == [[2, 2]]


def test_initialisers_listed_as_inputs_are_constants() -> None:
    weights = np.arange(600, dtype=np.float32).reshape(3, 200)
    model = make_model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        [value("x", 2, 3), value("w", 3, 200)],
        ["y"],
        {"w": weights},
    )
    model.ir_version = 3
    imported = import_onnx(model)
    assert [entry.name for entry in imported.inputs] == ["x"]
    assert imported.constant_bytes == weights.nbytes
    np.testing.assert_array_equal(constants(imported)[0], weights)


@pytest.mark.parametrize("dtype", ["float64", "float16", "int64", "int8", "bool", "bfloat16"])
def test_constants_keep_their_type_and_value(dtype: str) -> None:
    rng = np.random.default_rng(0)
    for extent in (3, 3000):
        array = rng.integers(0, 2, extent).astype(
            onnx.helper.tensor_dtype_to_np_dtype(TensorProto.BFLOAT16)
            if dtype == "bfloat16"
            else dtype
        )
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        model = make_model(
            [helper.make_node("Where", ["c", "w", "x"], ["y"])],
            [value("c", extent, dtype=TensorProto.BOOL), value("x", extent, dtype=kind)],
            [value("y", extent, dtype=kind)],
            {"w": array},
        )
        imported = import_onnx(model)
        assert imported.outputs == (TensorInfo("y", dtype, (extent,)),)
        (found,) = constants(imported)
        assert found.astype("float32").tolist() == array.astype("float32").tolist()


def test_symbolic_dimensions_get_the_shapes_given() -> None:
    """Shape arithmetic is folded with them, and stale shapes inside the model are not believed."""
    model = make_model(
        [
            helper.make_node("Shape", ["x"], ["shape"]),
            helper.make_node("Gather", ["shape", "zero"], ["batch"]),
            helper.make_node("Unsqueeze", ["batch", "zeros"], ["batch1"]),
            helper.make_node("Concat", ["batch1", "rest"], ["target"], axis=0),
            helper.make_node("Relu", ["x"], ["inner"]),
            helper.make_node("Reshape", ["inner", "target"], ["y"]),
        ],
        [value("x", "batch", 4, 6), value("other", "batch", 2)],
        [value("y", "batch", 24)],
        {"zero": np.array(0), "zeros": np.array([0]), "rest": np.array([-1])},
    )
    model.graph.value_info.append(value("inner", 1, 4, 6))
    for shapes in ({"x": (5, 4, 6)}, {"batch": (5,)}):
        imported = import_onnx(model, shapes)
        assert [entry.shape for entry in imported.inputs] == [(5, 4, 6), (5, 2)]
        assert imported.outputs == (TensorInfo("y", "float32", (5, 24)),)
        assert calls(imported) == ["relu", "reshape"]
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"


def test_dimensions_that_exporters_leave_at_zero_are_symbolic() -> None:
    model = make_model([helper.make_node("Relu", ["x"], ["y"])], [value("x", 0, 3)], ["y"])
    assert resolve_shapes(model, {"x": (2, 3)}) == {"x": (2, 3)}


def test_unknown_rank_takes_any_shape() -> None:
    model = make_model([helper.make_node("Relu", ["x"], ["y"])], [value("x", 1)], ["y"])
    model.graph.input[0].type.tensor_type.ClearField("shape")
    assert import_onnx(model, {"x": (2, 3, 4)}).outputs[0].shape == (2, 3, 4)


@pytest.mark.parametrize(
    ("node", "opset", "shapes", "extra", "result"),
    [
        (helper.make_node("Slice", ["x"], ["y"], starts=[1], ends=[3]), 9, [(4, 2)], {}, (2, 2)),
        (helper.make_node("Reshape", ["x"], ["y"], shape=[2, 6]), 4, [(3, 4)], {}, (2, 6)),
        (helper.make_node("Dropout", ["x"], ["y"], is_test=1), 6, [(3, 4)], {}, (3, 4)),
        (
            helper.make_node("Upsample", ["x"], ["y"], scales=[1.0, 1.0, 2.0, 2.0]),
            7,
            [(1, 1, 2, 2)],
            {},
            (1, 1, 4, 4),
        ),
        (
            helper.make_node("Resize", ["x", "s"], ["y"]),
            10,
            [(1, 1, 2, 2)],
            {"s": np.array([1, 1, 2, 3], np.float32)},
            (1, 1, 4, 6),
        ),
        (helper.make_node("Clip", ["x"], ["y"], min=0.0, max=6.0), 9, [(3,)], {}, (3,)),
        (helper.make_node("Unsqueeze", ["x"], ["y"], axes=[0]), 9, [(3,)], {}, (1, 3)),
    ],
)
def test_old_operator_sets(
    node: onnx.NodeProto,
    opset: int,
    shapes: Sequence[tuple[int, ...]],
    extra: dict[str, np.ndarray],
    result: tuple[int, ...],
) -> None:
    model = make_model([node], [value("x", *shapes[0])], ["y"], extra, opset)
    assert import_onnx(model).outputs == (TensorInfo("y", "float32", result),)


def test_functions_are_inlined() -> None:
    model = make_model(
        [
            helper.make_node("Celu", ["x"], ["a"], alpha=2.0),
            helper.make_node("Twice", ["a"], ["b"], domain="mine"),
            helper.make_node("HardSwish", ["b"], ["y"]),
        ],
        [value("x", 2, 3)],
        ["y"],
        functions=[
            helper.make_function(
                "mine",
                "Twice",
                ["u"],
                ["v"],
                [helper.make_node("Add", ["u", "u"], ["v"])],
                [helper.make_opsetid("", 17)],
            )
        ],
    )
    model.opset_import.append(helper.make_opsetid("mine", 1))
    imported = import_onnx(model)
    assert imported.outputs == (TensorInfo("y", "float32", (2, 3)),)
    assert "add" in calls(imported)


def test_a_hard_swish_divides_nothing() -> None:
    imported = import_onnx(
        make_model([helper.make_node("HardSwish", ["x"], ["y"])], [value("x", 5, 70)], ["y"])
    )
    assert "divide" not in calls(imported)


@pytest.mark.skipif(not onnx.defs.has("SwiGLU"), reason="this onnx has no nested functions")
def test_a_function_whose_body_calls_another() -> None:
    model = make_model(
        [helper.make_node("SwiGLU", ["a", "b"], ["y"])],
        [value("a", 2, 4), value("b", 2, 4)],
        ["y"],
        opset=onnx.defs.onnx_opset_version(),
    )
    assert import_onnx(model).outputs[0].shape == (2, 4)


def test_a_model_is_not_changed_and_gives_the_same_module_twice() -> None:
    model = randomise(light("squeezenet"), seed=1)
    before = model.SerializeToString(deterministic=True)
    first, second = import_onnx(model), import_onnx(model)
    assert model.SerializeToString(deterministic=True) == before
    tvm.ir.assert_structural_equal(first.mod, second.mod)
    assert first.mod["main"].script() == second.mod["main"].script()


def test_a_graph_that_was_replaced_keeps_no_weights() -> None:
    """Rewriting rules keep the last graph they looked at: of BERT-base that was 400 MB."""
    model = ir.from_proto(randomise(light("squeezenet"), seed=1))
    simplified, _ = simplify(model)
    weights = [value.const_value for value in simplified.graph.initializers.values()]
    assert sum(tensor.nbytes for tensor in weights if tensor is not None) > 1 << 20
    assert all(value.const_value is None for value in model.graph.initializers.values())


def test_a_simplifier_that_fails_leaves_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    import onnxscript.optimizer

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("broken\non purpose")

    monkeypatch.setattr(onnxscript.optimizer, "fold_constants", fail)
    monkeypatch.setattr("tvm_ext.frontend.simplify.rewrite", fail)
    imported = import_onnx(light("resnet50"))
    assert len(imported.notes) == 2
    assert all("broken on purpose" in note and "\n" not in note for note in imported.notes)
    assert imported.outputs[0].shape == (1, 1000)
    assert not {"batch_norm", "broadcast_to"} & set(calls(imported)), "ours run all the same"


def test_weights_in_constant_nodes() -> None:
    weights = np.random.default_rng(0).standard_normal((30, 40)).astype(np.float32)
    model = make_model(
        [
            helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(weights)),
            helper.make_node("MatMul", ["x", "w"], ["y"]),
        ],
        [value("x", 2, 30)],
        ["y"],
    )
    imported = import_onnx(model)
    np.testing.assert_array_equal(constants(imported)[0], weights)
    assert [entry.name for entry in imported.inputs] == ["x"]
