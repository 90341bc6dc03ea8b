// SPDX-License-Identifier: Apache-2.0
// Distributed datasets, and one pipeline that feeds several devices.
#include <optional>

#include "cohort/data/rebatch.h"
#include "cohort/input/multi_device_iterator.h"
#include "tests/conformance/distribution.h"
#include "tests/conformance/kinds.h"
#include "tests/conformance/named_functions.h"
#include "tests/conformance/pipeline.h"
#include "tests/conformance/script.h"
#include "tests/conformance/values.h"

namespace cohort::conformance {
namespace {

// Makes and reads a PER_REPLICA dataset on the same strategy first; it must not affect the case.
void run_prelude(const std::string& name, Strategy& strategy) {
  if (name.empty()) return;
  if (name != "per_replica_from_function") throw CaseFault("unknown prelude '" + name + "'");
  const DistributedDataset dataset = strategy.distribute_datasets_from_function(
      [](const InputContext&) { return Dataset::range(4); },
      {.fetch_to_device = false, .replication_mode = ReplicationMode::per_replica});
  DistributedIterator iterator = dataset.iterator();
  while (iterator.try_next()) {
  }
}

DistributedDataset distributed(const Json& test_case, Strategy& strategy,
                               const std::shared_ptr<CaseState>& state, Json& contexts) {
  const InputOptions options =
      input_options_of(member_or(test_case, "input_options", Json::object()));
  const Json& pipeline = member(test_case, "pipeline");
  const auto method = member(test_case, "method").get<std::string>();
  if (method == "dataset") {
    return strategy.distribute_dataset(build_pipeline(pipeline, state), options);
  }
  if (method != "from_function") throw CaseFault("unknown method '" + method + "'");
  contexts = Json::array();
  std::string fault;
  try {
    return strategy.distribute_datasets_from_function(
        [&](const InputContext& context) {
          contexts.push_back({context.num_input_pipelines, context.input_pipeline_id,
                              context.num_replicas_in_sync});
          try {
            return build_pipeline(pipeline, state, context);
          } catch (const CaseFault& error) {
            fault = error.what();  // the library may turn the exception into an Error
            throw;
          }
        },
        options);
  } catch (...) {
    if (!fault.empty()) throw CaseFault(fault);
    throw;
  }
}

Json run_worker(const Json& test_case, Strategy& strategy,
                const std::shared_ptr<CaseState>& state) {
  Json outcome = Json::object();
  Json contexts;
  std::function<Nest(const Nest&)> replica_fn;
  if (test_case.contains("replica_fn")) {
    replica_fn = named_replica_function(test_case["replica_fn"].get<std::string>());
  }
  std::unique_ptr<Subject> subject;
  try {
    run_prelude(member_or<std::string>(test_case, "prelude", ""), strategy);
    subject = subject_of(strategy, distributed(test_case, strategy, state, contexts), replica_fn);
    subject->describe(outcome);
  } catch (...) {
    return {{"build_error", caught_error()}};
  }
  run_actions(test_case, *subject, *state, outcome);
  if (!contexts.is_null()) outcome["contexts"] = contexts;
  return outcome;
}

// --- several devices ----------------------------------------------------------------------------

class Devices {
 public:
  Devices(const Dataset& dataset, std::vector<int> numbers, std::int64_t buffer)
      : numbers_(std::move(numbers)),
        iterator_(dataset.source({}), devices_of(numbers_), {.buffer_size = buffer}) {}

  Json run(const Json& command) {
    const auto verb = command.at(0).get<std::string>();
    if (verb == "round") return round();
    if (verb == "round_opt") return round_opt();
    if (verb == "device") return item(turn_of(command.at(1).get<int>()));
    throw CaseFault("unknown script command '" + verb + "'");
  }

 private:
  static std::vector<Device> devices_of(const std::vector<int>& numbers) {
    std::vector<Device> devices;
    for (const int number : numbers) devices.push_back({.type = "CPU", .index = number});
    return devices;
  }

  // The index of the first entry of `devices` with this device.
  std::size_t turn_of(int device) const {
    for (std::size_t i = 0; i < numbers_.size(); ++i) {
      if (numbers_[i] == device) return i;
    }
    throw CaseFault("no device " + std::to_string(device) + " in the case's devices");
  }

  Json item(std::size_t turn) {
    const std::optional<Nest> element = next(turn);
    return element ? json_of(*element) : Json("end");
  }

  std::optional<Nest> next(std::size_t turn) {
    const Fields* const fields = iterator_.front(turn);
    if (fields == nullptr) return std::nullopt;
    Nest element = iterator_.source().pack(*fields);
    iterator_.pop(turn);
    return element;
  }

  // Draws one element per device; the first end or error ends the round.
  Json round() {
    Json replicas = Json::array();
    for (std::size_t turn = 0; turn < numbers_.size(); ++turn) {
      Json element = item(turn);
      if (element == "end") return element;
      replicas.push_back(std::move(element));
    }
    return {{"replicas", std::move(replicas)}};
  }

  Json round_opt() {
    Json replicas = Json::array();
    for (std::size_t turn = 0; turn < numbers_.size(); ++turn) {
      std::optional<Nest> element = next(turn);
      replicas.push_back(json_of(element ? data::Optional::from_value(std::move(*element))
                                         : data::Optional::empty(iterator_.source().spec())));
    }
    return {{"replicas", std::move(replicas)}};
  }

  std::vector<int> numbers_;
  MultiDeviceIterator iterator_;
};

}  // namespace

Json run_distribute(const Json& test_case) {
  const auto files = std::make_shared<const CaseDirectory>(member_or(test_case, "files", Json()));
  const Json outcome = with_strategy(member(test_case, "strategy"), [&](Strategy& strategy) {
    return run_worker(test_case, strategy, std::make_shared<CaseState>(files));
  });
  return files->without_path(outcome);
}

Json run_multi_device(const Json& test_case) {
  const auto state = std::make_shared<CaseState>(member_or(test_case, "files", Json()));
  std::unique_ptr<Devices> devices;
  Json outcome = Json::object();
  try {
    const Dataset dataset = build_pipeline(member(test_case, "pipeline"), state);
    outcome["spec"] = json_of(dataset.element_spec());
    outcome["cardinality"] = dataset.cardinality();
    devices =
        std::make_unique<Devices>(dataset, member(test_case, "devices").get<std::vector<int>>(),
                                  member_or<std::int64_t>(test_case, "buffer", 1));
  } catch (...) {
    return {{"build_error", caught_error()}};
  }
  Json out = Json::array();
  for (const Json& command : member(test_case, "script")) {
    try {
      out.push_back(devices->run(command));
    } catch (...) {
      out.push_back(caught_error());
    }
  }
  outcome["out"] = std::move(out);
  return state->directory->without_path(outcome);
}

Json run_sizes(const Json& test_case) {
  const auto workers = member(test_case, "workers").get<std::int64_t>();
  Json sizes = Json::array();
  try {
    for (std::int64_t worker = 0; worker < workers; ++worker) {
      sizes.push_back(rebatch_sizes(member(test_case, "global_batch").get<std::int64_t>(), workers,
                                    member(test_case, "replicas").get<std::int64_t>(), worker));
    }
  } catch (...) {
    return error_outcome(test_case, caught_error());
  }
  return {{"sizes", std::move(sizes)}};
}

}  // namespace cohort::conformance
