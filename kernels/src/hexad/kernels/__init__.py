"""Fast operations shared by the methods of Hexad, one folder an operation.

- `hexad.kernels.sparse_attention`: block-sparse attention whose tiles are predicted from the inputs.
- `hexad.kernels.hadamard_transform`: the block Hadamard transform, differentiable.
- `hexad.kernels.low_bit_linear`: a linear layer on packed weights of 1 to 8 bits.
- `hexad.kernels.selective_scan`: Mamba's selective scan, forward and backward.

Importing this package loads nothing heavy; each operation loads torch when one of its names is used.
"""
