// SPDX-License-Identifier: Apache-2.0
// The recorded cases of cluster specs and resolvers, step by step. Every case whose steps belong to
// this module runs; a step that the runner does not know is a failure.
#include <gmock/gmock.h>
#include <gtest/gtest-spi.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "cohort/cluster/cluster_resolver.h"
#include "cohort/cluster/detail/validation.h"
#include "cohort/core/error.h"

namespace cohort {
namespace {

using Json = nlohmann::json;

// ---- values ----

template <class Value>
std::optional<Value> optional_of(const Json& object, const std::string& key) {
  if (!object.contains(key) || object[key].is_null()) return std::nullopt;
  return object[key].get<Value>();
}

template <class Value>
Json json_of(const std::optional<Value>& value) {
  return value ? Json(*value) : Json();
}

ClusterSpec spec_of_index_keys(const Json& jobs) {
  std::map<std::string, ClusterSpec::Tasks> tasks;
  for (const auto& [job, addresses] : jobs.items()) {
    for (const auto& [index, address] : addresses.items()) {
      tasks[job][std::stoll(index)] = address.get<std::string>();
    }
  }
  return ClusterSpec::from_tasks(tasks);
}

TaskQuery query_of(const Json& args) {
  return {.task_type = optional_of<std::string>(args, "task_type"),
          .task_id = optional_of<std::int64_t>(args, "task_id"),
          .rpc_layer = optional_of<std::string>(args, "rpc_layer")};
}

// ---- what a step should return ----

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

// Whether `error` has the code and cause that stand for tf's exception `kind` (section 2 of the
// format).
bool is_of_kind(const Error& error, const std::string& kind) {
  const bool is_wrong_type = error.cause() == ErrorCause::wrong_type;
  if (kind == "ValueError" || kind == "AssertionError") {
    return error.code() == ErrorCode::invalid_argument && !is_wrong_type;
  }
  if (kind == "TypeError") return error.code() == ErrorCode::invalid_argument && is_wrong_type;
  if (kind == "RuntimeError") return error.code() == ErrorCode::failed_precondition;
  if (kind == "NotImplementedError") return error.code() == ErrorCode::unimplemented;
  if (kind == "IndexError") return error.code() == ErrorCode::out_of_range;
  if (kind == "KeyError") {
    return error.code() == ErrorCode::already_exists || error.code() == ErrorCode::not_found;
  }
  ADD_FAILURE() << "the runner does not know errors of kind " << kind;
  return false;
}

// The outcome of a step: a result or an error.
struct Outcome {
  Json result;
  std::optional<Error> error;

  std::string text() const { return error ? error->what() : result.dump(); }

  bool matches_error(const Json& expected) const {
    if (!error) return false;
    bool is_accepted = is_of_kind(*error, expected["kind"]);
    for (const Json& kind : expected.value("accept", Json::array())) {
      is_accepted = is_accepted || is_of_kind(*error, kind);
    }
    for (const Json& word : expected.value("words", Json::array())) {
      const bool is_said = lower(error->message()).find(lower(word)) != std::string::npos;
      is_accepted = is_accepted && is_said;
    }
    return is_accepted;
  }

  // `expected` is a step or what it recommends.
  bool matches(const Json& expected) const {
    if (expected.contains("error")) return matches_error(expected["error"]);
    return !error && (!expected.contains("expect") || result == expected["expect"]);
  }
};

// ---- the runner ----

// Runs the steps of one case. The destructor restores the environment.
class CaseRunner {
 public:
  CaseRunner() = default;
  CaseRunner(const CaseRunner&) = delete;
  CaseRunner& operator=(const CaseRunner&) = delete;
  ~CaseRunner() {
    for (const auto& [name, value] : environment_) set_variable(name, value);
  }

  void run(const Json& step) {
    const Outcome outcome = outcome_of(step);
    const bool is_as_recommended =
        step.contains("recommended") && outcome.matches(step["recommended"]);
    EXPECT_TRUE(outcome.matches(step) || is_as_recommended)
        << "step " << step.dump() << "\ngave " << outcome.text();
  }

  static const std::set<std::string>& operations() {
    static const std::set<std::string> names = {
        "setenv", "resolver", "rq", "rset", "cluster_spec", "csq", "validate", "ps_strategy"};
    return names;
  }

 private:
  Outcome outcome_of(const Json& step) {
    try {
      return {apply(step), std::nullopt};
    } catch (const Error& error) {
      return {{}, error};
    }
  }

  Json apply(const Json& step) {
    const std::string operation = step["do"];
    const Json args = step.value("args", Json::object());
    if (operation == "setenv") return set_environment(step["env"]);
    if (operation == "resolver") return make_resolver(step, args);
    if (operation == "rq") return ask_resolver(step, args);
    if (operation == "rset") return set_in_resolver(step);
    if (operation == "cluster_spec") return make_spec(step);
    if (operation == "csq") return ask_spec(specs_.at(step["of"]), step["query"], args);
    if (operation == "validate" || operation == "ps_strategy") return validate(step);
    ADD_FAILURE() << "the runner does not know the operation " << operation;
    return {};
  }

