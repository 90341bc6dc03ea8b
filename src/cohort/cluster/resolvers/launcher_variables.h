// SPDX-License-Identifier: Apache-2.0
// The variables that a launcher has set for its processes.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>

namespace cohort::internal {

// The names in messages: "slurm", and what to do where a variable is missing.
struct Launcher {
  const char* name;
  const char* remedy;
};

// A variable that was read. A value type.
struct LauncherVariable {
  const Launcher* launcher;
  std::string name;
  std::string text;

  // Throws invalid_argument for anything but a whole number of 0 or more.
  std::int64_t number() const;
};

// nullopt where it is not set.
std::optional<LauncherVariable> variable(const Launcher& launcher, const char* name);
// The first of `names` that is set.
std::optional<LauncherVariable> first_variable(const Launcher& launcher,
                                               std::initializer_list<const char*> names);
// Throws failed_precondition where it is not set.
LauncherVariable required(const Launcher& launcher, const char* name);
// Throws failed_precondition unless rank < size.
void check_rank(const LauncherVariable& rank, const LauncherVariable& size);

}  // namespace cohort::internal
