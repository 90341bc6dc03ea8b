// SPDX-License-Identifier: Apache-2.0
#include "cohort/cluster/cluster_resolver.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <vector>

#include "cohort/cluster/resolvers/integer_text.h"
#include "cohort/cluster/resolvers/resolving.h"
#include "cohort/core/error.h"
#include "cohort/core/log.h"
#include "cohort/core/mutex.h"
#include "cohort/core/spelling.h"

namespace cohort {
namespace {

using Json = nlohmann::json;
using internal::quote;

constexpr std::string_view kExample =
    "set it as {\"cluster\": {\"worker\": [\"host:port\", …], \"ps\": [\"host:port\", …]}, "
    "\"task\": {\"type\": \"worker\", \"index\": 0}}";

[[noreturn]] void fail(ErrorCause cause, std::string_view key, std::string_view expected,
                       const std::string& got, std::string_view remedy) {
  std::ostringstream text;
  text << "[cluster.tf_config] expected " << expected << " for " << key << ", got " << got << "; "
       << remedy;
  throw Error(ErrorCode::invalid_argument, text.str(), cause);
}

// A JSON value with its name in messages: "TF_CONFIG", "TF_CONFIG key task.index".
struct Document {
  std::string name;
  Json value;
};

Document load() {
  const std::optional<std::string> text = internal::environment_text("TF_CONFIG");
  if (!text) return {"TF_CONFIG", Json::object()};
  try {
    return {"TF_CONFIG", Json::parse(*text)};
  } catch (const Json::exception& error) {
    std::string got = quote(*text);
    got.append(" (").append(error.what()).append(")");
    fail(ErrorCause::none, "TF_CONFIG", "a JSON object", got, kExample);
  }
}

// Python's `key in container`. A list or a string without the key counts as an object without it;
// one with the key is an error, as Python cannot index it by the key.
bool contains(const Document& document, const std::string& key) {
  const Json& value = document.value;
  if (value.is_object()) return value.contains(key);
  const bool is_absent =
      (value.is_array() && std::find(value.begin(), value.end(), key) == value.end()) ||
      (value.is_string() && value.get<std::string>().find(key) == std::string::npos);
  if (is_absent) return false;
  fail(ErrorCause::wrong_type, document.name, "a JSON object", quote(value.dump()), kExample);
}

std::optional<Document> find(const Document& document, const std::string& key) {
  if (!contains(document, key)) return std::nullopt;
  const bool is_root = document.name == "TF_CONFIG";
  return Document{document.name + (is_root ? " key " : ".") + key, document.value.at(key)};
}

Document task_info() {
  std::optional<Document> task = find(load(), "task");
  if (!task) return {"TF_CONFIG key task", Json::object()};
  return *std::move(task);
}

std::string python_repr(const Json& value);

std::string python_items(const Json& value) {
  std::string text;
  for (const auto& [key, item] : value.items()) {
    if (!text.empty()) text += ", ";
    if (value.is_object()) text.append("'").append(key).append("': ");
    text += python_repr(item);
  }
  return text;
}

std::string python_repr(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return "None";
    case Json::value_t::boolean:
      return value.get<bool>() ? "True" : "False";
    case Json::value_t::string:
      return std::string("'").append(value.get<std::string>()).append("'");
    case Json::value_t::array:
      return std::string("[").append(python_items(value)).append("]");
    case Json::value_t::object:
      return std::string("{").append(python_items(value)).append("}");
    default:
      return value.dump();
  }
}

// Python's str(value).
std::string text_of(const Json& value) {
  return value.is_string() ? value.get<std::string>() : python_repr(value);
}

constexpr std::string_view kIndexRemedy =
    "write \"index\": 0, 1, … as the task's place in its job's list";

// Every query reads the index, so this warns only once for each text of TF_CONFIG.
void warn_of_conversion(const Document& index, std::int64_t number) {
  static Mutex mutex;
  static std::set<std::string>& warned = *new std::set<std::string>;
  const std::string value = index.value.dump();
  const std::string text = internal::environment_text("TF_CONFIG").value_or("");
  const Lock lock(mutex);
  if (!warned.insert(text).second) return;
  log_warn("[cluster.tf_config] expected a whole number for ", index.name, ", got ", value,
           ", which is taken for ", number, " as tf does; ", kIndexRemedy);
}

// Python's int(value).
std::int64_t integer_of(const Document& index) {
  const Json& value = index.value;
  constexpr std::string_view kExpected = "a whole number";
  if (value.is_boolean()) {
    const std::int64_t number = value.get<bool>() ? 1 : 0;
    warn_of_conversion(index, number);
    return number;
  }
  if (value.is_number_unsigned() && value.get<std::uint64_t>() <= INT64_MAX)
    return value.get<std::int64_t>();
  if (value.is_number_integer() && !value.is_number_unsigned()) return value.get<std::int64_t>();
  if (value.is_number_float() && std::abs(value.get<double>()) < 9.2e18) {
    const auto number = static_cast<std::int64_t>(value.get<double>());
    if (static_cast<double>(number) != value.get<double>()) warn_of_conversion(index, number);
    return number;
  }
  if (value.is_string()) {
    const std::optional<std::int64_t> number = internal::integer_of_text(value.get<std::string>());
    if (number) return *number;
  }
  const bool is_bad_value = value.is_number() || value.is_string();
  fail(is_bad_value ? ErrorCause::none : ErrorCause::wrong_type, index.name, kExpected,
       quote(value.is_string() ? value.get<std::string>() : value.dump()), kIndexRemedy);
}

// The string; nullopt where the key is absent or null.
std::optional<std::string> optional_text(const std::string& key) {
  const std::optional<Document> found = find(load(), key);
  if (!found || found->value.is_null()) return std::nullopt;
  if (!found->value.is_string()) {
    fail(ErrorCause::wrong_type, found->name, "a text", quote(found->value.dump()),
         "write it in quotes or leave it out");
  }
  return found->value.get<std::string>();
}

// Ignores other unknown keys, as tf does. One that is almost a key which is missing is a mistake,
// and the task would behave as if the missing key had been left out.
void check_spelling(const Document& document, const std::vector<std::string>& keys) {
  std::string expected;
  std::vector<std::string> missing;
  for (const std::string& key : keys) {
    expected += (expected.empty() ? "" : ", ") + key;
    if (!document.value.contains(key)) missing.push_back(key);
  }
  for (const auto& [key, value] : document.value.items()) {
    if (std::find(keys.begin(), keys.end(), key) != keys.end()) continue;
    const std::string similar = did_you_mean(key, missing);
    COHORT_CHECK(similar.empty(), ErrorCode::invalid_argument, "[cluster.tf_config] expected ",
                 document.name, " with the keys ", expected, ", got ", quote(key),
                 "; correct its name", similar);
  }
}

// A TFJob with enableDynamicWorker sets sparseCluster instead of the cluster: its parameter servers
// and the own worker, so that neither a coordinator nor the workers find the others.
void check_not_sparse(const Document& root) {
  if (!root.value.is_object() || root.value.contains("cluster")) return;
  COHORT_CHECK(!root.value.contains("sparseCluster"), ErrorCode::invalid_argument,
               "[cluster.tf_config] expected TF_CONFIG key cluster with all tasks, got "
               "sparseCluster, which names only some of them; leave enableDynamicWorker out of the "
               "TFJob, or write the cluster yourself");
}

}  // namespace

