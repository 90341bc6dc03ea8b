# SPDX-License-Identifier: Apache-2.0
# cohort_module(NAME DEPS module... [LIBS library...] [PROTOS file...] [ALONE regex...]
#               [TESTS_ALONE regex...] [LEFT_OUT regex...] [NO_PCH])
#
# ALONE, TESTS_ALONE: paths of sources and of tests that are compiled alone, their unnamed namespaces having names that
# others of the module have too.
# LEFT_OUT: paths of sources and headers that this build does not have, for want of a library.
# NO_PCH: it is compiled with options that the shared precompiled header was not.
#
# One folder is one module: x.cpp is part of it, x_test.cpp of its test program NAME_test, x_bench.cpp
# of NAME_bench, main.cpp of neither. No file is listed anywhere, so none can be left out.
set(CMAKE_VERIFY_INTERFACE_HEADER_SETS ON)
add_custom_target(cohort_generated)
# All benchmarks. Beside the tests they can be built too, to see that they compile, but only by this target: then without
# optimisation. No header is precompiled for them, so that none hides a missing include.
add_custom_target(cohort_benches)
set(cohort_has_benches ${COHORT_BENCH})
if(COHORT_TESTS AND benchmark_FOUND)
  set(cohort_has_benches ON)
endif()

function(cohort_compile_options target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Wno-missing-field-initializers
    # These two g++ 12 gives for LibTorch's and the standard library's own code.
    "$<$<BOOL:${COHORT_WERROR}>:-Werror;-Wno-error=maybe-uninitialized;-Wno-error=array-bounds>"
    -ffp-contract=off)
  # g++ 12 sees overlapping copies and overflows in the standard library's own functions (GCC bugs 105651, 105562), and
  # with all optimisations pages of them.
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    target_compile_options(${target} PRIVATE -Wno-restrict -Wno-stringop-overflow "$<$<CONFIG:Release>:-Wno-array-bounds>")
  endif()
  if(COHORT_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${COHORT_SANITIZE} -fno-omit-frame-pointer -g1)
    if(NOT COHORT_SANITIZE STREQUAL thread)
      target_compile_options(${target} PRIVATE -fno-sanitize-recover=all)
    endif()
    target_link_options(${target} PUBLIC -fsanitize=${COHORT_SANITIZE})
    # Every program gets these options, also those that tests start.
    get_target_property(type ${target} TYPE)
    if(type STREQUAL EXECUTABLE)
      set(options_source ${PROJECT_SOURCE_DIR}/cmake/sanitizer_options.cpp)
      target_sources(${target} PRIVATE ${options_source})
      set_source_files_properties(${options_source} PROPERTIES SKIP_PRECOMPILE_HEADERS ON SKIP_UNITY_BUILD_INCLUSION ON)
    endif()
  endif()
endfunction()

include(CheckLinkerFlag)
set(cohort_test_link_options)
if(NOT COHORT_SANITIZE)
  check_linker_flag(CXX -fuse-ld=gold cohort_has_gold)
  if(cohort_has_gold)
    set(cohort_test_link_options -fuse-ld=gold)
  endif()
endif()

# Tests check what the library does, not how fast: a fifth less to compile than with -O1. Their programs are many and
# large, and gold links one in a third of the time.
function(cohort_test_options target)
  target_compile_options(${target} PRIVATE -O0)
  target_link_options(${target} PRIVATE ${cohort_test_link_options})
endfunction()

# A program of benchmarks, or of a peer of theirs.
function(cohort_bench name)
  add_executable(${name} ${ARGN})
  cohort_compile_options(${name})
  add_dependencies(cohort_benches ${name})
  if(NOT COHORT_BENCH)
    set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL ON)
    cohort_test_options(${name})
  endif()
endfunction()

include(CohortPrecompiled)

# Most of what a source costs are the headers and templates it shares with its neighbours. By default with g++
# alone: of what is joined, clang 14 leaves a function of libstdc++ 12 out of more programs than the fuzz targets.
set(cohort_unity OFF)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  set(cohort_unity ON)
endif()
option(COHORT_UNITY "Compile several sources of a target at once: a clean build takes two thirds of the time" ${cohort_unity})
function(cohort_compile_together target batch)
  if(COHORT_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${batch})
    # g++ takes the joined sources for headers.
    target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
  endif()
endfunction()

