"""Definitions of the operators we lower ourselves, as tensor expressions over packed weights.

  blocking  how an output axis is cut into blocks of whole vectors, decided by the machine alone
  conv      channels-last convolution of any rank: plain, grouped, depthwise
  dense     matrix multiplication by a constant
  norm      softmax and layer, group, instance and RMS normalisation, stage by stage
  maths     exp, tanh, erf, sigmoid as polynomials with stated bounds

Packing happens in numpy, at compile time; the expressions only say what is computed.
"""