TfConfigResolver::TfConfigResolver() : TfConfigResolver(Options()) {}

TfConfigResolver::TfConfigResolver(Options options) : options_(std::move(options)) {
  if (!options_.devices) options_.devices = &internal::local_devices;
}

ClusterSpec TfConfigResolver::cluster_spec() const {
  const Document root = load();
  check_not_sparse(root);
  const std::optional<Document> cluster = find(root, "cluster");
  return cluster ? ClusterSpec::from_json(cluster->value.dump(), cluster->name) : ClusterSpec();
}

std::optional<std::string> TfConfigResolver::task_type() const {
  if (options_.task_type) return options_.task_type;
  const std::optional<Document> type = find(task_info(), "type");
  if (!type) return std::nullopt;
  return text_of(type->value);
}

std::optional<std::int64_t> TfConfigResolver::task_id() const {
  if (options_.task_id) return options_.task_id;
  const std::optional<Document> index = find(task_info(), "index");
  if (!index) return std::nullopt;
  return integer_of(*index);
}

std::optional<std::string> TfConfigResolver::rpc_layer() const {
  return options_.rpc_layer ? options_.rpc_layer : optional_text("rpc_layer");
}

std::string TfConfigResolver::master(const TaskQuery& query) const {
  if (const std::optional<std::string> session = optional_text("session_master")) return *session;
  const ClusterSpec spec = cluster_spec();
  if (internal::is_one_task_at_most(spec)) return "";
  const std::optional<std::string> type = query.task_type ? query.task_type : task_type();
  const std::optional<std::int64_t> index = query.task_id ? query.task_id : task_id();
  COHORT_CHECK(type && index, ErrorCode::invalid_argument,
               "[cluster.tf_config] expected TF_CONFIG keys task.type and task.index, got ",
               type ? quote(*type) : "no type", " and ",
               index ? std::to_string(*index) : "no index", " with the cluster ", spec.to_string(),
               "; ", kExample);
  return internal::master_url(spec.task_address(*type, *index),
                              query.rpc_layer ? query.rpc_layer : rpc_layer());
}

void TfConfigResolver::validate() const {
  const Document root = load();
  const auto check_object = [](const Document& document) {
    if (document.value.is_object()) return;
    fail(ErrorCause::wrong_type, document.name, "a JSON object", quote(document.value.dump()),
         kExample);
  };
  check_object(root);
  check_not_sparse(root);
  check_spelling(root, {"cluster", "task", "rpc_layer", "session_master"});
  const std::optional<Document> task = find(root, "task");
  if (!task) return;
  check_object(*task);
  check_spelling(*task, {"type", "index"});
  COHORT_CHECK(options_.task_type || task->value.contains("type") || !task->value.contains("index"),
               ErrorCode::invalid_argument,
               "[cluster.tf_config] expected a type beside the index in TF_CONFIG key task, got ",
               task->value.dump(), "; ", kExample);
}

std::map<std::string, int> TfConfigResolver::num_accelerators(const TaskQuery& query) const {
  const TaskQuery wanted{.task_type = query.task_type ? query.task_type : task_type(),
                         .task_id = query.task_id ? query.task_id : task_id()};
  // Throws for a task that is not in the cluster, which would otherwise have zero accelerators. An
  // evaluator need not be in it.
  const bool is_apart = wanted.task_type == "evaluator" &&
                        !cluster_spec().has_task("evaluator", wanted.task_id.value_or(0));
  if (!is_apart) master(wanted);
  return internal::count_accelerators(options_.devices(), wanted);
}

}  // namespace cohort
