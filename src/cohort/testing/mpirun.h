// SPDX-License-Identifier: Apache-2.0
// Starts programs by mpirun, where the build has found MPI (tests/CMakeLists.txt).
#pragma once

#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "cohort/testing/running_program.h"

namespace cohort::testing {

#ifdef MPIRUN
inline constexpr const char* kMpirun = MPIRUN;
inline constexpr const char* kMpiEnvironment = MPI_ENVIRONMENT;  // NAME=value NAME=value
#else
inline constexpr const char* kMpirun = "";
inline constexpr const char* kMpiEnvironment = "";
#endif

inline bool has_mpirun() { return *kMpirun != '\0'; }

inline std::vector<std::pair<std::string, std::string>> mpi_environment() {
  std::vector<std::pair<std::string, std::string>> environment;
  std::istringstream assignments(kMpiEnvironment);
  for (std::string one; assignments >> one;) {
    const std::size_t equals = one.find('=');
    environment.emplace_back(one.substr(0, equals), one.substr(equals + 1));
  }
  return environment;
}

// `size` processes of a program. Its wait() is that for all of them.
inline RunningProgram mpi_job(int size, std::vector<std::string> words) {
  words.insert(words.begin(), {kMpirun, "-n", std::to_string(size)});
  return RunningProgram(std::move(words), mpi_environment());
}

}  // namespace cohort::testing