# Leaves those of `sources` that match a pattern out of what is compiled together.
function(cohort_compile_alone sources patterns)
  foreach(pattern ${patterns})
    set(matching ${sources})
    list(FILTER matching INCLUDE REGEX "^${CMAKE_CURRENT_SOURCE_DIR}.*${pattern}")
    if(NOT matching)
      message(FATAL_ERROR "${CMAKE_CURRENT_SOURCE_DIR}: no source matches ${pattern}, which is to be compiled alone")
    endif()
    set_source_files_properties(${matching} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  endforeach()
endfunction()

function(cohort_module name)
  cmake_parse_arguments(ARG "NO_PCH" "" "DEPS;LIBS;PROTOS;ALONE;TESTS_ALONE;LEFT_OUT" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS *.cpp)
  file(GLOB_RECURSE headers CONFIGURE_DEPENDS *.h)
  # Its public headers, which are installed, lie apart.
  set(include_dirs ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
  file(RELATIVE_PATH module_folder ${PROJECT_SOURCE_DIR}/src ${CMAKE_CURRENT_SOURCE_DIR})
  file(GLOB_RECURSE public_headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/include/${module_folder}/*.h)
  # Some lie in the folder of another module (tools/layers.txt).
  file(STRINGS ${PROJECT_SOURCE_DIR}/tools/layers.txt parts REGEX " -> ")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tools/layers.txt)
  foreach(part ${parts})
    string(REGEX REPLACE "^(.*) -> (.*)$" "${PROJECT_SOURCE_DIR}/include/cohort/\\1;\\2" part ${part})
    list(POP_FRONT part header)
    list(REMOVE_ITEM public_headers ${header})
    if(part STREQUAL name)
      list(APPEND public_headers ${header})
    endif()
  endforeach()
  list(APPEND headers ${public_headers})
  # A subfolder with a CMakeLists.txt of its own is another module.
  file(GLOB inner CONFIGURE_DEPENDS */CMakeLists.txt)
  foreach(list ${inner})
    get_filename_component(folder ${list} DIRECTORY)
    list(FILTER sources EXCLUDE REGEX "^${folder}/")
    list(FILTER headers EXCLUDE REGEX "^${folder}/")
    get_filename_component(inner_name ${folder} NAME)
    list(FILTER headers EXCLUDE REGEX "/include/${module_folder}/${inner_name}/")
  endforeach()
  foreach(pattern ${ARG_LEFT_OUT})
    list(FILTER sources EXCLUDE REGEX "^${CMAKE_CURRENT_SOURCE_DIR}.*${pattern}")
    list(FILTER headers EXCLUDE REGEX "^${CMAKE_CURRENT_SOURCE_DIR}.*${pattern}")
  endforeach()
  set(tests ${sources})
  set(benches ${sources})
  list(FILTER tests INCLUDE REGEX "_test\\.cpp$")
  list(FILTER benches INCLUDE REGEX "_bench\\.cpp$")
  list(FILTER sources EXCLUDE REGEX "(_(test|bench|fuzz)|/main)\\.cpp$")
  if(NOT sources)
    set(sources ${PROJECT_SOURCE_DIR}/cmake/no_source.cpp)
  endif()
  add_library(cohort_${name} STATIC ${sources})
  # Generated headers are private: what includes them compiles only inside of the module.
  foreach(header ${headers})
    file(STRINGS ${header} generated REGEX "#include \".*\\.pb\\.h\"")
    if(generated)
      list(REMOVE_ITEM headers ${header})
    endif()
  endforeach()
  # A header set, from which `./dev check clang` takes each header and the command that compiles it alone.
  target_sources(cohort_${name} PUBLIC FILE_SET HEADERS BASE_DIRS ${include_dirs} FILES ${headers})
  target_include_directories(cohort_${name} PUBLIC "$<BUILD_INTERFACE:${include_dirs}>")
  # LibTorch's headers are not ours to keep free of warnings.
  target_include_directories(cohort_${name} SYSTEM PUBLIC ${COHORT_TORCH_INCLUDE_DIRS})
  target_link_libraries(cohort_${name} PUBLIC ${TORCH_LIBRARIES} Threads::Threads PRIVATE ${ARG_LIBS})
  foreach(dep ${ARG_DEPS})
    target_link_libraries(cohort_${name} PUBLIC cohort_${dep})
  endforeach()
  cohort_compile_options(cohort_${name})
  cohort_compile_together(cohort_${name} 8)
  cohort_compile_alone("${sources}" "${ARG_ALONE}")
  if(NOT ARG_NO_PCH)
    cohort_precompile(cohort_${name} cohort_pch)
  endif()
  set_property(GLOBAL APPEND PROPERTY COHORT_MODULES cohort_${name})
  if(ARG_PROTOS)
    cohort_protos(cohort_${name} ${ARG_PROTOS})
  endif()
  if(COHORT_TESTS)
    cohort_compile_alone("${tests}" "${ARG_TESTS_ALONE}")
    # Tests that include torch/torch.h are a program of their own: its precompiled header costs each source 7 s.
    set(torch_tests ${tests})
    foreach(test ${tests})
      cohort_includes_torch(has_torch ${test})
      if(has_torch)
        list(REMOVE_ITEM tests ${test})
      else()
        list(REMOVE_ITEM torch_tests ${test})
      endif()
    endforeach()
    cohort_module_test(${name} ${name}_test "${tests}" "${ARG_LIBS}")
    cohort_module_test(${name} ${name}_torch_test "${torch_tests}" "${ARG_LIBS}")
  endif()
  if(cohort_has_benches AND benches)
    cohort_bench(${name}_bench ${benches})
    target_link_libraries(${name}_bench PRIVATE cohort_${name} benchmark::benchmark_main ${ARG_LIBS})
  endif()
endfunction()

# The program `name` of a module's tests, if it has such.
function(cohort_module_test module name tests libs)
  if(tests)
    cohort_test(${name} SOURCES ${tests} LIBS cohort_${module} cohort_testing ${libs})
    cohort_compile_together(${name} 16)
  endif()
endfunction()

# cohort_test(NAME SOURCES file... LIBS library... [LABELS label...])
function(cohort_test name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBS;LABELS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_LIBS} GTest::gmock GTest::gtest_main)
  cohort_compile_options(${name})
  cohort_precompile_test(${name} "${ARG_SOURCES}")
  target_compile_definitions(${name} PRIVATE COHORT_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  set(environment)
  if(COHORT_SANITIZE)
    # libgomp is not instrumented either, and its barriers are invisible to ThreadSanitizer.
    set(environment OMP_NUM_THREADS=1)
  endif()
  # One process a program: loading LibTorch takes longer than most tests.
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT 900 ENVIRONMENT "${environment}")
endfunction()

# Links every object of the modules, whether or not something names it. The archives beside them only bring what they
# link to in turn.
function(cohort_link_whole target)
  foreach(module ${ARGN})
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:${module}>)
  endforeach()
  target_link_libraries(${target} PRIVATE ${ARGN})
