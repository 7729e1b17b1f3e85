"""Search over TilePlans. What is here now: local moves around the picker's plans.

neighbours  plans one step away from a plan: a tile extent, the loop order, the unroll factor
"""

from tvm_ext.search.neighbours import neighbours

__all__ = ["neighbours"]
