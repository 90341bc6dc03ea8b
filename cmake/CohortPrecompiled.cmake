# SPDX-License-Identifier: Apache-2.0
# Precompiled headers: parsing LibTorch's and GoogleTest's is half of a build. One for the libraries, one for the
# tests and one for those that include torch/torch.h, shared by all. They hide a missing include from g++ alone:
# `./dev check clang` goes without.
option(COHORT_PCH "Precompile the headers of LibTorch and GoogleTest" ON)

set(cohort_has_pch OFF)
if(COHORT_PCH AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  set(cohort_has_pch ON)
  if(COHORT_CCACHE AND CMAKE_CXX_COMPILER_LAUNCHER STREQUAL COHORT_CCACHE)
    # These options let ccache remember objects made with them.
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

function(cohort_includes_torch result source)
  file(STRINGS ${source} found REGEX "^#include <torch/torch\\.h>")
  if(found)
    set(${result} ON PARENT_SCOPE)
  else()
    set(${result} OFF PARENT_SCOPE)
  endif()
endfunction()

# For a test made of `sources`.
function(cohort_precompile_test target sources)
  cohort_test_options(${target})
  set(from cohort_test_pch)
  foreach(source ${sources})
    cohort_includes_torch(has_torch ${source})
    if(has_torch)
      set(from cohort_torch_test_pch)
    endif()
  endforeach()
  cohort_precompile(${target} ${from})
endfunction()

# For a program made of `sources` that belongs to the tests but has a main of its own.
function(cohort_precompile_program target sources)
  cohort_precompile_test(${target} "${sources}")
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
    # Programs, for their kind of position-independent code.
    foreach(target cohort_test_pch cohort_torch_test_pch)
      add_executable(${target} ${PROJECT_SOURCE_DIR}/cmake/no_program.cpp)
      cohort_make_pch(${target})
      cohort_test_options(${target})
      target_link_libraries(${target} PRIVATE GTest::gmock)
      target_precompile_headers(${target} PRIVATE <gmock/gmock.h> <gtest/gtest.h>)
    endforeach()
    target_precompile_headers(cohort_torch_test_pch PRIVATE <torch/torch.h>)
  endif()
endif()