endfunction()

# Generated protobuf code, and gRPC's for files with a service; its headers are private to the module.
function(cohort_protos target)
  foreach(proto ${ARGN})
    get_filename_component(stem ${proto} NAME_WE)
    set(out ${CMAKE_CURRENT_BINARY_DIR}/${stem})
    file(STRINGS ${proto} services REGEX "^service ")
    set(generated ${out}.pb.cc ${out}.pb.h)
    set(grpc)
    if(services)
      list(APPEND generated ${out}.grpc.pb.cc ${out}.grpc.pb.h)
      set(grpc --grpc_out=${CMAKE_CURRENT_BINARY_DIR} --plugin=protoc-gen-grpc=${COHORT_GRPC_PLUGIN})
    endif()
    add_custom_command(OUTPUT ${generated}
      COMMAND protobuf::protoc --proto_path=${CMAKE_CURRENT_SOURCE_DIR} --cpp_out=${CMAKE_CURRENT_BINARY_DIR}
              ${grpc} ${CMAKE_CURRENT_SOURCE_DIR}/${proto}
      DEPENDS ${proto} VERBATIM)
    set(sources ${generated})
    list(FILTER sources INCLUDE REGEX "\\.cc$")
    set_source_files_properties(${sources} PROPERTIES COMPILE_OPTIONS -w SKIP_PRECOMPILE_HEADERS ON)
    target_sources(${target} PRIVATE ${generated})
    add_custom_target(${target}_${stem}_generated DEPENDS ${generated})
    add_dependencies(${target} ${target}_${stem}_generated)
    add_dependencies(cohort_generated ${target}_${stem}_generated)
  endforeach()
  target_include_directories(${target} SYSTEM PRIVATE ${CMAKE_CURRENT_BINARY_DIR})
endfunction()
