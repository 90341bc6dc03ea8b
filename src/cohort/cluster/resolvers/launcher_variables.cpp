// SPDX-License-Identifier: Apache-2.0
#include "cohort/cluster/resolvers/launcher_variables.h"

#include <utility>

#include "cohort/cluster/resolvers/integer_text.h"
#include "cohort/cluster/resolvers/resolving.h"
#include "cohort/core/error.h"

namespace cohort::internal {

std::int64_t LauncherVariable::number() const {
  const std::optional<std::int64_t> value = integer_of_text(text);
  COHORT_CHECK(value && *value >= 0, ErrorCode::invalid_argument, "[cluster.", launcher->name,
               "] expected a number in ", name, ", got ", quote(text));
  return *value;
}

std::optional<LauncherVariable> variable(const Launcher& launcher, const char* name) {
  std::optional<std::string> text = environment_text(name);
  if (!text) return std::nullopt;
  return LauncherVariable{&launcher, name, *std::move(text)};
}

std::optional<LauncherVariable> first_variable(const Launcher& launcher,
                                               std::initializer_list<const char*> names) {
  for (const char* const name : names) {
    if (std::optional<LauncherVariable> found = variable(launcher, name)) return found;
  }
  return std::nullopt;
}

LauncherVariable required(const Launcher& launcher, const char* name) {
  std::optional<LauncherVariable> found = variable(launcher, name);
  COHORT_CHECK(found, ErrorCode::failed_precondition, "[cluster.", launcher.name,
               "] expected the variable ", name, " in the environment, which is not set; ",
               launcher.remedy);
  return *std::move(found);
}

void check_rank(const LauncherVariable& rank, const LauncherVariable& size) {
  COHORT_CHECK(rank.number() < size.number(), ErrorCode::failed_precondition, "[cluster.",
               rank.launcher->name, "] expected ", rank.name, " below ", size.text, ", the ",
               size.name, ", got ", rank.text, "; ", rank.launcher->remedy);
}

}  // namespace cohort::internal
