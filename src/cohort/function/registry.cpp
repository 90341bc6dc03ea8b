// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/registry.h"

#include <map>

#include "cohort/core/error.h"
#include "cohort/core/mutex.h"

namespace cohort::function {
namespace {

// Process-wide, because registration happens before there is any server to own it. Thread-safe.
class Registry {
 public:
  static Registry& instance() {
    static Registry registry;
    return registry;
  }

  void add(std::string name, RegisteredFunction function) COHORT_EXCLUDES(mutex_) {
    const Lock lock(mutex_);
    const auto [it, is_new] = functions_.try_emplace(std::move(name), std::move(function));
    COHORT_CHECK(is_new, ErrorCode::already_exists,
                 "[function.register] expected a new name, got '", it->first,
                 "', which is registered already");
  }

  const RegisteredFunction* find(std::string_view name) COHORT_EXCLUDES(mutex_) {
    const Lock lock(mutex_);
    const auto it = functions_.find(name);
    return it == functions_.end() ? nullptr : &it->second;
  }

  std::string names() COHORT_EXCLUDES(mutex_) {
    const Lock lock(mutex_);
    std::string text;
    for (const auto& [name, function] : functions_) text += (text.empty() ? "" : ", ") + name;
    return text.empty() ? "none" : text;
  }

 private:
  Mutex mutex_;
  // A map's elements stay where they are.
  std::map<std::string, RegisteredFunction, std::less<>> functions_ COHORT_GUARDED_BY(mutex_);
};

}  // namespace

void register_function(std::string name, RegisteredFunction function) {
  COHORT_CHECK(!name.empty() && function, ErrorCode::invalid_argument,
               "[function.register] expected a name and a callable, got ",
               name.empty() ? "an empty name" : "an empty callable for '" + name + "'");
  Registry::instance().add(std::move(name), std::move(function));
}

const RegisteredFunction& registered_function(std::string_view name) {
  const RegisteredFunction* function = Registry::instance().find(name);
  COHORT_CHECK(function != nullptr, ErrorCode::not_found,
               "[function.lookup] no function is registered as '", name,
               "' here (registered: ", Registry::instance().names(),
               "); call register_function in every task's program before its server starts");
  return *function;
}

bool is_registered_function(std::string_view name) {
  return Registry::instance().find(name) != nullptr;
}

}  // namespace cohort::function
