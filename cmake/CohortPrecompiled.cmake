# SPDX-License-Identifier: Apache-2.0
# Precompiled headers: parsing LibTorch's and GoogleTest's is half of a build. One for the libraries and one
# for the tests, shared by all. They hide a missing include from g++ alone: `./dev check clang` goes without.
option(COHORT_PCH "Precompile the headers of LibTorch and GoogleTest" ON)

set(cohort_has_pch OFF)
if(COHORT_PCH AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  set(cohort_has_pch ON)
  if(COHORT_CCACHE AND CMAKE_CXX_COMPILER_LAUNCHER STREQUAL COHORT_CCACHE)
    # What ccache needs to remember objects made with them.
    set(CMAKE_CXX_COMPILER_LAUNCHER env CCACHE_SLOPPINESS=pch_defines,time_macros ${COHORT_CCACHE})
  endif()
endif()

# The target whose header `target` shares.
function(cohort_precompile target from)
  if(cohort_has_pch)
    target_compile_options(${target} PRIVATE -fpch-preprocess)
    target_precompile_headers(${target} REUSE_FROM ${from})
  endif()
endfunction()

# Of a program that belongs to the tests but has a main of its own.
function(cohort_precompile_program target)
  cohort_test_options(${target})
  cohort_precompile(${target} cohort_test_pch)
  # g++ refuses a header that was made with other definitions.
  target_compile_options(${target} PRIVATE $<TARGET_PROPERTY:GTest::gtest,INTERFACE_COMPILE_OPTIONS>)
endfunction()

function(cohort_make_pch target)
  target_include_directories(${target} SYSTEM PRIVATE ${COHORT_TORCH_INCLUDE_DIRS})
  target_link_libraries(${target} PRIVATE ${TORCH_LIBRARIES} Threads::Threads)
  cohort_compile_options(${target})
  target_compile_options(${target} PRIVATE -fpch-preprocess)
  target_precompile_headers(${target} PRIVATE <ATen/core/Tensor.h> <algorithm> <chrono> <functional> <map>
    <memory> <optional> <string> <unordered_map> <utility> <variant> <vector>)
endfunction()

if(cohort_has_pch)
  add_library(cohort_pch STATIC ${PROJECT_SOURCE_DIR}/cmake/no_source.cpp)
  cohort_make_pch(cohort_pch)
  if(COHORT_TESTS)
    # A program, for its kind of position-independent code.
    add_executable(cohort_test_pch ${PROJECT_SOURCE_DIR}/cmake/no_program.cpp)
    cohort_make_pch(cohort_test_pch)
    cohort_test_options(cohort_test_pch)
    target_link_libraries(cohort_test_pch PRIVATE GTest::gmock)
    target_precompile_headers(cohort_test_pch PRIVATE <gmock/gmock.h> <gtest/gtest.h>)
  endif()
endif()
