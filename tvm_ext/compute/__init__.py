"""Definitions of the operators we lower ourselves, as tensor expressions over packed weights.

  blocking  how an output axis is cut into blocks of whole vectors, decided by the machine alone
  conv      channels-last convolution of any rank: plain, grouped, depthwise; of planes to few
  taps      convolution to few channels: a product with all taps, and a sum of what it makes
  dense     matrix multiplication by a constant;  strassen: by seven products of quarters
  byte_products  dense and conv of bytes, exact in integers;  byte_weights: floats by bytes
  half_products  dense and conv of bfloat16, in pairs
  attention  a softmax between two products, queries in vectors;  open_attention: of any lengths
  half_attention  of bfloat16, in pairs
  norm      softmax, reductions, layer, group, instance and RMS normalisation, stage by stage
  norm_columns  normalisation over axes that are not the innermost, a kernel each stage
  windows   what is made of each window's elements:  mean_squares;  half_pool: the largest bfloat16
  top_k     the first elements of a row in order;  non_max: the best boxes of each class
  written   loops and vectors that these are written with, and
  non_zero  places of what is not zero;  scatter_rows: rows put in places
  roi_align  regions of images;  grid_sample: images at points;  resize: planes, enlarged
  arg       argmax and argmin as two reductions
  maths     exp, log, tanh, erf and what is made of them as polynomials with stated bounds
  power     x**y;  trigonometry: sine and cosine;  inverse: arc and hyperbolic functions
  plain_calls  calls of special functions in any TIR made those expressions

Packing happens in numpy, at compile time; the expressions only say what is computed.
"""
