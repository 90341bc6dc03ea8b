// SPDX-License-Identifier: Apache-2.0
// Steps with a coordinator: functions, scheduled closures and their results, data of the workers.
#include <ATen/ops/full.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <limits>
#include <set>
#include <type_traits>
#include <utility>

#include "cohort/coordinator/cluster_coordinator.h"
#include "cohort/core/clock.h"
#include "cohort/core/error.h"
#include "cohort/data/dataset.h"
#include "cohort/function/inspection.h"
#include "tests/conformance/strategy_steps.h"
#include "tests/conformance/strategy_tensors.h"

namespace cohort::conformance::strategy {
namespace {

// The library has no such calls, which TensorFlow refuses when it runs.
static_assert(!std::is_constructible_v<ClusterCoordinator, MirroredStrategy&>);
static_assert(!std::is_convertible_v<int (*)(), Function>);
template <class T>
concept HasNext = requires(T value) {
  value.get_next();
};
static_assert(HasNext<Iterator> && !HasNext<PerWorkerIterator>);

class DatasetLeaf final : public Handle {
 public:
  explicit DatasetLeaf(PerWorkerDataset dataset) : dataset_(std::move(dataset)) {}
  std::string_view handle_kind() const override { return "per-worker dataset"; }
  const PerWorkerDataset& dataset() const { return dataset_; }

