# SPDX-License-Identifier: MIT
# Tests that read, compile or install the sources.

# Programs that must not compile, and the words of the errors. All include one header, which is precompiled.
set(compile ${CMAKE_CXX_COMPILER} ${PROJECT_SOURCE_DIR}/include ${scratch}/precompiled)
weft_add_test(fail/headers fail COMMAND ${folder}/fail/precompile.sh ${compile})
file(GLOB fail_files CONFIGURE_DEPENDS fail/*.cpp)
foreach(file ${fail_files})
  get_filename_component(name ${file} NAME_WE)
  weft_add_test(fail/${name} fail COMMAND ${folder}/fail/check.sh ${compile} ${file})
  if(TEST fail/headers AND TEST fail/${name})
    set_tests_properties(fail/headers PROPERTIES FIXTURES_SETUP precompiled)
    set_tests_properties(fail/${name} PROPERTIES FIXTURES_REQUIRED precompiled)
  endif()
endforeach()

# Headers compile alone, and together in two translation units; g++ compiles a program with its undefined-behavior sanitizer, under
# which comparisons of addresses of inline variables and functions are not constant; no header warns under any usual warning flag.
set(cuda_flags "")
list(JOIN weft_components " " components)
if("CUDA" IN_LIST weft_components)
  set(cuda_flags -isystem ${weft_cuda_headers})
endif()
set(flags ${cuda_flags})
foreach(directory ${MPI_CXX_INCLUDE_DIRS})
  list(APPEND flags -isystem ${directory})
endforeach()
set(headers listed)
if(WEFT_TEST_FULL)
  set(headers all)
endif()
weft_add_test(structure/headers structure TIMEOUT 1800 PROCESSORS ${WEFT_TEST_JOBS} ENVIRONMENT "WEFT_COMPONENTS=${components}"
  COMMAND ${folder}/structure/headers.sh ${headers} ${CMAKE_CXX_COMPILER} ${WEFT_TEST_JOBS} ${flags})
weft_add_test(structure/two_units structure COMMAND ${folder}/structure/two_units.sh ${CMAKE_CXX_COMPILER} ${scratch}/two_units)
weft_add_test(structure/plugins structure COMMAND ${folder}/structure/plugins.sh ${CMAKE_CXX_COMPILER} ${scratch}/plugins)
# The flags of a program that links weft::compiled without CMake's targets.
set(compiled_flags ${cuda_flags})
foreach(component TBB OPENCL CUDA NCCL)
  if(component IN_LIST weft_components)
    list(APPEND compiled_flags -DWEFT_WITH_${component}=1)
  endif()
endforeach()
set(library_flags ${flags} ${compiled_flags})  # with the communication libraries, too
foreach(component MPI GLOO)
  if(component IN_LIST weft_components)
    list(APPEND library_flags -DWEFT_WITH_${component}=1)
  endif()
endforeach()
if(WEFT_NATIVE)
  list(APPEND compiled_flags -march=native)
endif()
set(compiled_libraries -pthread)
foreach(library ${CMAKE_DL_LIBS})
  list(APPEND compiled_libraries -l${library})
endforeach()
if("TBB" IN_LIST weft_components)
  list(APPEND compiled_libraries -ltbb)
endif()
if(WEFT_BUILD_COMPILED AND NOT WEFT_SANITIZE)
  weft_add_test(structure/compiled structure COMMAND ${folder}/structure/compiled.sh ${CMAKE_CXX_COMPILER} ${scratch}/compiled
                $<TARGET_FILE:weft_compiled> ${compiled_flags} ${compiled_libraries})
endif()
weft_add_test(structure/sanitized_constants structure COMMAND ${CMAKE_CXX_COMPILER} -std=c++20 -fsanitize=undefined -fsyntax-only
  -I${PROJECT_SOURCE_DIR}/include -Wno-psabi ${PROJECT_SOURCE_DIR}/examples/train_mlp.cpp)
set(warnings -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wno-psabi -Werror)
set(levels O0)  # clang's warnings do not depend on the level
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND warnings -Wrestrict)
  set(levels O2 O3)
endif()
foreach(level ${levels})
  weft_add_test(structure/warnings_${level} structure COMMAND ${CMAKE_CXX_COMPILER} -std=c++20 -march=native -${level} ${warnings}
    -I${PROJECT_SOURCE_DIR}/include ${library_flags} -c ${folder}/structure/warnings.cpp -o ${CMAKE_CURRENT_BINARY_DIR}/warnings_${level}.o)
endforeach()
foreach(other g++-12 g++-13 g++-14 clang++-16 clang++-17 clang++-18 clang++-19)  # those that this machine has
  find_program(weft_${other} ${other})
  if(weft_${other} AND CMAKE_SYSTEM_PROCESSOR STREQUAL CMAKE_HOST_SYSTEM_PROCESSOR)
    weft_add_test(structure/warnings_${other} structure COMMAND ${weft_${other}} -std=c++20 -march=native -fsyntax-only
      -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wno-psabi -Werror -I${PROJECT_SOURCE_DIR}/include
      ${library_flags} ${folder}/structure/warnings.cpp)
  endif()
endforeach()
# clang's code for other machines than this one, above all inline assembly, with which clang is stricter than g++.
set(instruction_sets x86-64-v3 x86-64-v4)
if(WEFT_TEST_FULL)
  list(APPEND instruction_sets x86-64-v2 sapphirerapids)
endif()
if(weft_fuzzing_clang AND CMAKE_SYSTEM_PROCESSOR STREQUAL x86_64)
  foreach(set ${instruction_sets})
    weft_add_test(structure/instructions_${set} structure COMMAND ${weft_fuzzing_clang} -std=c++20 -march=${set} -O0 -Wno-psabi
      -I${PROJECT_SOURCE_DIR}/include -c ${folder}/structure/warnings.cpp -o ${CMAKE_CURRENT_BINARY_DIR}/instructions_${set}.o)
  endforeach()
endif()
if(WEFT_TEST_FULL)  # the programs of benchmarks/run.sh that use weft
  file(GLOB peer_files CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/benchmarks/peers/*_weft.cpp)
  foreach(file ${peer_files})
    get_filename_component(name ${file} NAME_WE)
    weft_add_test(structure/benchmark_${name} structure COMMAND ${CMAKE_CXX_COMPILER} -std=c++20 -march=native -fsyntax-only -Wno-psabi
      -Wall -Wextra -Werror -I${PROJECT_SOURCE_DIR}/include ${file})
  endforeach()
endif()
if(weft_nvcc)
  file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/umbrella.cu "#include <weft/weft.hpp>\nint main() {}\n")
  weft_add_test(structure/nvcc structure COMMAND ${weft_nvcc} -std=c++20 -I${PROJECT_SOURCE_DIR}/include
    -c ${CMAKE_CURRENT_BINARY_DIR}/umbrella.cu -o ${CMAKE_CURRENT_BINARY_DIR}/umbrella.o)
else()
  weft_without(nvcc "the headers are not compiled with it")
endif()

# The gdb printers.
weft_test_program(weft_test_gdb gdb/program.cpp)
target_compile_options(weft_test_gdb PRIVATE -g -O0 $<$<CXX_COMPILER_ID:Clang>:-fstandalone-debug>)
weft_add_test(gdb/printers unit COMMAND ${folder}/gdb/check.sh $<TARGET_FILE:weft_test_gdb> ${PROJECT_SOURCE_DIR}/include/weft/gdb.py)

set(built "")
if(WEFT_BUILD_COMPILED AND WEFT_INSTALL AND NOT WEFT_SANITIZE)
  set(built ${PROJECT_BINARY_DIR})
endif()
set(ways find_package add_subdirectory fetch_content plain)
if(Python3_FOUND)
  list(APPEND ways single)
endif()
find_program(weft_conan conan)
if(weft_conan AND "TBB" IN_LIST weft_components)
  list(APPEND ways conan)
else()
  weft_without("Conan, or oneTBB" "no test of the Conan recipe")
endif()
foreach(way ${ways})
  weft_add_test(package/${way} package
    COMMAND ${folder}/package/check.sh ${way} ${PROJECT_SOURCE_DIR} ${scratch}/package ${CMAKE_CXX_COMPILER} ${built})
endforeach()

if(NOT Python3_FOUND)
  weft_without("Python 3" "no tests of layers and comments, no tests docs, fuzz, random and job")
  return()
endif()
weft_add_test(structure/columns structure COMMAND ${Python3_EXECUTABLE} ${folder}/structure/columns.py ${PROJECT_SOURCE_DIR})
weft_add_test(structure/layers structure COMMAND ${Python3_EXECUTABLE} ${folder}/structure/layers.py ${PROJECT_SOURCE_DIR})
weft_add_test(structure/comments structure COMMAND ${Python3_EXECUTABLE} ${folder}/structure/comments.py ${PROJECT_SOURCE_DIR})
weft_add_test(structure/mutations structure COMMAND ${Python3_EXECUTABLE} ${folder}/random/mutations.py --texts-only --build ${scratch}/mutation_texts)
weft_add_test(structure/placement_mutations structure COMMAND ${Python3_EXECUTABLE} ${folder}/law/placement_mutations.py --texts-only
  --build ${scratch}/placement_mutation_texts)
if(WEFT_TEST_FULL AND weft_doctest_headers)
  weft_add_test(law/placement_mutations law COMMAND ${Python3_EXECUTABLE} ${folder}/law/placement_mutations.py
    --compiler ${CMAKE_CXX_COMPILER} --build ${scratch}/placement_mutations)
endif()

# ONNX models in ONNX Runtime, which is not a dependency.
execute_process(COMMAND ${Python3_EXECUTABLE} -c "import ml_dtypes, numpy, onnx, onnxruntime"
                RESULT_VARIABLE no_onnxruntime OUTPUT_QUIET ERROR_QUIET)
if(no_onnxruntime)
  weft_without("onnx and onnxruntime for Python" "no tests agree/onnx_*")
else()
  foreach(cases elementwise shapes models)
    weft_test_program(weft_test_agree_onnx_${cases} agree/onnx_${cases}.cpp)
    weft_add_test(agree/onnx_${cases} agree
      COMMAND ${Python3_EXECUTABLE} ${folder}/agree/check_onnx.py $<TARGET_FILE:weft_test_agree_onnx_${cases}>)
  endforeach()
endif()

# Bytes that are not valid files, requests, calls, recordings, schedules or meshes.
set(seconds 5)
if(WEFT_TEST_FULL)
  set(seconds 300)
endif()
if(weft_fuzzing_clang)
  foreach(target files store rpc flight schedules)
    weft_add_test(fuzz/${target} fuzz ENVIRONMENT PYTHON=${Python3_EXECUTABLE}
      COMMAND ${folder}/fuzz/check.sh ${target} ${seconds} ${scratch}/fuzz_${target} ${weft_fuzzing_clang})
  endforeach()
else()
  weft_without(clang "no tests fuzz")
endif()

# Generated programs: values and derivatives against the oracle. A failing program is shrunk to a few lines.
set(random_library "")  # the code that every program would compile
if(WEFT_BUILD_COMPILED AND NOT WEFT_SANITIZE)
  list(JOIN compiled_flags " " flags)
  list(JOIN compiled_libraries " " libraries)
  set(random_library "--flags=-O0 -DWEFT_COMPILED=1 ${flags}" "--libraries=$<TARGET_FILE:weft_compiled> ${libraries}")
endif()
function(weft_add_random name programs seed)
  cmake_parse_arguments(PARSE_ARGV 3 random "" "" "OPTIONS;ENVIRONMENT")
  weft_add_test(random/${name} random TIMEOUT 14400 PROCESSORS ${WEFT_TEST_JOBS} ENVIRONMENT ${random_ENVIRONMENT}
    COMMAND ${Python3_EXECUTABLE} ${folder}/random/run.py --programs ${programs} --seed ${seed} --jobs ${WEFT_TEST_JOBS}
    --build ${scratch}/random_${name} --compiler ${CMAKE_CXX_COMPILER} ${random_OPTIONS})
  if(TEST random/${name} AND NOT random_ENVIRONMENT)  # no device besides the CPU
    set_tests_properties(random/${name} PROPERTIES ENVIRONMENT_MODIFICATION WEFT_TEST_DEVICE=unset:)
  endif()
endfunction()
set(programs 40)
set(programs_on_opencl 20)
set(models 1)
if(WEFT_TEST_FULL)
  set(programs 10000)
  set(models 100)
  set(programs_on_opencl 500)
  weft_add_test(random/mutations random PROCESSORS ${WEFT_TEST_JOBS}
    COMMAND ${Python3_EXECUTABLE} ${folder}/random/mutations.py --jobs ${WEFT_TEST_JOBS} --build ${scratch}/mutations)
  if(weft_fuzzing_clang)
    weft_add_random(clang 300 3 OPTIONS --compiler ${weft_fuzzing_clang})
  endif()
endif()
weft_add_random(programs ${programs} 1 OPTIONS ${random_library})
weft_add_test(random/models random TIMEOUT 14400 PROCESSORS ${WEFT_TEST_JOBS}
  COMMAND ${Python3_EXECUTABLE} ${folder}/random/models.py --models ${models} --jobs ${WEFT_TEST_JOBS} --build ${scratch}/random_models
  --compiler ${CMAKE_CXX_COMPILER} ${random_library})
if("OPENCL" IN_LIST weft_components AND weft_opencl_driver)
  set(with_opencl ${random_library})
  if(NOT with_opencl)
    set(with_opencl "--flags=-O0 -march=native -DWEFT_WITH_OPENCL=1" --libraries=-ldl)
  endif()
  weft_add_random(opencl ${programs_on_opencl} 2 ENVIRONMENT WEFT_TEST_DEVICE=opencl OPTIONS ${with_opencl})
endif()