  static void set_variable(const std::string& name, const std::optional<std::string>& value) {
    if (value) {
      ::setenv(name.c_str(), value->c_str(), 1);
    } else {
      ::unsetenv(name.c_str());
    }
  }

  Json set_environment(const Json& variables) {
    for (const auto& [name, value] : variables.items()) {
      const char* const before = std::getenv(name.c_str());
      environment_.emplace(name,
                           before == nullptr ? std::nullopt : std::optional<std::string>(before));
      set_variable(name, optional_of<std::string>(variables, name));
    }
    return {};
  }

  Json make_spec(const Json& step) {
    const Json& from = step["from"];
    ClusterSpec spec;
    if (from.contains("json")) {
      spec = ClusterSpec::from_json(from["json"].dump());
    } else if (from.contains("intkeys")) {
      spec = spec_of_index_keys(from["intkeys"]);
    } else if (from.contains("ref")) {
      spec = specs_.at(from["ref"]);
    } else if (from.contains("proto_of")) {
      // Our serialised form is the JSON text.
      spec = ClusterSpec::from_json(specs_.at(from["proto_of"]).to_json());
    } else {
      ADD_FAILURE() << "the runner does not know the source " << from.dump();
    }
    specs_[step["as"]] = spec;
    return {};
  }

  Json ask_spec(const ClusterSpec& spec, const std::string& query, const Json& args) {
    if (query == "as_dict") return Json::parse(spec.to_json());
    if (query == "jobs") return spec.jobs();
    if (query == "bool") return bool(spec);
    if (query == "equals") return spec == specs_.at(args[0]);
    if (query == "num_tasks") return spec.num_tasks(args[0]);
    if (query == "task_indices") return spec.task_indices(args[0]);
    if (query == "task_address") return spec.task_address(args[0], args[1].get<std::int64_t>());
    if (query == "job_tasks") {
      Json tasks = Json::array();
      for (const auto& address : spec.job_tasks(args[0])) tasks.push_back(json_of(address));
      return tasks;
    }
    ADD_FAILURE() << "the runner does not know the query " << query;
    return {};
  }

  static Json validate(const Json& step) {
    const bool is_strategy = step["do"] == "ps_strategy";
    const auto check = is_strategy ? &validate_parameter_server_cluster : &validate_cluster;
    check(ClusterSpec::from_json(step["cluster"].dump()), optional_of<std::string>(step, "type"),
          optional_of<std::int64_t>(step, "index"));
    return {};
  }

  Json make_resolver(const Json& step, const Json& args) {
    const std::string kind = step["kind"];
    Entry entry;
    if (kind == "tf_config") {
      entry.tf_config = std::make_shared<TfConfigResolver>(
          TfConfigResolver::Options{.task_type = optional_of<std::string>(args, "task_type"),
                                    .task_id = optional_of<std::int64_t>(args, "task_id"),
                                    .rpc_layer = optional_of<std::string>(args, "rpc_layer"),
                                    .environment = optional_of<std::string>(args, "environment"),
                                    .devices = [this] { return devices_; }});
    } else if (kind == "simple") {
      entry.simple = make_simple(args);
    } else {
      ADD_FAILURE() << "the runner does not know resolvers of kind " << kind;
    }
    resolvers_[step["as"]] = entry;
    return {};
  }

  std::shared_ptr<SimpleResolver> make_simple(const Json& args) const {
    const Json& spec = args["cluster_spec"];
    // C++ cannot pass an argument of a wrong type, so it is refused here, when it is read.
    const bool has_text_master = args.value("master", Json("")).is_string();
    if (!has_text_master)
      throw Error(ErrorCode::invalid_argument, "master", ErrorCause::wrong_type);
    return std::make_shared<SimpleResolver>(
        spec.contains("ref") ? specs_.at(spec["ref"]) : ClusterSpec::from_json(spec.dump()),
        SimpleResolver::Options{
            .master = args.value("master", ""),
            .task_type = optional_of<std::string>(args, "task_type"),
            .task_id = optional_of<std::int64_t>(args, "task_id"),
            .environment = optional_of<std::string>(args, "environment"),
            .num_accelerators = optional_of<std::map<std::string, int>>(args, "num_accelerators")
                                    .value_or(std::map<std::string, int>()),
            .rpc_layer = optional_of<std::string>(args, "rpc_layer")});
  }

  Json ask_resolver(const Json& step, const Json& args) {
    const ClusterResolver& resolver = resolvers_.at(step["of"]).get();
    const std::string query = step["query"];
    devices_ = step.value("devices", std::vector<std::string>());
    if (query == "cluster_spec") return Json::parse(resolver.cluster_spec().to_json());
    if (query == "task_type") return json_of(resolver.task_type());
    if (query == "task_id") return json_of(resolver.task_id());
    if (query == "rpc_layer") return json_of(resolver.rpc_layer());
    if (query == "environment") return json_of(resolver.environment());
    if (query == "master") return resolver.master(query_of(args));
    if (query == "num_accelerators") {
      return Json(resolver.num_accelerators(query_of(args)));
    }
    ADD_FAILURE() << "the runner does not know the query " << query;
    return {};
  }

