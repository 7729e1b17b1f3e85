"""Compiles leave garbage to those who know that there is some, and callers' settings alone."""

from __future__ import annotations

import gc
import weakref

import pytest

from tvm_ext.garbage import WORTH_BYTES, look_for, without_collections


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_is_looked_for_as_before_a_compile(enabled: bool) -> None:
    """What a caller has frozen stays so, and nothing else is."""
    was, frozen = gc.isenabled(), gc.get_freeze_count()
    try:
        for own in (gc.freeze, gc.unfreeze):
            own()
            count = gc.get_freeze_count()
            (gc.enable if enabled else gc.disable)()
            with without_collections():
                assert not gc.isenabled()
                assert gc.get_freeze_count() > 0
                with without_collections():
                    pass
                assert gc.get_freeze_count() > 0
            assert gc.isenabled() == enabled
            assert (gc.get_freeze_count() > 0) == (count > 0)
    finally:
        (gc.enable if was else gc.disable)()
        if frozen:
            gc.freeze()


class Held:
    """Something that holds itself."""

    def __init__(self) -> None:
        self.own = self


def test_little_garbage_is_left() -> None:
    with without_collections():
        held = weakref.ref(Held())
        look_for(WORTH_BYTES - 1)
        assert held() is not None
        look_for(WORTH_BYTES)
        assert held() is None
