"""An artifact's own threads (`runtime/launch.c`): callers at once, forks, sleep, loading again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvm_ext
from tvm_ext.hardware import physical_cores

pytestmark = pytest.mark.skipif(physical_cores() < 2, reason="loops of one core are not parallel")


def wide_model() -> onnx.ModelProto:
    """Three convolutions, each long enough for several cores."""
    random = np.random.default_rng(0)
    nodes, weights = [], []
    for layer in range(3):
        names = [f"x{layer}", f"w{layer}"]
        nodes.append(helper.make_node("Conv", names, [f"x{layer + 1}"], pads=[1, 1, 1, 1]))
        weight = random.standard_normal((32, 32, 3, 3)).astype("float32") / 17
        weights.append(numpy_helper.from_array(weight, f"w{layer}"))
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 32, 40, 40])
        for name in ("x0", "x3")
    ]
    graph = helper.make_graph(nodes, "wide", ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("launch")
    return Path(tvm_ext.compile(wide_model()).save(folder / "model.so"))


def run_apart(artifact: Path, body: str, threads: int = 3) -> dict[str, object]:
    """What a program prints as JSON that has loaded the artifact as `model`, its input as `x`, and
    its output as `y`."""
    head = f"""
        import json, os, time
        import numpy as np
        import tvm_ext
        model = tvm_ext.load({str(artifact)!r})
        (info,) = model.manifest.inputs
        x = np.random.default_rng(0).standard_normal(info.shape, dtype="float32")
        def threads():
            return len(os.listdir("/proc/self/task"))
        before = threads()
        (y,) = model(x)
    """
    program = textwrap.dedent(head) + textwrap.dedent(body)
    env = os.environ | {"TVM_NUM_THREADS": str(threads)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_the_first_run_starts_the_threads_asked_for(artifact: Path, threads: int) -> None:
    found = run_apart(artifact, "print(json.dumps({'more': threads() - before}))", threads)
    assert found == {"more": threads - 1}


def test_callers_at_once_get_what_one_gets(artifact: Path) -> None:
    """The first takes the threads, others do their loops themselves."""
    model = tvm_ext.load(artifact)
    (info,) = model.manifest.inputs
    x = np.random.default_rng(0).standard_normal(info.shape, dtype="float32")
    (expected,) = model(x)
    others = [tvm_ext.load(artifact) for _ in range(3)]

    def run(number: int) -> bool:
        return all(np.array_equal(others[number](x)[0], expected) for _ in range(200))

    with ThreadPoolExecutor(3) as pool:
        assert all(pool.map(run, range(3)))


def test_a_forked_child_has_threads_of_its_own(artifact: Path) -> None:
    body = """
        child = os.fork()
        if not child:
            right = all(np.array_equal(model(x)[0], y) for _ in range(50))
            os._exit(0 if right and threads() > 1 else 1)
        _, status = os.waitpid(child, 0)
        right = all(np.array_equal(model(x)[0], y) for _ in range(50))
        print(json.dumps({"child": status, "parent": right}))
    """
    assert run_apart(artifact, body) == {"child": 0, "parent": True}


def test_threads_sleep_between_runs(artifact: Path) -> None:
    """Half a second later they have used none of it."""
    body = """
        time.sleep(0.5)
        start = time.process_time()
        time.sleep(0.5)
        print(json.dumps({"idle": time.process_time() - start < 0.1}))
    """
    assert run_apart(artifact, body) == {"idle": True}


@pytest.mark.parametrize("threads", [2, 12])
def test_threads_that_were_woken_elsewhere_may_run_anywhere(artifact: Path, threads: int) -> None:
    """A caller keeps those that sleep off its own processor; once they run they may come back. Both
    a few threads, which all are told, and many."""
    body = """
        for _ in range(40):
            time.sleep(0.01)
            assert np.array_equal(model(x)[0], y)
        time.sleep(0.1)
        places = [sorted(os.sched_getaffinity(int(t))) for t in os.listdir("/proc/self/task")]
        print(json.dumps({"own": sorted(os.sched_getaffinity(0)), "places": places}))
    """
    found = run_apart(artifact, body, threads)
    places = found["places"]
    assert isinstance(places, list)
    assert len(places) >= threads
    assert all(place == found["own"] for place in places)


def test_an_artifact_that_is_let_go_takes_its_threads_along(artifact: Path) -> None:
    body = """
        import gc
        right = True
        for _ in range(5):
            del model
            gc.collect()
            model = tvm_ext.load(ARTIFACT)
            right = right and np.array_equal(model(x)[0], y)
        print(json.dumps({"right": right, "few": threads() - before <= 2}))
    """
    found = run_apart(artifact, body.replace("ARTIFACT", repr(str(artifact))))
    assert found == {"right": True, "few": True}


def test_results_are_the_same_while_others_have_the_cores(artifact: Path) -> None:
    """Threads are late then, and the caller does their parts."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    try:
        body = """
        right = all(np.array_equal(model(x)[0], y) for _ in range(100))
        print(json.dumps({"right": right}))
        """
        assert run_apart(artifact, body) == {"right": True}
    finally:
        for process in busy:
            process.kill()
