// SPDX-License-Identifier: MIT
// Matrix products by cuBLASLt, a library that is opened at run time.
#pragma once

#include <cublasLt.h>

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include <weft/device/backend.hpp>
#include <weft/gpu/cuda_driver.hpp>

namespace weft::gpu {

/// Row-major products. Since cuBLASLt's matrices are column-major, it computes the transposed product,
/// C^T = B^T A^T, in the same memory.
class cublaslt {
 public:
  static constexpr std::size_t workspace_bytes = 32u << 20;

  cublaslt() { check(create(&handle_), "cublasLtCreate"); }
  cublaslt(const cublaslt&) = delete;
  cublaslt& operator=(const cublaslt&) = delete;
  ~cublaslt() {
    setups_.clear();
    destroy(handle_);
  }
  /// Number of different products whose descriptors and algorithms are kept. If there are more, as with
  /// batches of many lengths, all of them are looked up again.
  static constexpr std::size_t most_setups = 1024;

  /// Queues c = a b, or c += a b if c.adds, for at most one batch dim, with an epilogue. Returns false if the
  /// strides are not those of matrices or cuBLASLt has no algorithm for them. Thread-safe. Throws
  /// device_error on failure.
  bool multiply(const strided& a, const strided& b, const strided& c, void* workspace, cudaStream_t stream,
                const product_epilogue& with = {});
  /// Whether f32 operands may be rounded to TF32.
  void allow_tf32(bool on) { tf32_ = on; }

 private:
  using problem = std::array<index_t, 23>;
  struct matrix {
    bool transposed = false;
    index_t leading = 0, batch_stride = 0;
  };
  struct setup {  // kept, as programs repeat the same products
    explicit setup(const cublaslt& library) : of(library) {}
    setup(const setup&) = delete;
    setup& operator=(const setup&) = delete;
    [[gnu::cold]] ~setup();
    const cublaslt& of;
    bool found = false;
    cublasLtMatmulDesc_t product = nullptr;  // its pointer is set while the library's lock is held
    cublasLtMatrixLayout_t left = nullptr, right = nullptr, result = nullptr;
    cublasLtMatmulAlgo_t algorithm{};
  };

  /// Alignment up to 16 bytes, which matters for vector loads. Larger alignment must not affect the choice:
  /// when a product is recomputed, it can have another place in an arena, and another algorithm would give
  /// different bits.
  static index_t alignment(const void* p);

  /// `vector`: that of the epilogue.
  std::shared_ptr<const setup> setup_of(const problem& p);

  static cudaDataType_t type_of(dtype t);
  static cublasLtEpilogue_t epilogue_of(const product_epilogue& e);
  template <class T>
  void set_attribute(const setup& s, cublasLtMatmulDescAttributes_t which, const T& value) {
    check(set_product(s.product, which, &value, sizeof value), "cublasLtMatmulDescSetAttribute");
  }

  /// The column-major view of a [rows, columns] matrix: as its transpose, or by its columns.
  static bool describe(const strided& t, int r, index_t rows, index_t columns, matrix& to);

  [[gnu::cold]] void prepare(const problem& p, setup& s);

  [[gnu::cold]] cublasLtMatrixLayout_t layout(cudaDataType_t type, index_t rows, index_t columns,
                                              index_t leading, index_t batch, index_t stride);

  static void check(cublasStatus_t status, const char* function) {
    if (status != CUBLAS_STATUS_SUCCESS) refuse(status, function);
  }
  [[noreturn, gnu::cold]] static void refuse(cublasStatus_t status, const char* function);

  library from_{cuda_libraries("cublasLt"), &cuda_folders};
#define WEFT_CUBLASLT(member, name) decltype(&::name) member = from_.function<decltype(&::name)>(#name)
  WEFT_CUBLASLT(create, cublasLtCreate);
  WEFT_CUBLASLT(destroy, cublasLtDestroy);
  WEFT_CUBLASLT(matmul, cublasLtMatmul);
  WEFT_CUBLASLT(describe_product, cublasLtMatmulDescCreate);
  WEFT_CUBLASLT(set_product, cublasLtMatmulDescSetAttribute);
  WEFT_CUBLASLT(destroy_product, cublasLtMatmulDescDestroy);
  WEFT_CUBLASLT(create_layout, cublasLtMatrixLayoutCreate);
  WEFT_CUBLASLT(destroy_layout, cublasLtMatrixLayoutDestroy);
  WEFT_CUBLASLT(set_layout, cublasLtMatrixLayoutSetAttribute);
  WEFT_CUBLASLT(create_preference, cublasLtMatmulPreferenceCreate);
  WEFT_CUBLASLT(set_preference, cublasLtMatmulPreferenceSetAttribute);
  WEFT_CUBLASLT(destroy_preference, cublasLtMatmulPreferenceDestroy);
  WEFT_CUBLASLT(heuristic, cublasLtMatmulAlgoGetHeuristic);
#undef WEFT_CUBLASLT
  cublasLtHandle_t handle_ = nullptr;
  std::atomic<bool> tf32_ = false;
  std::mutex mutex_;
  std::map<problem, std::shared_ptr<const setup>> setups_;
};

}  // namespace weft::gpu

#ifndef WEFT_COMPILED
#include <weft/gpu/impl/cublaslt.ipp>
#endif
