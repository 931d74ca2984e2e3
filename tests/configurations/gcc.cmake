# SPDX-License-Identifier: MIT
# g++ and every check, but the test programs that clang-asan.cmake or tsan.cmake build and that compute little; of strategies that divide
# models, crossings that take long to compile; the longest tests of kernels for GPUs and of ranks over NCCL; and what another test is near
# to: every header by itself, more ways to install, instruction sets, parsers, random programs on a device, second derivatives and those of
# layers, accuracy of long sums, pieces of every length and all element types of every op, machine code of attention, PyTorch's results in
# every element type and at odd shapes, every op on a fake GPU, graphs of one, the compiled library in programs that mix it, ranks that
# fail at random. With WEFT_TEST_EXCLUDE and WEFT_TRAIN_GPT_UNITS empty, as in tests/run.sh --full, it has these, too. g++ may use 4 GB
# before it collects garbage: small programs take a tenth less time to compile, the largest, in which it searches for memory after a
# collection, a fifth.
set(CMAKE_CXX_COMPILER g++ CACHE STRING "")
set(CMAKE_CXX_FLAGS_RELEASE "-O1 --param=ggc-min-heapsize=4194304" CACHE STRING "")
set(WEFT_TEST_EXCLUDE "^comm/(.*_test|gloo_ranks)$|^expr/lifetime|^io/|^law/(elementwise_gradient|gradient_layers|custom_device|second_derivative)|^shape/\
|^structure/warnings_O|^structure/warnings_g|^structure/headers|^structure/compiled|^structure/plugins|^structure/instructions|^package/add_subdirectory|^package/single|^package/conan|^package/fetch_content|^fuzz/flight|^fuzz/schedules|^random/opencl\
|^train/(loader|checkpoint_layers|checkpoint_stages)|^chaos/(pipeline_gloo|world)|^device/(pieces|tiles)|^gpu/(device|graphs|kept_kernels_test|nccl_|tensor_cores|kernel_text|attention_code|copies_and_products|index_add)|^docs/cookbook|^job/(context_ranks|expert_ranks|pipeline_ranks|experts|positions)$\
|^agree/(shapes|types)|^run/(accuracy|types)|^parallel/(batch_norm|context|sequence|deferred_layers|expert_(capacity|mesh)|faults|grouped_queries|hook|join|live_tapes|options|overlap|schedule_mutation|step_memory|pipeline_(absent|costs|experts|layers|models|stashing|state)|positions_read|recurrent|stage_timing|whole_parameters)|^nn/recurrent"
    CACHE STRING "")
set(WEFT_TRAIN_GPT_UNITS "(f32|bf16)_.*_0$|f32_none_[1-4]" CACHE STRING "")
include(${CMAKE_CURRENT_LIST_DIR}/common.cmake)