  Json set_in_resolver(const Json& step) {
    Entry& entry = resolvers_.at(step["of"]);
    if (entry.tf_config) return set_attribute(*entry.tf_config, step);
    return set_attribute(*entry.simple, step);
  }

  template <class Resolver>
  static Json set_attribute(Resolver& resolver, const Json& step) {
    const std::string attribute = step["attr"];
    if (attribute == "task_type") {
      resolver.set_task_type(optional_of<std::string>(step, "value"));
    } else if (attribute == "task_id") {
      resolver.set_task_id(optional_of<std::int64_t>(step, "value"));
    } else if (attribute == "rpc_layer") {
      resolver.set_rpc_layer(optional_of<std::string>(step, "value"));
    } else {
      ADD_FAILURE() << "the runner does not know the attribute " << attribute;
    }
    return {};
  }

  struct Entry {
    std::shared_ptr<TfConfigResolver> tf_config;
    std::shared_ptr<SimpleResolver> simple;

    const ClusterResolver& get() const {
      if (tf_config) return *tf_config;
      return *simple;
    }
  };

  std::map<std::string, std::optional<std::string>> environment_;
  std::map<std::string, ClusterSpec> specs_;
  std::map<std::string, Entry> resolvers_;
  std::vector<std::string> devices_;
};

// ---- the cases ----

struct Case {
  std::string file;
  Json json;

  std::string id() const { return json["id"]; }
  // The operations and the kinds of resolvers that this module does not have.
  std::set<std::string> foreign() const {
    std::set<std::string> names;
    for (const Json& step : json["steps"]) {
      const std::string operation = step["do"];
      const std::string kind = operation == "resolver" ? step["kind"] : Json("simple");
      if (!CaseRunner::operations().contains(operation)) names.insert(operation);
      if (kind != "simple" && kind != "tf_config") names.insert(kind);
    }
    return names;
  }
};

void PrintTo(const Case& test, std::ostream* stream) { *stream << test.id(); }

std::vector<Case> load(const std::string& file) {
  std::ifstream stream(COHORT_SOURCE_DIR "/tests/conformance/strategy/" + file);
  std::vector<Case> cases;
  if (!stream) return cases;
  for (const Json& json : Json::parse(stream)) cases.push_back({file, json});
  return cases;
}

std::vector<Case> load_own() {
  std::vector<Case> own = load("resolver_tf_config.json");
  for (const char* file : {"cluster_spec.json", "resolver_other.json", "ps_placement.json"}) {
    for (const Case& test : load(file)) {
      if (test.foreign().empty()) own.push_back(test);
    }
  }
  return own;
}

std::string test_name(const ::testing::TestParamInfo<Case>& info) {
  std::string name = info.param.id();
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

class GoldenCases : public ::testing::TestWithParam<Case> {};

TEST_P(GoldenCases, GiveTheRecordedOutcomes) {
  CaseRunner runner;
  for (const Json& step : GetParam().json["steps"]) runner.run(step);
}

INSTANTIATE_TEST_SUITE_P(Cluster, GoldenCases, ::testing::ValuesIn(load_own()), test_name);

TEST(GoldenFiles, AreThere) {
  for (const char* file : {"resolver_tf_config.json", "cluster_spec.json", "resolver_other.json",
                           "ps_placement.json"}) {
    EXPECT_FALSE(load(file).empty()) << file;
  }
}

// multi_worker_util belongs to multi-worker training; the other resolvers are still to come.
TEST(GoldenFiles, HaveNoOtherStepsThanThoseWeRunOrLeaveToOthers) {
  const std::set<std::string> left_to_others = {
      "mwu", "union", "slurm", "gce", "sagemaker", "kubernetes", "expand_hosts", "expand_tasks"};
  for (const char* file : {"resolver_tf_config.json", "cluster_spec.json", "resolver_other.json"}) {
    for (const Case& test : load(file)) {
      for (const std::string& name : test.foreign()) {
        EXPECT_TRUE(left_to_others.contains(name)) << test.id() << " has " << name;
      }
    }
  }
}

TEST(GoldenRunner, FailsOnStepsThatItDoesNotKnow) {
  EXPECT_NONFATAL_FAILURE(CaseRunner().run({{"do", "fly"}}), "does not know the operation fly");
}

TEST(GoldenRunner, FailsOnOtherResultsAndErrors) {
  const Json spec = {{"do", "cluster_spec"}, {"from", {{"json", 3}}}, {"as", "c"}};
  EXPECT_NONFATAL_FAILURE(CaseRunner().run(spec), "gave invalid_argument");
  Json wrong_kind = spec;
  wrong_kind["error"] = {{"kind", "ValueError"}};
  EXPECT_NONFATAL_FAILURE(CaseRunner().run(wrong_kind), "gave invalid_argument");
}

}  // namespace
}  // namespace cohort
