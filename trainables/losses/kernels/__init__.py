"""Block-wise forward and backward kernels of the proxy losses."""
