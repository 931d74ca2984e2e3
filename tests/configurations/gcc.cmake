# SPDX-License-Identifier: MIT
# g++ and every check, except for these:
# - test programs that clang-asan.cmake or tsan.cmake build and that compute little;
# - combinations of strategies that shard models, if they take long to compile;
# - the longest tests of GPU kernels and of ranks over NCCL;
# - tests close to another one: every header by itself, more ways to install, instruction sets, parsers, random programs on a device,
#   second derivatives and those of layers, accuracy of long sums, pieces of every length and all element types of every op, machine code
#   of attention, PyTorch's results in every element type and at odd shapes, every op on a fake GPU, graphs on one, the compiled library in
#   programs that mix it, ranks that fail at random.
# tests/run.sh --full sets WEFT_TEST_EXCLUDE and WEFT_TRAIN_GPT_UNITS so that these tests run, too.
# g++ may use 4 GB before it collects garbage: small programs then compile in a tenth less time; the largest, in which it searches for
# memory after a collection, in a fifth less.
set(CMAKE_CXX_COMPILER g++ CACHE STRING "")
set(CMAKE_CXX_FLAGS_RELEASE "-O1 --param=ggc-min-heapsize=4194304" CACHE STRING "")
set(WEFT_TEST_EXCLUDE
    "^agree/(shapes|types)" "^chaos/(pipeline_gloo|world)" "^comm/(.*_test|gloo_ranks)$" "^device/(pieces|tiles)" "^docs/cookbook"
    "^expr/lifetime" "^fuzz/(flight|schedules)" "^gpu/(attention_code|copies_and_products|device|graphs|index_add)"
    "^gpu/(kept_kernels_test|kernel_text|nccl_|tensor_cores)" "^io/" "^job/(context_ranks|expert_ranks|experts|pipeline_ranks|positions)$"
    "^law/(custom_device|elementwise_gradient|gradient_layers|second_derivative)" "^nn/recurrent"
    "^package/(add_subdirectory|conan|fetch_content|single)" "^parallel/(batch_norm|context|deferred_layers|expert_(capacity|mesh)|faults)"
    "^parallel/(grouped_queries|hook|join|live_tapes|options|overlap|positions_read|recurrent|schedule_mutation|sequence|stage_timing)"
    "^parallel/(pipeline_(absent|costs|experts|layers|models|stashing|state)|step_memory|whole_parameters)" "^random/opencl"
    "^run/(accuracy|types)" "^shape/" "^structure/(compiled|headers|instructions|plugins|warnings_O|warnings_g)"
    "^train/(checkpoint_layers|checkpoint_stages|loader)"
    CACHE STRING "")
set(WEFT_TRAIN_GPT_UNITS "(f32|bf16)_.*_0$|f32_none_[1-4]" CACHE STRING "")
include(${CMAKE_CURRENT_LIST_DIR}/common.cmake)
