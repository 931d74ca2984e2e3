// SPDX-License-Identifier: MIT
// cuBLASLt for the fake driver, as libcublasLt.so.13: column-major products in plain loops. It records
// requests for algorithms, and finds none if told so.
#include <cublasLt.h>
#include <cuda.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <mutex>

#include "fake_cuda.hpp"
#include "fake_queue.hpp"

struct fake_product {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  std::int32_t transposed[2] = {CUBLAS_OP_N, CUBLAS_OP_N};
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  void* bias = nullptr;  // or the destination of sums
  cudaDataType_t bias_type = CUDA_R_32F;
};
struct fake_matrix {
  cudaDataType type;
  std::uint64_t rows, columns;
  std::int64_t leading, stride = 0;
  std::int32_t batch = 1;
};
struct fake_preference {
  unsigned schemes = CUBLASLT_REDUCTION_SCHEME_MASK, alignment[4] = {256, 256, 256, 256};
};

namespace {

std::mutex state;
fake_cuda::products noted{};

template <class T, class Opaque>
T* real(Opaque* opaque) {
  return reinterpret_cast<T*>(opaque);
}

/// Descriptors and layouts, which are opaque to users of the library: created here, counted, and destroyed.
template <class T, class Opaque, class... Arguments>
cublasStatus_t made(Opaque* to, Arguments... arguments) {
  const std::lock_guard lock(state);
  ++noted.descriptors;
  *to = reinterpret_cast<Opaque>(new T{arguments...});
  return CUBLAS_STATUS_SUCCESS;
}
template <class T, class Opaque>
cublasStatus_t destroyed(Opaque* opaque) {
  const std::lock_guard lock(state);
  --noted.descriptors;
  delete real<T>(opaque);
  return CUBLAS_STATUS_SUCCESS;
}

double load(const void* at, cudaDataType type, std::int64_t i) {
  const auto half = [&] { return static_cast<const std::uint16_t*>(at)[i]; };
  switch (type) {
    case CUDA_R_64F: return static_cast<const double*>(at)[i];
    case CUDA_R_32F: return static_cast<const float*>(at)[i];
    case CUDA_R_16BF: return __builtin_bit_cast(float, static_cast<std::uint32_t>(half()) << 16);
    default: return static_cast<double>(__builtin_bit_cast(_Float16, half()));
  }
}
void store(void* at, cudaDataType type, std::int64_t i, double x) {
  switch (type) {
    case CUDA_R_64F: static_cast<double*>(at)[i] = x; break;
    case CUDA_R_32F: static_cast<float*>(at)[i] = static_cast<float>(x); break;
    case CUDA_R_16BF: {
      const auto u = __builtin_bit_cast(std::uint32_t, static_cast<float>(x));
      static_cast<std::uint16_t*>(at)[i] =
          static_cast<std::uint16_t>(x != x ? u >> 16 | 0x40u : (u + 0x7fffu + (u >> 16 & 1u)) >> 16);
      break;
    }
    default:
      static_cast<std::uint16_t*>(at)[i] =
          __builtin_bit_cast(std::uint16_t, static_cast<_Float16>(static_cast<float>(x)));
  }
}

}  // namespace

