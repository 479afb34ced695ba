"""cuBLAS or cuDNN could not start, or failed inside a kernel.

What you see: "CUBLAS_STATUS_NOT_INITIALIZED when calling cublasCreate", "CUBLAS_STATUS_EXECUTION_FAILED" in a plain
linear layer, "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR".
Why: most often no memory is left for the library's workspace, or an earlier kernel failed (an index out of range) and
this call is the first to report it. Otherwise LD_LIBRARY_PATH leads to another version of the library.
What we do: halve the micro-batch to make room for the workspace; then run one step on the CPU, which reports a bad
index plainly.
"""

from holdfast.core.plan import Remedy
from holdfast.hazards import Case, Hazard, proves, seen, suggests

HAZARD = Hazard(
    slug="cublas-failure",
    title="cuBLAS or cuDNN failed",
    kind="error",
    signs=(
        proves(
            "log",
            r"CUBLAS_STATUS_(?!SUCCESS)[A-Z_]+|cublas runtime error|cublasStatus_t|[Ff]ailed to create cublas handle|CUBLAS error|CUBLASError|cuBLAS error",
        ),
        proves("frame", r"^cublas(?:Create|Lt|[SDCZH]gemm|Gemm)\w*"),
        suggests("log", r"Blas (?:x?GEMM|SGEMM|GEMV|xGEMMBatched) launch failed"),
        suggests(
            "log",
            r"CUDNN_STATUS_(?:NOT_INITIALIZED|INTERNAL_ERROR\w*|EXECUTION_FAILED\w*|MAPPING_ERROR|SUBLIBRARY\w*)|cuDNN Frontend error|cuDNN error: (?!CUDNN_STATUS_(?:ALLOC|ARCH|NOT_SUPPORTED|BAD_PARAM))|[Cc]ould not create cudnn handle",
        ),
        suggests(
            "error",
            r"CUSOLVER_STATUS_(?!SUCCESS)\w+|CUSPARSE_STATUS_(?!SUCCESS)\w+|CUFFT_(?:INTERNAL_ERROR|INVALID_\w+|ALLOC_FAILED|EXEC_FAILED)|HIPBLAS_STATUS_(?!SUCCESS)\w+|rocblas_status_internal_error",
            unless=(seen("error", r"faiss"),),
        ),
    ),
    remedies=(
        Remedy(
            "halve the micro-batch, to leave room for the library's workspace",
            change={"micro_batch": "halve"},
            cost="a little slower, the same effective batch",
        ),
        Remedy(
            "run one step on the CPU, where a bad index or label raises an error with its value",
            change={"device": "cpu"},
            cost="much slower",
        ),
        Remedy(
            "remove other copies of the library from the path; torch has its own",
            command="env -u LD_LIBRARY_PATH python train.py",
        ),
        Remedy(
            "install the cuBLAS version that this torch was built with", command="pip install --force-reinstall torch"
        ),
    ),
    sources=(
        "QwenLM/Qwen#120",
        "wzk1015/video-bgm-generation#27",
        "pytorch/pytorch#170676",
        "tensorflow/tensorflow#9489",
        "vllm-project/vllm#5731",
    ),
    matches=(
        "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
        "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm( handle, opa, opb, m, n, k, &alpha, a, lda, b, ldb, &beta, c, ldc)`",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "RuntimeError: cublas runtime error : the GPU program failed to execute at /pytorch/aten/src/THC/THCBlas.cu:259",
        "E tensorflow/stream_executor/cuda/cuda_blas.cc:366] failed to create cublas handle: CUBLAS_STATUS_NOT_INITIALIZED",
        "RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR",
        "#1  0x00007f2a in cublasCreate_v2 () from /usr/local/cuda/lib64/libcublas.so.12",
        "InternalError: Blas GEMM launch failed : a.shape=(64, 768), b.shape=(768, 768)",
        "RuntimeError: cusolver error: CUSOLVER_STATUS_INTERNAL_ERROR, when calling `cusolverDnCreate(handle)`",
    ),
    near_misses=(
        Case(
            "E external/local_xla/xla/stream_executor/cuda/cuda_blas.cc:1418] Unable to register cuBLAS factory: Attempting to register factory for plugin cuBLAS when one has already been registered",
            "0",
        ),
        "UserWarning: Deterministic behavior was enabled ... to enable it set CUBLAS_WORKSPACE_CONFIG=:4096:8",
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (64x768 and 512x2)",
    ),
)
