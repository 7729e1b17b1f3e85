"""Relax passes, one a file, each a frozen dataclass whose fields are its options.

In the order the pipeline runs them:
  widen          numbers of 16 bits are computed with as numbers of 32 (not on GPUs)
  lower_einsum   einsums to matrix products; lower_split: splits to slices; lower_scan: cumulative
                 sums on GPUs; lower_top_k, lower_non_max, lower_counted, lower_roi_align,
                 lower_grid_sample, lower_resize: rows' first elements, boxes, what is not zero,
                 regions, images at points and planes resampled, on CPUs
                 (written_kernel: how both are called)
  normalise      dataflow blocks, inference operators, no dead code
  common_subexpr  equal expressions once, weights not looked at; of normalise and share
  multiply_fewest  products of a point's channels where points are fewest: of what is the same
                 everywhere, of images before they are enlarged or after they are pooled;
                 fold_products: two in a row as one (point_product: what both take)
  fuse_attention  a softmax between two products as one operator (attention_scores: what it is of;
                 join_projections: queries, keys and values as one product)
  find_group_norm  group norms as exporters write them, as one operator
  channels_last  convolutions and what follows them from NCHW to NHWC
  fold_depth     convolutions of volumes as those of planes beside their neighbours
  fold_dilation  windows with holes as plain ones over several images, or over rows of steps
  split_phases   transposed convolutions as one for each phase of the output
  sink_reshapes  reshapes behind what works element by element; sink_concats: concatenations
  read_planes    convolutions of few channels take planes as they are
  split_reductions  columns in parts, where rows of the same tensor are reduced too
  slice_in_place  steps of a sequence that is taken apart are read where they lie
  quantise_early  what is only moved before it is quantised is quantised first
  multiply_bytes  products of quantised tensors four bytes at a time, where there is an instruction
                 (weight_steps: which floats are integers times a step)
  multiply_halves  products and convolutions in bfloat16, two elements at a time, on request
  keep_halves    what is moved, joined or pooled for these alone is rounded before
  keep_bytes     what is moved between quantisers is moved as bytes; add_bytes: sums read bytes;
                 look_up_bytes: functions of a byte are tables
  pool_axes      max pools along one axis after another
  pool_squares   means of squares over windows, without writing the squares
  fold_window    strided and long windows as short plain ones over blocks of points
                 (folder: what it shares with both folds above)
  multiply_quarters  products of many rows by seven of their quarters
  legalise       operators to tensor programs, weights packed in numpy; legalise_norm and others
                 beside it
  fold           constants worked out in numpy: layouts, shape arithmetic
  share          constants of equal content, and equal calls, once
  fuse           tensor programs to groups
  stitch         chains of reductions as one kernel; region: several calls as one function,
                 merger, grower: what passes that merge kernels share
  absorb_views   slices and permutations vanish in the product that reads or writes what they move
  fuse_tiles     products, windows and what lies around them, strip by strip
  fuse_multi_output  kernels that share their rows, as one with several results (name_fields: after
                 lowering, names for them)
  stitch_global  a product and the norm beside it as phases of one kernel
  memory_order   calls in the order that keeps least alive
  concat_in_place  kernels write where their results are concatenated (concat_places: which)
  reroll_loops   after lowering: calls that repeat become a loop inside a kernel (turns: which do,
                 straight: what calls are given, loop_kernel: where tensors lie meanwhile)
  plan_memory    after lowering: tensors take turns in a few blocks of memory
  steps          which call reads what of which other
  open_extent    what follows an extent that is not known
  unify          modules with two numbers for open extents as one (grown_constants: what differs;
                 constant_form and constant_forms: counts, rows of tables, diagonals)
  limits         which numbers it takes, and whether one for others is what those say

Planning and scheduling of the groups is `passes.Plan`, one level up, where plans come from.
"""
