# SPDX-License-Identifier: MIT
# Tests that are separate programs, on doctest.

# Their main(), the oracle and the comparison.
add_library(weft_test_main STATIC EXCLUDE_FROM_ALL main.cpp oracle.cpp compare.cpp)
target_include_directories(weft_test_main SYSTEM PUBLIC ${weft_doctest_headers})
weft_program(weft_test_main)
target_compile_features(weft_test_main PUBLIC cxx_std_20)

# The headers that all test programs include, precompiled: reading them is a tenth of the compile time. They warn, unlike system headers.
set(CMAKE_PCH_PROLOGUE "")
set(CMAKE_PCH_WARN_INVALID OFF)  # if it cannot be used, the headers are read
file(CONFIGURE OUTPUT precompiled.cpp CONTENT "")
weft_test_program(weft_test_precompiled ${CMAKE_CURRENT_BINARY_DIR}/precompiled.cpp OBJECT)
target_include_directories(weft_test_precompiled SYSTEM PRIVATE ${weft_doctest_headers})
target_precompile_headers(weft_test_precompiled PRIVATE <doctest/doctest.h> <weft/weft.hpp>)

# One program per file, so that they compile and run in parallel. OpenCL drivers leak memory.
file(GLOB_RECURSE test_files CONFIGURE_DEPENDS unit/*_test.cpp law/*_test.cpp agree/*_test.cpp chaos/*_test.cpp)
foreach(file ${test_files})
  get_filename_component(name ${file} NAME_WE)
  get_filename_component(folder_name ${file} DIRECTORY)
  get_filename_component(folder_name ${folder_name} NAME)
  file(RELATIVE_PATH kind ${folder} ${file})
  string(REGEX REPLACE "/.*" "" kind ${kind})
  weft_test_program(weft_test_${folder_name}_${name} ${file})
  target_link_libraries(weft_test_${folder_name}_${name} PRIVATE weft_test_main)
  if(WEFT_TEST_OPTIMIZED AND "${folder_name}/${name}" MATCHES "${WEFT_TEST_OPTIMIZED}")
    target_compile_options(weft_test_${folder_name}_${name} PRIVATE -O1)
  else()
    target_precompile_headers(weft_test_${folder_name}_${name} REUSE_FROM weft_test_precompiled)
  endif()
  set(environment "")
  if(name STREQUAL "device_test")
    set(environment ASAN_OPTIONS=detect_leaks=0)
  elseif(name STREQUAL "open_test")  # when PoCL's threads end, g++'s ASan takes the signal stacks they set for its own
    set(environment ASAN_OPTIONS=use_sigaltstack=0)
  endif()
  weft_add_test(${folder_name}/${name} ${kind} COMMAND weft_test_${folder_name}_${name} ENVIRONMENT ${environment})
endforeach()

# Matrix products on emulated tile registers.
weft_test_program(weft_test_device_tiles unit/device/gemm_test.cpp HEADER_ONLY)
target_link_libraries(weft_test_device_tiles PRIVATE weft_test_main)
target_compile_definitions(weft_test_device_tiles PRIVATE WEFT_TILE_REGISTERS="${folder}/emulated_tiles.hpp")
weft_add_test(device/tiles unit COMMAND weft_test_device_tiles "--test-case=*bf16*")
find_file(weft_opencl_driver NAMES pocl.icd PATHS /etc/OpenCL/vendors NO_DEFAULT_PATH)
if(NOT "OPENCL" IN_LIST weft_components)
  weft_without("OpenCL's headers" "no tests on OpenCL devices")
elseif(NOT weft_opencl_driver)
  weft_without(PoCL "tests on OpenCL devices are skipped where no other driver is found")
endif()

# The contract of communicators on processes, and ranks that are killed, are stopped or hang, WEFT_CHAOS_ROUNDS times. These tests mostly wait.
foreach(backend mpi gloo)
  if(TARGET weft::${backend})
    weft_test_program(weft_test_comm_${backend}_ranks unit/comm/${backend}_ranks.cpp)
    target_include_directories(weft_test_comm_${backend}_ranks SYSTEM PRIVATE ${weft_doctest_headers})
    target_link_libraries(weft_test_comm_${backend}_ranks PRIVATE weft::${backend})
  else()
    string(TOUPPER ${backend} name)
    weft_without("weft::${backend} (WEFT_WITH_${name})" "no tests of ranks on it")
  endif()
endforeach()
if(TARGET weft::mpi)
  foreach(ranks 1 2 3)
    weft_add_test(comm/mpi_${ranks}_ranks "unit;rank" TIMEOUT 300 PROCESSORS 2
      COMMAND ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${ranks} $<TARGET_FILE:weft_test_comm_mpi_ranks> ENVIRONMENT
      OMPI_ALLOW_RUN_AS_ROOT=1
      OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
      OMPI_MCA_rmaps_base_oversubscribe=1
      PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
      ASAN_OPTIONS=detect_leaks=0)
  endforeach()
  weft_test_program(weft_test_chaos_mpi_program chaos/mpi_program.cpp)
  target_link_libraries(weft_test_chaos_mpi_program PRIVATE weft::mpi)
  weft_add_test(chaos/ranks_mpi "chaos;rank" TIMEOUT 3600 COMMAND ${folder}/chaos/ranks_mpi.sh
    $<TARGET_FILE:weft_test_comm_mpi_ranks> $<TARGET_FILE:weft_test_chaos_mpi_program> ENVIRONMENT ASAN_OPTIONS=detect_leaks=0)
endif()
if(TARGET weft::gloo)
  weft_add_test(comm/gloo_ranks "unit;rank" TIMEOUT 300 PROCESSORS 2 COMMAND weft_test_comm_gloo_ranks)
  weft_test_program(weft_test_chaos_ranks_gloo chaos/ranks_gloo.cpp)
  target_include_directories(weft_test_chaos_ranks_gloo SYSTEM PRIVATE ${weft_doctest_headers})
  target_link_libraries(weft_test_chaos_ranks_gloo PRIVATE weft::gloo)
  weft_add_test(chaos/ranks_gloo "chaos;rank" TIMEOUT 3600 COMMAND weft_test_chaos_ranks_gloo)
  weft_test_program(weft_test_chaos_pipeline_gloo chaos/pipeline_gloo.cpp)
  target_include_directories(weft_test_chaos_pipeline_gloo SYSTEM PRIVATE ${weft_doctest_headers})
  target_link_libraries(weft_test_chaos_pipeline_gloo PRIVATE weft::gloo)
  weft_add_test(chaos/pipeline_gloo "chaos;rank" TIMEOUT 3600 COMMAND weft_test_chaos_pipeline_gloo)
endif()

# CUDA without a GPU: a fake driver that computes on the CPU, with a compiler, cuBLASLt and NCCL for it, found before the machine's own.
if("CUDA" IN_LIST weft_components)
  set(fakes ${CMAKE_CURRENT_BINARY_DIR}/fake_cuda)
  foreach(fake cuda.so.1 nvrtc.so.13 cublasLt.so.13 nccl.so.2)
    string(REGEX REPLACE "\\..*" "" name ${fake})
    string(TOLOWER fake_${name} target)
    add_library(weft_${target} SHARED EXCLUDE_FROM_ALL gpu/${target}.cpp)
    set_target_properties(weft_${target} PROPERTIES PREFIX "" SUFFIX "" OUTPUT_NAME lib${fake} LIBRARY_OUTPUT_DIRECTORY ${fakes}
                          BUILD_RPATH ${fakes})
    target_compile_features(weft_${target} PRIVATE cxx_std_20)
    target_include_directories(weft_${target} SYSTEM PRIVATE ${weft_cuda_headers})
    target_link_libraries(weft_${target} PRIVATE ${CMAKE_DL_LIBS})
  endforeach()
  target_sources(weft_fake_cuda PRIVATE gpu/fake_pages.cpp)
  target_compile_definitions(weft_fake_nvrtc PRIVATE FAKE_COMPILER="${CMAKE_CXX_COMPILER}")
  target_link_libraries(weft_fake_cublaslt PRIVATE weft_fake_cuda)
  target_link_libraries(weft_fake_nccl PRIVATE weft_fake_cuda)
  weft_test_program(weft_test_gpu_cuda_test gpu/cuda_test.cpp)
  target_link_libraries(weft_test_gpu_cuda_test PRIVATE weft_test_main)
  weft_test_program(weft_test_gpu_memory_test gpu/memory_test.cpp)
  target_link_libraries(weft_test_gpu_memory_test PRIVATE weft_test_main)
  weft_test_program(weft_test_gpu_graph_test gpu/graph_test.cpp)
  target_link_libraries(weft_test_gpu_graph_test PRIVATE weft_test_main)
  if(EXISTS ${weft_cuda_headers}/nvtx3/nvToolsExt.h)
    add_library(weft_fake_nvtx_tool MODULE EXCLUDE_FROM_ALL gpu/fake_nvtx_tool.cpp)
    target_include_directories(weft_fake_nvtx_tool SYSTEM PRIVATE ${weft_cuda_headers})
    weft_test_program(weft_test_gpu_nvtx_test gpu/nvtx_test.cpp)
    target_link_libraries(weft_test_gpu_nvtx_test PRIVATE weft_test_main)
    add_dependencies(weft_test_gpu_nvtx_test weft_fake_nvtx_tool weft_fake_cuda weft_fake_nvrtc weft_fake_cublaslt)
    weft_add_test(gpu/nvtx gpu COMMAND weft_test_gpu_nvtx_test
                  ENVIRONMENT LD_LIBRARY_PATH=${fakes} NVTX_INJECTION64_PATH=$<TARGET_FILE:weft_fake_nvtx_tool>)
  endif()
  weft_test_program(weft_test_gpu_tensor_core_test gpu/tensor_core_test.cpp)
  target_link_libraries(weft_test_gpu_tensor_core_test PRIVATE weft_test_main)
  weft_test_program(weft_test_gpu_attention_code_test gpu/attention_code_test.cpp)
  target_link_libraries(weft_test_gpu_attention_code_test PRIVATE weft_test_main)
  weft_add_test(gpu/attention_code gpu COMMAND weft_test_gpu_attention_code_test)
  weft_test_program(weft_test_gpu_kernel_code_test gpu/kernel_code_test.cpp)
  target_link_libraries(weft_test_gpu_kernel_code_test PRIVATE weft_test_main)
  weft_add_test(gpu/kernel_code gpu COMMAND weft_test_gpu_kernel_code_test)
  weft_test_program(weft_test_gpu_nccl_test gpu/nccl_test.cpp)
  target_link_libraries(weft_test_gpu_nccl_test PRIVATE weft_test_main)
  add_dependencies(weft_test_gpu_nccl_test weft_fake_nccl)
  weft_test_program(weft_test_gpu_nccl_layers_test gpu/nccl_layers_test.cpp)
  target_link_libraries(weft_test_gpu_nccl_layers_test PRIVATE weft_test_main)
  add_dependencies(weft_test_gpu_nccl_layers_test weft_fake_nccl)
  weft_test_program(weft_test_gpu_nccl_world gpu/nccl_world.cpp)
  add_dependencies(weft_test_gpu_nccl_world weft_fake_cuda weft_fake_nvrtc weft_fake_cublaslt weft_fake_nccl)
  foreach(target weft_test_gpu_cuda_test weft_test_gpu_nccl_test weft_test_gpu_nccl_layers_test weft_test_law_device_test
          weft_test_gpu_kept_kernels_test weft_test_gpu_tensor_core_test weft_test_gpu_memory_test weft_test_gpu_graph_test
          weft_test_gpu_index_add_test weft_test_gpu_copies_and_products_test weft_test_gpu_kernel_text_test
          weft_test_gpu_sort_test weft_test_gpu_reports_test)
    add_dependencies(${target} weft_fake_cuda weft_fake_nvrtc weft_fake_cublaslt)
  endforeach()
  weft_add_test(gpu/cuda gpu COMMAND weft_test_gpu_cuda_test ENVIRONMENT LD_LIBRARY_PATH=${fakes})
  weft_add_test(gpu/memory gpu COMMAND weft_test_gpu_memory_test ENVIRONMENT LD_LIBRARY_PATH=${fakes})
  weft_add_test(gpu/graphs gpu COMMAND weft_test_gpu_graph_test ENVIRONMENT LD_LIBRARY_PATH=${fakes})
  weft_add_test(gpu/tensor_cores gpu COMMAND weft_test_gpu_tensor_core_test ENVIRONMENT LD_LIBRARY_PATH=${fakes})
  weft_add_test(gpu/nccl "gpu;rank" PROCESSORS 2 COMMAND weft_test_gpu_nccl_test "--test-case-exclude=the contract*"
                ENVIRONMENT LD_LIBRARY_PATH=${fakes} FAKE_CUDA_DEVICES=4)
  weft_add_test(gpu/nccl_contract "gpu;rank" PROCESSORS 2 COMMAND weft_test_gpu_nccl_test "--test-case=the contract*"
                ENVIRONMENT LD_LIBRARY_PATH=${fakes} FAKE_CUDA_DEVICES=4)
  weft_add_test(gpu/nccl_layers "gpu;rank" PROCESSORS 2 COMMAND weft_test_gpu_nccl_layers_test
                ENVIRONMENT LD_LIBRARY_PATH=${fakes} FAKE_CUDA_DEVICES=4)
  weft_add_test(gpu/nccl_world "gpu;rank" COMMAND weft_test_gpu_nccl_world ENVIRONMENT LD_LIBRARY_PATH=${fakes} FAKE_CUDA_DEVICES=3)
  weft_add_test(gpu/kept_kernels gpu COMMAND weft_test_gpu_kept_kernels_test
                ENVIRONMENT LD_LIBRARY_PATH=${fakes} WEFT_TEST_DEVICE=cuda)
  weft_add_test(gpu/device gpu COMMAND weft_test_law_device_test
                ENVIRONMENT LD_LIBRARY_PATH=${fakes} WEFT_TEST_DEVICE=cuda)
  foreach(test index_add copies_and_products kernel_text sort reports)
    weft_add_test(gpu/${test}_cuda gpu COMMAND weft_test_gpu_${test}_test
                  ENVIRONMENT LD_LIBRARY_PATH=${fakes} WEFT_TEST_DEVICE=cuda)
  endforeach()
  if(WEFT_TEST_FULL)
    if(weft_nvcc)  # every kernel of the law tests as machine code of every architecture
      execute_process(COMMAND ${weft_nvcc} --list-gpu-code OUTPUT_VARIABLE architectures)
      string(REGEX REPLACE "[ \n]+" " " architectures "${architectures}")
      weft_add_test(gpu/architectures gpu COMMAND weft_test_law_device_test ENVIRONMENT "WEFT_TEST_ARCHITECTURES=${architectures}")
    endif()
    weft_add_test(gpu/pack gpu COMMAND ${folder}/gpu/pack.sh ${fakes} ${scratch}/pack)
  endif()
else()
  weft_without("CUDA's headers" "no tests gpu")
endif()