 private:
  PerWorkerDataset dataset_;
};

// A function that a step `def_fn` has defined.
struct Definition {
  Json json;
  std::map<std::size_t, Function> by_arity = {};
  std::uint64_t traces = 0;
};

struct Coordination {
  std::optional<ClusterCoordinator> coordinator;
  std::map<std::string, Definition> definitions;
  std::uint64_t dataset_calls = 0;
};

ParameterServerStrategy& server_strategy(const Step& step) {
  auto* const strategy = dynamic_cast<ParameterServerStrategy*>(&step.strategy());
  if (strategy == nullptr) refuse_type("a coordinator of this strategy");
  return *strategy;
}

ClusterCoordinator& coordinator_of(const Step& step) {
  std::optional<ClusterCoordinator>& made = step.test.kept<Coordination>().coordinator;
  if (!made) made.emplace(server_strategy(step));
  return *made;
}

Value coordinator(const Step& step) {
  coordinator_of(step);
  return {};
}

Value is_same_coordinator(const Step& step) {
  return Value::of_json(ClusterCoordinator(server_strategy(step)) == coordinator_of(step));
}

Value make_coordinator_for(const Step& step) {
  const ClusterCoordinator made(server_strategy(step));
  return {};
}

// --- functions ----------------------------------------------------------------------------------

Value define(const Step& step) {
  const auto name = step.text("name");
  step.test.keep_constants(step.json);
  step.test.kept<Coordination>().definitions.insert_or_assign(name, Definition{step.json});
  return {};
}

template <std::size_t>
using Argument = Nest;

template <std::size_t... I>
Function function_with(std::index_sequence<I...>, StrategyCase& test, Frame& outer,
                       const Json& json) {
  return Function(
      [&test, &outer, json](const Argument<I>&... given) -> Nest {
        Value arguments;
        arguments.kind = Value::Kind::map;
        arguments.entries["args"] = Value::of_items(Value::Kind::list, {value_of(given)...});
        arguments.entries["kwargs"].kind = Value::Kind::map;
        Frame frame(&outer);
        const Value result = call_function({test, outer, json}, frame, arguments);
        return nest_of(compiled_result(test, with_values(test, result)));
      },
      {.name = json["name"].get<std::string>()});
}

constexpr std::size_t kMostArguments = 6;

Function function_of(StrategyCase& test, Frame& top, const Json& json, std::size_t arity) {
  std::optional<Function> made;
  const auto dispatch = [&]<std::size_t... Count>(std::index_sequence<Count...>) {
    ((arity == Count &&
      (made.emplace(function_with(std::make_index_sequence<Count>{}, test, top, json)), true)) ||
     ...);
  };
  dispatch(std::make_index_sequence<kMostArguments + 1>{});
  if (!made) throw CaseFault("a function with too many arguments");
  return *made;
}

Definition& definition_of(const Step& step) {
  if (!step.has("fn")) refuse_type("nothing as a function");
  auto& definitions = step.test.kept<Coordination>().definitions;
  const auto found = definitions.find(step.text("fn"));
  if (found == definitions.end()) throw CaseFault("no function '" + step.text("fn") + "'");
  if (member_or(found->second.json, "plain", false)) refuse_type("a callable as a Function");
  return found->second;
}

Value schedule_once(const Step& step) {
  Definition& definition = definition_of(step);
  std::vector<Nest> arguments;
  for (const Json& argument : member_or(step.json, "args", Json::array()))
    arguments.push_back(nest_of(evaluate(step.test, step.frame, argument)));
  auto known = definition.by_arity.find(arguments.size());
  if (known == definition.by_arity.end()) {
    known = definition.by_arity
                .emplace(arguments.size(), function_of(step.test, step.frame.top(), definition.json,
                                                       arguments.size()))
                .first;
  }
  ClusterCoordinator& coordinator = coordinator_of(step);
  const std::uint64_t before = coordinator.statistics().traces;
  const RemoteValue result = coordinator.schedule_nests(known->second, std::move(arguments));
  definition.traces += coordinator.statistics().traces - before;
  return Value::of(Nest(result));
}

Value schedule(const Step& step) {
  if (!step.has("times")) return schedule_once(step);
  std::vector<Value> results;
  for (int i = 0; i < step.json["times"].get<int>(); ++i) results.push_back(schedule_once(step));
  return Value::of_items(Value::Kind::list, std::move(results));
}

constexpr double kErrorLimitSeconds = 30;
constexpr auto kSchedulePause = std::chrono::milliseconds(10);

Value schedule_until_error(const Step& step) {
  const Deadline deadline = Deadline::after(seconds_in(step.json, "limit_s", kErrorLimitSeconds));
  while (!deadline.has_expired()) {
    schedule_once(step);
    pause(kSchedulePause);
  }
  return {};
}

Value traces(const Step& step) { return Value::of_json(definition_of(step).traces); }

// --- in functions -------------------------------------------------------------------------------

Value raise_op(const Step&) {
  check_finite(at::full({}, std::numeric_limits<double>::quiet_NaN()), "raise_op");
  return {};
}

Value spin_until(const Step& step) {
  step.variable("flag").wait_until_positive();
  return {};
}

// --- results ------------------------------------------------------------------------------------

Value join(const Step& step) {
  coordinator_of(step).join();
  return {};
}

Value done(const Step& step) { return Value::of_json(coordinator_of(step).done()); }

Value fetched(const Step& step, const char* key) {
  return value_of(coordinator_of(step).fetch(nest_of(step.value(key))));
}

Value fetch(const Step& step) { return fetched(step, "value"); }

Value get(const Step& step) {
  return value_of(coordinator_of(step).fetch(nest_of(step.frame.find(step.text("of")))));
}

Value are_all_in(const Step& step) {
  bool are_in = true;
  map_leaves(fetched(step, "value"), [&](const Value& leaf) {
    const double number = tensor_from(step.test, leaf).item<double>();
    const Json& set = member(step.json, "set");
    are_in = are_in && std::any_of(set.begin(), set.end(),
                                   [&](const Json& each) { return each.get<double>() == number; });
    return leaf;
  });
  return Value::of_json(are_in);
}

// --- data of the workers ------------------------------------------------------------------------

Dataset source_of(const Json& spec) {
  if (spec.contains("tensor"))
    return Dataset::from_tensors(Nest(read_tensor(member(spec, "tensor"))));
  const auto bounds = member(spec, "range").get<std::vector<std::int64_t>>();
  if (bounds.size() == 1) return Dataset::range(bounds[0]);
  return Dataset::range(bounds.at(1), {.start = bounds[0]});
}

// The dataset that `spec` describes, of the worker with this context; without one, of all workers.
Dataset dataset_in(const Json& spec, const InputContext* worker) {
  static const std::set<std::string> known = {"range",           "tensor", "map_add", "repeat",
                                              "shard_by_worker", "sum",    "cast"};
  for (const auto& [name, value] : spec.items()) {
    if (!known.contains(name)) throw CaseFault("unknown field '" + name + "' of a dataset");
  }
  Dataset dataset = source_of(spec);
  if (spec.contains("map_add")) {
    const auto addend = spec["map_add"].get<std::int64_t>();
    dataset = dataset.map([addend](at::Tensor x) { return x.add(addend); });
  }
  if (spec.value("shard_by_worker", false)) {
    if (worker == nullptr) throw CaseFault("a dataset of all workers cannot be sharded by worker");
    dataset = dataset.shard(*worker);
  }
  if (spec.value("sum", false)) {
    constexpr std::int64_t kMostElements = 1 << 20;
    dataset = dataset.batch(kMostElements).map([](at::Tensor x) { return x.sum(0); });
  }
  if (spec.contains("cast")) {
    const at::ScalarType dtype = scalar_type_of(spec["cast"]);
    dataset = dataset.map([dtype](at::Tensor x) { return x.to(dtype); });
  }
  return spec.contains("repeat") ? dataset.repeat(spec["repeat"].get<std::int64_t>()) : dataset;
}

Value per_worker_dataset(const Step& step) {
  const Json& spec = member(step.json, "dataset");
  ClusterCoordinator& coordinator = coordinator_of(step);
  const auto leaf = [](PerWorkerDataset dataset) {
    return Value::of(
        Nest(std::shared_ptr<Handle>(std::make_shared<DatasetLeaf>(std::move(dataset)))));
  };
  if (member_or(step.json, "instance", false))
    return leaf(coordinator.create_per_worker_dataset(dataset_in(spec, nullptr)));
  Coordination& state = step.test.kept<Coordination>();
  return leaf(coordinator.create_per_worker_dataset([&](const InputContext& worker) {
    if (worker.input_pipeline_id == 0) ++state.dataset_calls;
    if (member_or(step.json, "var_in_fn", false))
      server_strategy(step).variable("variable_in_a_dataset_function", at::zeros({}));
    return dataset_in(spec, &worker);
  }));
}

// TensorFlow traces the function once for all workers. The library calls it once for each of them.
Value dataset_traces(const Step& step) {
  return Value::of_json(step.test.kept<Coordination>().dataset_calls);
}

const PerWorkerDataset& dataset_of(const Step& step) {
  const Value found = step.frame.find(step.text("of"));
  const DatasetLeaf* const leaf = found.leaf.kind() == Nest::Kind::handle
                                      ? dynamic_cast<const DatasetLeaf*>(found.leaf.handle().get())
                                      : nullptr;
  if (leaf == nullptr) throw CaseFault("'" + step.text("of") + "' is no dataset of the workers");
  return leaf->dataset();
}

Value iterate(const Step& step) {
  const PerWorkerDataset& dataset = dataset_of(step);
  if (!member_or(step.json, "in_function", false)) return Value::of(Nest(dataset.iterator()));
  const Function fn([&] { dataset.iterator(); });
  coordinator_of(step).schedule(fn);
  return {};
}

// As asserted above, the library has no such call.
Value next_on(const Step&) {
  throw Error(ErrorCode::unimplemented,
              "[conformance] C++ does not compile this: the next element of iterators on workers");
}

// An iterator over a file that the workers may not open.
Value broken_resource(const Step& step) {
  const std::string path = step.test.path_of("refused.idx");
  // Two images of one pixel.
  const std::string bytes("\0\0\x08\x03\0\0\0\2\0\0\0\1\0\0\0\1\1\2", 18);
  std::ofstream(path, std::ios::binary) << bytes;
  const Dataset dataset = Dataset::idx({.images = path});
  return Value::of(Nest(coordinator_of(step).create_per_worker_dataset(dataset).iterator()));
}

}  // namespace

const StepTable& coordinator_steps() {
  static const StepTable table = {
      {"coordinator", {coordinator, {"strategy"}}},
      {"same_coordinator", {is_same_coordinator, {"strategy"}}},
      {"make_coordinator_for", {make_coordinator_for, {"strategy"}}},
      {"def_fn", {define, {"name", "body", "return", "plain"}}},
      {"schedule", {schedule, {"fn", "args", "times"}}},
      {"schedule_until_error", {schedule_until_error, {"fn", "args", "limit_s"}}},
      {"traces", {traces, {"fn"}}},
      {"raise_op", {raise_op, {}}},
      {"spin_until", {spin_until, {"flag"}}},
      {"join", {join, {}}},
      {"done", {done, {}}},
      {"fetch", {fetch, {"value"}}},
      {"get", {get, {"of"}}},
      {"fetch_all_in", {are_all_in, {"value", "set"}}},
      {"per_worker_dataset",
       {per_worker_dataset, {"dataset", "instance", "compiled", "captured", "var_in_fn"}}},
      {"dataset_traces", {dataset_traces, {}}},
      {"iter", {iterate, {"of", "in_function"}}},
      {"next_on", {next_on, {"of"}}},
      {"resource_closure_error", {broken_resource, {}}},
  };
  return table;
}

}  // namespace cohort::conformance::strategy
