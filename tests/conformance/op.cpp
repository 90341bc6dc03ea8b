// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/op.h"

#include <algorithm>

#include "cohort/core/error.h"

namespace cohort::conformance {
namespace {

std::int64_t context_value(const Json& argument, const InputContext& context) {
  const auto name = argument["ctx"].get<std::string>();
  std::int64_t value = 0;
  if (name == "input_pipeline_id") {
    value = context.input_pipeline_id;
  } else if (name == "num_input_pipelines") {
    value = context.num_input_pipelines;
  } else if (name == "num_replicas_in_sync") {
    value = context.num_replicas_in_sync;
  } else if (name == "per_replica_batch") {
    value = context.get_per_replica_batch_size(member(argument, "global").get<std::int64_t>());
  } else {
    throw CaseFault("unknown value of the input context '" + name + "'");
  }
  return value * member_or<std::int64_t>(argument, "mul", 1) +
         member_or<std::int64_t>(argument, "add", 0);
}

}  // namespace

Json resolved(const Json& json, const InputContext& context) {
  if (!json.is_structured()) return json;
  if (json.is_object()) {
    if (json.contains("ctx") && json["ctx"].is_string()) return context_value(json, context);
    if (json.size() == 1 && json.contains("by_pipeline") && json["by_pipeline"].is_array()) {
      const auto pipeline = static_cast<std::size_t>(context.input_pipeline_id);
      if (pipeline >= json["by_pipeline"].size()) {
        throw CaseFault("no entry for input pipeline " + std::to_string(pipeline) + " in " +
                        brief(json, 120));
      }
      return resolved(json["by_pipeline"][pipeline], context);
    }
  }
  Json result = json;
  for (Json& part : result) part = resolved(part, context);
  return result;
}

Op::Op(const Json& fields, std::shared_ptr<CaseState> state, const InputContext& context)
    : fields_(fields), state_(std::move(state)), context_(context) {
  name_ = member(fields_, "op").get<std::string>();
}

bool Op::has(const char* key) const { return !json(key).is_null(); }

const Json& Op::json(const char* key) const {
  static const Json absent;
  const auto found = fields_.find(key);
  return found == fields_.end() ? absent : *found;
}

std::int64_t Op::parallel(const char* key) const {
  const auto given = maybe<std::int64_t>(key);
  COHORT_CHECK(given != 0, ErrorCode::invalid_argument, "expected ", key, " > 0, got 0");
  return given.value_or(0);
}

std::vector<std::string> Op::paths(const char* key) const {
  std::vector<std::string> names;
  if (json(key).is_string()) {
    names.push_back(get<std::string>(key));
  } else {
    names = get<std::vector<std::string>>(key);
  }
  for (std::string& name : names) name = state_->directory->path_of(name);
  return names;
}

void Op::allow_only(const std::vector<std::string>& keys) const {
  for (const auto& [key, value] : fields_.items()) {
    if (key != "op" && std::find(keys.begin(), keys.end(), key) == keys.end()) {
      throw CaseFault("unknown field '" + key + "' of op '" + name_ + "'");
    }
  }
}

void Op::fail(const char* key) const {
  throw CaseFault("op '" + name_ + "' has no usable field '" + key + "': " + brief(fields_, 160));
}

}  // namespace cohort::conformance
