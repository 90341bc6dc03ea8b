// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/distribution.h"

#include <exception>
#include <thread>

#include "cohort/collective/group.h"
#include "cohort/core/error.h"
#include "cohort/strategy/synchronous_strategy.h"
#include "cohort/testing/cpu_devices.h"
#include "tests/conformance/script.h"
#include "tests/conformance/values.h"

namespace cohort::conformance {
namespace {

using ReplicaFunction = std::function<Nest(const Nest&)>;

// Shorter than the deadline of a case, so that the error names the worker that did not answer.
constexpr auto kWorkerTimeout = std::chrono::seconds(20);

std::vector<std::string> devices_of(const Json& strategy) {
  return testing::cpu_devices(member_or(strategy, "replicas", 1));
}

Json with_workers(const Json& json, const std::function<Json(Strategy&)>& work) {
  const auto count = member(json, "workers").get<int>();
  const InProcessWorkers workers(count);
  std::vector<Json> outcomes(static_cast<std::size_t>(count));
  std::vector<std::exception_ptr> faults(outcomes.size());
  std::vector<std::thread> threads;
  for (int worker = 0; worker < count; ++worker) {
    threads.emplace_back([&, worker] {
      const auto at = static_cast<std::size_t>(worker);
      try {
        MultiWorkerMirroredStrategy strategy(
            workers.group(worker), {.devices = devices_of(json), .timeout = kWorkerTimeout});
        outcomes[at] = work(strategy);
      } catch (...) {
        faults[at] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& fault : faults) {
    if (fault) std::rethrow_exception(fault);
  }
  return {{"workers", std::move(outcomes)}};
}

// Replaces each leaf by {"replicas": [spec, spec]}.
Json json_of_leaves(const Json& spec, std::size_t replicas) {
  if (is_leaf_spec(spec)) return {{"replicas", Json(std::vector<Json>(replicas, spec))}};
  Json result = spec;
  for (Json& part : result) part = json_of_leaves(part, replicas);
  return result;
}

Json distributed_json(const DistributedSpec& spec) {
  const Json component = json_of(spec.component);
  return spec.is_wrapped ? json_of_leaves(component, spec.num_components) : component;
}

class DistributedStream final : public Stream {
 public:
  DistributedStream(Strategy& strategy, DistributedIterator iterator, ReplicaFunction replica_fn)
      : strategy_(strategy), iterator_(std::move(iterator)), replica_fn_(std::move(replica_fn)) {}

  std::optional<Json> next() override {
    std::optional<DistributedElement> element = iterator_.try_next();
    if (!element) return std::nullopt;
    return shown(*element);
  }

  Json next_optional() override {
    const DistributedOptional step = iterator_.get_next_as_optional();
    if (step.has_value()) return {{"optional", shown(step.get_value())}};
    try {
      return {{"optional", nullptr}, {"get_value", shown(step.get_value())}};
    } catch (...) {
      return {{"optional", nullptr}, {"get_value", caught_error()}};
    }
  }

  Bytes save() const override { return iterator_.save(); }
  void restore(const Bytes& position) override { iterator_.restore(position); }

  Json next_in_replica() override {
    strategy_.run([&] { iterator_.get_next(); });
    return nullptr;
  }

 private:
  Json shown(const DistributedElement& element) {
    if (!replica_fn_) return json_of(element);
    return json_of(strategy_.run(replica_fn_, element));
  }

  Strategy& strategy_;
  DistributedIterator iterator_;
  ReplicaFunction replica_fn_;
};

class DistributedSubject final : public Subject {
 public:
  DistributedSubject(Strategy& strategy, DistributedDataset dataset, ReplicaFunction replica_fn)
      : strategy_(strategy), dataset_(std::move(dataset)), replica_fn_(std::move(replica_fn)) {}

  void describe(Json& outcome) const override {
    outcome["spec"] = distributed_json(dataset_.element_spec());
    outcome["cardinality"] = dataset_.cardinality();
    outcome["partial_handling"] = dataset_.handles_partial_batches();
  }

  std::unique_ptr<Stream> iterate() const override {
    return std::make_unique<DistributedStream>(strategy_, dataset_.iterator(), replica_fn_);
  }

  Json reduce_sum() const override {
    const auto sum =
        dataset_.reduce(std::int64_t{0}, [](std::int64_t state, const DistributedElement& element) {
          for (const Json& scalar : scalars_of(json_of(element))) {
            state += scalar.get<std::int64_t>();
          }
          return state;
        });
    return Json::array({"int64", Json::array(), sum});
  }

 private:
  Strategy& strategy_;
  DistributedDataset dataset_;
  ReplicaFunction replica_fn_;
};

}  // namespace

Json with_strategy(const Json& json, const std::function<Json(Strategy&)>& work) {
  const auto type = member(json, "type").get<std::string>();
  if (type == "multi_worker") return with_workers(json, work);
  if (type == "default") return work(default_strategy());
  if (type == "one_device") {
    OneDeviceStrategy strategy;
    return work(strategy);
  }
  if (type != "mirrored") throw CaseFault("unknown strategy '" + type + "'");
  MirroredStrategy strategy(devices_of(json));
  return work(strategy);
}

InputOptions input_options_of(const Json& json) {
  InputOptions options;
  for (const auto& [key, value] : json.items()) {
    if (value.is_null()) continue;
    if (key == "fetch_to_device") {
      options.fetch_to_device = value.get<bool>();
    } else if (key == "place_dataset_on_device") {
      options.place_dataset_on_device = value.get<bool>();
    } else if (key == "per_replica_buffer_size") {
      options.per_replica_buffer_size = value.get<std::int64_t>();
    } else if (key == "replication_mode" && value == "PER_REPLICA") {
      options.replication_mode = ReplicationMode::per_replica;
    } else if (key != "replication_mode" || value != "PER_WORKER") {
      throw CaseFault("unknown input option '" + key + "': " + value.dump());
    }
  }
  return options;
}

std::unique_ptr<Subject> subject_of(Strategy& strategy, DistributedDataset dataset,
                                    ReplicaFunction replica_fn) {
  return std::make_unique<DistributedSubject>(strategy, std::move(dataset), std::move(replica_fn));
}

Json json_of(const PerReplica<Nest>& value) {
  if (!value.is_wrapped()) return json_of(value.value());
  Json replicas = Json::array();
  for (const Nest& component : value.local_results()) replicas.push_back(json_of(component));
  return {{"replicas", std::move(replicas)}};
}

}  // namespace cohort::conformance