extern "C" {

fake_cuda::products* fake_cublaslt_products() { return &noted; }

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  CUcontext context = nullptr;
  cuCtxGetCurrent(&context);
  if (!context) return CUBLAS_STATUS_NOT_INITIALIZED;
  *handle = reinterpret_cast<cublasLtHandle_t>(context);  // the context it was created in
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  CUcontext context = nullptr;
  cuCtxGetCurrent(&context);
  return reinterpret_cast<cublasLtHandle_t>(context) == handle ? CUBLAS_STATUS_SUCCESS
                                                               : CUBLAS_STATUS_NOT_INITIALIZED;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* to, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  return made<fake_product>(to, compute, scale);
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t product) {
  return destroyed<fake_product>(product);
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t product,
                                              cublasLtMatmulDescAttributes_t which, const void* value,
                                              std::size_t) {
  std::int32_t* const transposed = real<fake_product>(product)->transposed;
  if (which == CUBLASLT_MATMUL_DESC_TRANSA) std::memcpy(&transposed[0], value, 4);
  else if (which == CUBLASLT_MATMUL_DESC_TRANSB) std::memcpy(&transposed[1], value, 4);
  else if (which == CUBLASLT_MATMUL_DESC_EPILOGUE)
    std::memcpy(&real<fake_product>(product)->epilogue, value, sizeof(cublasLtEpilogue_t));
  else if (which == CUBLASLT_MATMUL_DESC_BIAS_POINTER)
    std::memcpy(&real<fake_product>(product)->bias, value, sizeof(void*));
  else if (which == CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE)
    std::memcpy(&real<fake_product>(product)->bias_type, value, sizeof(cudaDataType_t));
  else return CUBLAS_STATUS_INVALID_VALUE;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* to, cudaDataType type, std::uint64_t rows,
                                          std::uint64_t columns, std::int64_t leading) {
  return made<fake_matrix>(to, type, rows, columns, leading);
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t matrix) {
  return destroyed<fake_matrix>(matrix);
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t matrix,
                                                cublasLtMatrixLayoutAttribute_t which, const void* value,
                                                std::size_t) {
  if (which == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT) std::memcpy(&real<fake_matrix>(matrix)->batch, value, 4);
  else if (which == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET)
    std::memcpy(&real<fake_matrix>(matrix)->stride, value, 8);
  else return CUBLAS_STATUS_INVALID_VALUE;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* to) {
  return made<fake_preference>(to);
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t wish) {
  return destroyed<fake_preference>(wish);
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t wish,
                                                    cublasLtMatmulPreferenceAttributes_t which,
                                                    const void* value, std::size_t) {
  auto& to = *real<fake_preference>(wish);
  switch (which) {
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: std::memcpy(&to.schemes, value, 4); break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES: std::memcpy(&to.alignment[0], value, 4); break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES: std::memcpy(&to.alignment[1], value, 4); break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES: std::memcpy(&to.alignment[2], value, 4); break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: std::memcpy(&to.alignment[3], value, 4); break;
    default: break;
  }
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t product,
                                              cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t result, cublasLtMatmulPreference_t wish,
                                              int, cublasLtMatmulHeuristicResult_t* best, int* found) {
  const std::lock_guard lock(state);
  ++noted.questions;
  const fake_product& asked = *real<fake_product>(product);
  const cudaDataType type = real<fake_matrix>(result)->type;
  const bool has_epilogue = asked.epilogue != CUBLASLT_EPILOGUE_DEFAULT;
  const bool has_vector = has_epilogue && asked.epilogue != CUBLASLT_EPILOGUE_GELU;
  if ((has_vector && asked.bias_type != type) || (asked.scale == CUDA_R_64F) != (type == CUDA_R_64F))
    return CUBLAS_STATUS_INVALID_VALUE;  // vectors have the type of the result, and so do factors in f64
  const bool refuses = noted.answer == 1 || noted.answer == 2 || (noted.answer == 3 && has_epilogue);
  noted.compute = real<fake_product>(product)->compute;
  noted.schemes = real<fake_preference>(wish)->schemes;
  std::memcpy(noted.alignment, real<fake_preference>(wish)->alignment, sizeof noted.alignment);
  *found = refuses ? 0 : 1;
  best->state = refuses ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
  return noted.answer == 2 ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t product, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t, void* d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t*, void*, std::size_t, cudaStream_t stream) {
  CUcontext context = nullptr;
  cuCtxGetCurrent(&context);
  if (reinterpret_cast<cublasLtHandle_t>(context) != handle) return CUBLAS_STATUS_EXECUTION_FAILED;
  const std::lock_guard lock(state);
  ++noted.products;
  const fake_product p = *real<fake_product>(product);
  noted.with_epilogue += p.epilogue != CUBLASLT_EPILOGUE_DEFAULT;
  noted.added += c != d;
  const fake_matrix x = *real<fake_matrix>(a_layout), y = *real<fake_matrix>(b_layout),
                    z = *real<fake_matrix>(d_layout);
  const bool wide = p.scale == CUDA_R_64F, tx = p.transposed[0] == CUBLAS_OP_T,
             ty = p.transposed[1] == CUBLAS_OP_T;
  const double scale =
      wide ? *static_cast<const double*>(alpha) : static_cast<double>(*static_cast<const float*>(alpha));
  const double kept =
      wide ? *static_cast<const double*>(beta) : static_cast<double>(*static_cast<const float*>(beta));
  const auto depth = static_cast<std::int64_t>(tx ? x.rows : x.columns);
  if (depth != static_cast<std::int64_t>(ty ? y.columns : y.rows) || (tx ? x.columns : x.rows) != z.rows ||
      (ty ? y.rows : y.columns) != z.columns)
    return CUBLAS_STATUS_INVALID_VALUE;
  const bool has_bias = p.epilogue == CUBLASLT_EPILOGUE_BIAS || p.epilogue == CUBLASLT_EPILOGUE_GELU_BIAS;
  const bool has_gelu = p.epilogue == CUBLASLT_EPILOGUE_GELU || p.epilogue == CUBLASLT_EPILOGUE_GELU_BIAS;
  const bool sums_a = p.epilogue == CUBLASLT_EPILOGUE_BGRADA;
  const bool sums_b = p.epilogue == CUBLASLT_EPILOGUE_BGRADB;
  if (p.epilogue != CUBLASLT_EPILOGUE_DEFAULT && !has_bias && !has_gelu && !sums_a && !sums_b)
    return CUBLAS_STATUS_NOT_SUPPORTED;
  if (has_bias || sums_a || sums_b) {
    const std::size_t length = sums_b ? z.columns : z.rows;
    if (!p.bias || !fake_cuda_holds(context, p.bias, length * (p.bias_type == CUDA_R_32F ? 4 : 2)))
      return CUBLAS_STATUS_INVALID_VALUE;
  }
  const auto multiply = [=] {
    // Sums over the depth of A's rows, or of B's columns.
    const auto length = static_cast<std::int64_t>(sums_a ? z.rows : sums_b ? z.columns : 0);
    for (std::int64_t i = 0; i < length; ++i) {
      double sum = 0;
      for (std::int64_t k = 0; k < depth; ++k)
        sum += sums_a ? load(a, x.type, tx ? k + i * x.leading : i + k * x.leading)
                      : load(b, y.type, ty ? i + k * y.leading : k + i * y.leading);
      store(p.bias, p.bias_type, i, sum);
    }
    for (std::int64_t batch = 0; batch < z.batch; ++batch)
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(z.rows); ++i)
      for (std::int64_t j = 0; j < static_cast<std::int64_t>(z.columns); ++j) {
        double sum = 0;
        for (std::int64_t k = 0; k < depth; ++k)
          sum += load(a, x.type, batch * x.stride + (tx ? k + i * x.leading : i + k * x.leading)) *
                 load(b, y.type, batch * y.stride + (ty ? j + k * y.leading : k + j * y.leading));
        const std::int64_t at = batch * z.stride + i + j * z.leading;
        double value = scale * sum + (kept == 0 ? 0 : kept * load(c, z.type, at));
        if (has_bias) value += load(p.bias, p.bias_type, i);
        const double cubic = std::sqrt(2 / std::acos(-1.0)) * (value + 0.044715 * value * value * value);
        if (has_gelu) value *= 0.5 * (1 + std::tanh(cubic));
        store(d, z.type, at, value);
      }
    return true;
  };
  const CUresult queued = fake_cuda_queue(reinterpret_cast<CUstream>(stream), {multiply, nullptr});
  if (queued == CUDA_ERROR_INVALID_CONTEXT) return CUBLAS_STATUS_EXECUTION_FAILED;
  return queued ? CUBLAS_STATUS_INTERNAL_ERROR : CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
