// gemm
