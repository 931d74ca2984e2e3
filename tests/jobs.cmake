# SPDX-License-Identifier: MIT
# Tests that run the examples, above all train_gpt, as a user starts them.
if(NOT TARGET weft_example_train_gpt)
  weft_without("the examples (WEFT_BUILD_EXAMPLES)" "no tests job, no chaos/launch")
  return()
endif()
weft_add_test(chaos/launch chaos COMMAND ${folder}/chaos/launch.sh $<TARGET_FILE:weft_example_launch>)
weft_add_test(job/data_parallel job COMMAND weft_example_data_parallel)
weft_add_test(job/run_world job TIMEOUT 300 PROCESSORS 2 COMMAND ${folder}/job/run_world.sh  # one main() on every transport
  $<TARGET_FILE:weft_example_first_model_on_ranks> "$<$<TARGET_EXISTS:weft::gloo>:$<TARGET_FILE:weft_example_launch>>"
  "$<$<TARGET_EXISTS:weft::mpi>:${MPIEXEC_EXECUTABLE}>"
  ENVIRONMENT
  OMPI_ALLOW_RUN_AS_ROOT=1
  OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  OMPI_MCA_rmaps_base_oversubscribe=1
  PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe)
if(TARGET weft::gloo)
  add_executable(weft_test_chaos_faulty_rank EXCLUDE_FROM_ALL chaos/faulty_rank.cpp)
  weft_program(weft_test_chaos_faulty_rank)
  target_link_libraries(weft_test_chaos_faulty_rank PRIVATE weft::gloo)
  weft_add_test(chaos/world "chaos;rank" TIMEOUT 600 PROCESSORS 2
    COMMAND ${folder}/chaos/world.sh $<TARGET_FILE:weft_example_launch> $<TARGET_FILE:weft_test_chaos_faulty_rank>)
endif()
function(weft_add_job_on_transports name lines)
  add_executable(weft_test_job_${name} EXCLUDE_FROM_ALL job/${name}.cpp)
  weft_program(weft_test_job_${name})
  weft_link_transports(weft_test_job_${name})
  weft_add_test(job/${name} job TIMEOUT 1200 PROCESSORS 2 COMMAND ${folder}/job/transports.sh
    $<TARGET_FILE:weft_test_job_${name}> "$<$<TARGET_EXISTS:weft::gloo>:$<TARGET_FILE:weft_example_launch>>"
    "$<$<TARGET_EXISTS:weft::mpi>:${MPIEXEC_EXECUTABLE}>" ${lines}
    ENVIRONMENT
    OMPI_ALLOW_RUN_AS_ROOT=1
    OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    OMPI_MCA_rmaps_base_oversubscribe=1
    PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe)
endfunction()
weft_add_job_on_transports(pipeline_ranks 24)
weft_add_job_on_transports(context_ranks 3)
weft_add_job_on_transports(expert_ranks 15)
if(NOT Python3_FOUND)
  return()
endif()

set(comm "")
set(rounds 1)
if(WEFT_TEST_FULL)
  set(rounds 20)
endif()
foreach(backend gloo mpi)
  if(TARGET weft::${backend})
    string(APPEND comm " ${backend}")
  endif()
endforeach()
function(weft_add_job name)
  cmake_parse_arguments(PARSE_ARGV 1 job "" "SCRIPT;PROCESSORS" "ARGUMENTS")
  if(NOT job_SCRIPT)
    set(job_SCRIPT ${name})
  endif()
  weft_add_test(job/${name} "job" PROCESSORS ${job_PROCESSORS} TIMEOUT 1200 ENVIRONMENT PYTHON=${Python3_EXECUTABLE} "WEFT_TEST_COMM=${comm}"
    COMMAND ${folder}/job/${job_SCRIPT}.sh $<TARGET_FILE:weft_example_train_gpt> $<TARGET_FILE:weft_example_launch> ${scratch}/job_${name}
    ${job_ARGUMENTS})
endfunction()
foreach(name arguments memory resume settings write_errors)
  weft_add_job(${name} PROCESSORS 1)
endforeach()
foreach(name experts interrupted layers pipelines positions precision scaling sizes strategies)  # ranks are threads or processes
  weft_add_job(${name} PROCESSORS 2)
endforeach()
if("OPENCL" IN_LIST weft_components)
  weft_add_job(opencl PROCESSORS 2)
endif()
foreach(backend gloo mpi)
  if(TARGET weft::${backend})
    weft_add_job(killed_${backend} SCRIPT killed PROCESSORS 2 ARGUMENTS ${backend} ${rounds})
  endif()
endforeach()
if(TARGET weft::gloo)
  weft_add_job(killed_stage PROCESSORS 2)
endif()
if(WEFT_TEST_FULL)
  weft_add_job(machines PROCESSORS 2)
endif()
