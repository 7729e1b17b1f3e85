"""The auto-scheduler's choices: which plans to measure, and in what order (Ansor). Needs no TVM.

Read in this order:
  sketch          what is tiled and by which rule; the sizes are holes
  annotate        the holes filled at random
  mutate          one hole filled anew; two plans crossed
  neighbours      every plan one step away (coordinate descent)
  evolve          a population bred from the best, scored without measuring
  features        what the learned model sees of a plan;  cost_model: XGBoost over it
  transfer        what records of other tasks teach
  space           one task: proposes batches, takes latencies
  task_scheduler  which task gets the next batch
"""

from tvm_ext.search.cost_model import CostModel
from tvm_ext.search.neighbours import neighbours
from tvm_ext.search.sketch import Sketch, SketchRule, sketches
from tvm_ext.search.space import TaskSpace
from tvm_ext.search.task_scheduler import Objective, TaskHistory, TaskScheduler
from tvm_ext.search.transfer import lessons

__all__ = [
    "CostModel",
    "Objective",
    "Sketch",
    "SketchRule",
    "TaskHistory",
    "TaskScheduler",
    "TaskSpace",
    "lessons",
    "neighbours",
    "sketches",
]
