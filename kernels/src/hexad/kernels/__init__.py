"""Fast operations shared by the methods of Hexad, one folder an operation.

- `hexad.kernels.sparse_attention`: block-sparse attention whose tiles are predicted from the inputs.

Importing this package loads nothing heavy; each operation loads torch when one of its names is used.
"""
