"""From a user's model file to a Relax module, quickly, and with one clear line for what is wrong.

Read `from_onnx.import_onnx` first: it is the whole way, one step a line.

load        file or ModelProto -> complete, valid ModelProto; every bad file has its message
node_order  nodes after what they read, where a tool has left them otherwise
shapes      `--shape name=1,3,224,224` -> a static shape for every input
weights     weights kept apart, so that no step copies or serialises them (models over 2 GB)
microsoft   fused operators that ONNX Runtime's tools write, in standard ones; attention, with
            caches and positions, in `microsoft_attention`; `writer` writes the nodes
quantised   QLinear* operators as those of floats, between dequantising and quantising
operators   old operators converted, functions inlined; what TVM cannot read is listed at once
non_max     boxes that are kept, and how many
simplify    constants folded in numpy (onnxscript), and `affine`: batch norms into weights;
            quantised_weights: those of 8 bits as the floats that they stand for
            packed_weights: those of a few bits, as Microsoft packs them, too
            unroll: recurrent layers step by step, as `recurrent` reads them; unroll_loops: `Loop`
            and `Scan` of known turns
            narrow: numbers of eight bits and less (`narrow_types`) held in wider types;
            narrow_casts takes others to them, narrow_quantised by scales and by blocks
            nothing: tensors of no elements left out; sequences: lists of tensors as what they hold
            depth_to_space: channels in the order in which pixels are taken from them
            rewrite: its rules, those that are worth their time; ours in restate, as_meant,
            dead_taps, readable, element_types, fourier, deformed, moved, pooled, products and
            tensor_scatter, which ask and write by nodes
            resize: Resize and Upsample, in the end; `resize_axes`: what they ask of each axis,
            and whether TVM reads it; nearest: the neighbours they take; interpolate: or mix
counted     extents that data say: `counted_graph` bounds them all, by rules for what operators make
            of rows that mean nothing (`counted_rules`, `counted_places`), shapes worked out number
            by number (`counted_numbers`), and no more found than is read (`counted_demand`)
not_constant  inputs that have to be constants, and what they hang on
too_few     operators that take more elements than there are
importer    TVM's importer, where ONNX means more than it reads
randomise   random weights for models that ship without real ones; for tests and benchmarks
"""
