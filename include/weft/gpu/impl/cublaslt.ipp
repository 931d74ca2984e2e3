// SPDX-License-Identifier: MIT
// Definitions of <weft/gpu/cublaslt.hpp>.
#pragma once

#include <algorithm>

#include <weft/base/config.hpp>
#include <weft/gpu/cublaslt.hpp>

namespace weft {
namespace gpu {

WEFT_DEFINE bool cublaslt::multiply(const strided& a, const strided& b, const strided& c, void* workspace,
                                    cudaStream_t stream, const product_epilogue& with) {
  const int r = c.extents.order - 2;
  const index_t m = c.extents[r], n = c.extents[r + 1], k = a.extents[r + 1];
  const index_t batch = r > 0 ? c.extents[0] : 1;
  matrix left, right, result;
  if (!describe(b, r, k, n, left) || !describe(a, r, m, k, right) || !describe(c, r, m, n, result) ||
      result.transposed)
    return false;
  const strided* const vector = with.bias ? with.bias : with.sums;
  if (vector && (batch > 1 || vector->type != c.type)) return false;
  const void* const added = with.added ? with.added->pointer : c.pointer;
  if (with.added && (with.added->type != c.type || c.adds)) return false;
  const problem p{static_cast<index_t>(a.type),
                  static_cast<index_t>(c.type),
                  m,
                  n,
                  k,
                  batch,
                  left.transposed,
                  right.transposed,
                  left.leading,
                  right.leading,
                  result.leading,
                  left.batch_stride,
                  right.batch_stride,
                  result.batch_stride,
                  alignment(b.pointer),
                  alignment(a.pointer),
                  alignment(c.pointer),
                  alignment(added),
                  epilogue_of(with),
                  vector ? static_cast<index_t>(vector->type) : -1,
                  vector ? alignment(vector->pointer) : 0,
                  a.type == dtype::f32 && tf32_,
                  with.added != nullptr};
  // Keeps it alive if another thread replaces the setups.
  const std::shared_ptr<const setup> kept = setup_of(p);
  const setup& s = *kept;
  if (!s.found) return false;
  const bool adds = c.adds || with.added;
  const double one64 = 1, added64 = adds;
  const float one32 = 1, added32 = adds;
  std::unique_lock lock(mutex_, std::defer_lock);
  if (vector) {
    lock.lock();  // until the call has read the pointer
    set_attribute(s, CUBLASLT_MATMUL_DESC_BIAS_POINTER, vector->pointer);
  }
  const bool wide = c.type == dtype::f64;
  check(matmul(handle_, s.product, wide ? static_cast<const void*>(&one64) : &one32, b.pointer, s.left,
               a.pointer, s.right, wide ? static_cast<const void*>(&added64) : &added32, added, s.result,
               c.pointer, s.result, &s.algorithm, workspace, workspace_bytes, stream),
        "cublasLtMatmul");
  return true;
}

WEFT_DEFINE cublaslt::setup::~setup() {
  if (product) of.destroy_product(product);
  for (cublasLtMatrixLayout_t l : {left, right, result})
    if (l) of.destroy_layout(l);
}

WEFT_DEFINE index_t cublaslt::alignment(const void* p) {
  const auto address = reinterpret_cast<std::uintptr_t>(p);
  return static_cast<index_t>(std::min<std::uintptr_t>(16, address & (~address + 1)));
}

WEFT_DEFINE std::shared_ptr<const cublaslt::setup> cublaslt::setup_of(const problem& p) {
  const std::lock_guard lock(mutex_);
  if (const auto known = setups_.find(p); known != setups_.end()) return known->second;
  if (setups_.size() == most_setups) setups_.clear();
  const auto made = std::make_shared<setup>(*this);
  prepare(p, *made);
  return setups_[p] = made;
}

WEFT_DEFINE cublasLtEpilogue_t cublaslt::epilogue_of(const product_epilogue& e) {
  // The rows of weft's right operand are the columns of cuBLASLt's left one, A.
  if (e.sums) return e.of_right ? CUBLASLT_EPILOGUE_BGRADA : CUBLASLT_EPILOGUE_BGRADB;
  if (e.gelu) return e.bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
  return e.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

WEFT_DEFINE cudaDataType_t cublaslt::type_of(dtype t) {
  switch (t) {
    case dtype::f64: return CUDA_R_64F;
    case dtype::bf16: return CUDA_R_16BF;
    case dtype::f16: return CUDA_R_16F;
    default: return CUDA_R_32F;
  }
}

WEFT_DEFINE bool cublaslt::describe(const strided& t, int r, index_t rows, index_t columns, matrix& to) {
  const index_t down = t.stride[r], across = t.stride[r + 1];
  to.batch_stride = r > 0 ? t.stride[0] : 0;
  if ((across == 1 || columns == 1) && (rows == 1 || down >= columns)) {
    to.transposed = false;
    to.leading = std::max(rows == 1 ? columns : down, columns);
    return true;
  }
  if ((down == 1 || rows == 1) && (columns == 1 || across >= rows)) {
    to.transposed = true;
    to.leading = std::max(columns == 1 ? rows : across, rows);
    return true;
  }
  return false;
}

WEFT_DEFINE void cublaslt::prepare(const problem& p, setup& s) {
  const auto& [operand, sum, m, n, k, batch, t_left, t_right, ld_left, ld_right, ld_result, st_left, st_right,
               st_result, al_left, al_right, al_result, al_added, epilogue, of_vector, al_vector, tf32,
               adds] = p;
  const cudaDataType_t type = type_of(static_cast<dtype>(operand)), result = type_of(static_cast<dtype>(sum));
  const bool wide = type == CUDA_R_64F;
  const cublasComputeType_t compute = wide ? CUBLAS_COMPUTE_64F
                                      : tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  check(describe_product(&s.product, compute, wide ? CUDA_R_64F : CUDA_R_32F), "cublasLtMatmulDescCreate");
  const cublasOperation_t ops[] = {t_left ? CUBLAS_OP_T : CUBLAS_OP_N, t_right ? CUBLAS_OP_T : CUBLAS_OP_N};
  check(set_product(s.product, CUBLASLT_MATMUL_DESC_TRANSA, &ops[0], sizeof ops[0]),
        "cublasLtMatmulDescSetAttribute");
  check(set_product(s.product, CUBLASLT_MATMUL_DESC_TRANSB, &ops[1], sizeof ops[1]),
        "cublasLtMatmulDescSetAttribute");
  if (epilogue != CUBLASLT_EPILOGUE_DEFAULT)
    set_attribute(s, CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<cublasLtEpilogue_t>(epilogue));
  if (of_vector >= 0) {  // an address aligned as the vectors: the answer holds for all
    set_attribute(s, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(static_cast<dtype>(of_vector)));
    set_attribute(s, CUBLASLT_MATMUL_DESC_BIAS_POINTER, reinterpret_cast<const void*>(al_vector));
  }
  s.left = layout(type, t_left ? k : n, t_left ? n : k, ld_left, batch, st_left);
  s.right = layout(type, t_right ? m : k, t_right ? k : m, ld_right, batch, st_right);
  s.result = layout(result, n, m, ld_result, batch, st_result);
  cublasLtMatmulPreference_t wish = nullptr;
  check(create_preference(&wish), "cublasLtMatmulPreferenceCreate");
  const std::size_t bytes = workspace_bytes;
  set_preference(wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes);
  // Partial sums are added in the compute type and not first rounded to the result's type.
  const std::uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  set_preference(wish, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes);
  const cublasLtMatmulPreferenceAttributes_t which[] = {
      CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
      CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
  const index_t aligned[] = {al_left, al_right, al_added, al_result};
  for (int i = 0; i < 4; ++i) {
    const auto value = static_cast<std::uint32_t>(aligned[i]);
    set_preference(wish, which[i], &value, sizeof value);
  }
  cublasLtMatmulHeuristicResult_t best{};
  int found = 0;
  const cublasStatus_t status =
      heuristic(handle_, s.product, s.left, s.right, s.result, s.result, wish, 1, &best, &found);
  destroy_preference(wish);
  // Ops that follow the product can instead be computed in separate steps, whatever the answer.
  const bool has_alternative = epilogue != CUBLASLT_EPILOGUE_DEFAULT || adds;
  if (status != CUBLAS_STATUS_NOT_SUPPORTED && !has_alternative)
    check(status, "cublasLtMatmulAlgoGetHeuristic");
  s.found = status == CUBLAS_STATUS_SUCCESS && found > 0 && best.state == CUBLAS_STATUS_SUCCESS;
  s.algorithm = best.algo;
}

WEFT_DEFINE cublasLtMatrixLayout_t cublaslt::layout(cudaDataType_t type, index_t rows, index_t columns,
                                                    index_t leading, index_t batch, index_t stride) {
  cublasLtMatrixLayout_t l = nullptr;
  check(
      create_layout(&l, type, static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(columns), leading),
      "cublasLtMatrixLayoutCreate");
  const auto count = static_cast<std::int32_t>(batch);
  check(set_layout(l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count),
        "cublasLtMatrixLayoutSetAttribute");
  check(set_layout(l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride),
        "cublasLtMatrixLayoutSetAttribute");
  return l;
}

WEFT_DEFINE void cublaslt::refuse(cublasStatus_t status, const char* function) {
  throw device_error(std::string("weft: cuda: ") + function + " failed with code " + std::to_string(status));
}

}  // namespace gpu
}  // namespace weft
