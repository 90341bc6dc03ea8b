// SPDX-License-Identifier: Apache-2.0
// Steps that enter, leave and query contexts.
#include <type_traits>

#include "cohort/cluster/cluster_resolver.h"
#include "cohort/data/dataset_options.h"
#include "cohort/strategy/parameter_server_strategy.h"
#include "cohort/strategy/strategy_extended.h"
#include "cohort/strategy/synchronous_strategy.h"
#include "tests/conformance/strategy_steps.h"

namespace cohort::conformance::strategy {
namespace {

// --- enter and exit -----------------------------------------------------------------------------

template <class Scope>
class EnteredScope final : public OpenContext {
 public:
  template <class... A>
  explicit EnteredScope(A&&... arguments) : scope_(std::forward<A>(arguments)...) {}
  void exit() override {
    if constexpr (requires { scope_.exit(); }) scope_.exit();
  }

 private:
  Scope scope_;
};

// LibTorch has no device scopes.
class DeviceScope {};

std::unique_ptr<OpenContext> entered_context(const Step& step, const std::string& what) {
  if (what == "device") return std::make_unique<EnteredScope<DeviceScope>>();
  // A creator of tf chooses a device by a device scope.
  if (what == "creator" || what == "creator_device") {
    return std::make_unique<EnteredScope<VariableCreatorScope>>(
        [](VariableRequest request, const VariableCreatorScope::Next& next) {
          return next(std::move(request));
        });
  }
  if (what == "colocate") {
    return std::make_unique<EnteredScope<ColocationScope>>(step.strategy(), step.variable());
  }
  if (what == "sync_on_read") return std::make_unique<EnteredScope<SyncOnReadScope>>();
  if (what == "caching") return std::make_unique<EnteredScope<CacheVariableReadsScope>>();
  throw CaseFault("unknown context '" + what + "'");
}

Value enter(const Step& step) {
  const std::string what = step.text("what");
  const std::string name = what == "again" ? step.text("of") : step.text("as");
  if (what != "scope" && what != "again") {
    step.frame.enter(name, entered_context(step, what));
    return {};
  }
  // In TensorFlow one scope object is entered several times; here each entry is an object.
  std::map<std::string, std::string>& scopes = step.frame.scopes();
  if (what == "again" && !scopes.contains(name)) throw CaseFault("no scope '" + name + "'");
  const std::string strategy = what == "again" ? scopes[name] : step.text_or("strategy", "S");
  step.frame.enter(name,
                   std::make_unique<EnteredScope<StrategyScope>>(step.test.strategy(strategy)));
  scopes[name] = strategy;
  return {};
}

Value exit(const Step& step) {
  step.frame.exit(step.text("of"));
  return {};
}

Value set_current_strategy(const Step& step) {
  set_strategy(step.has("to") ? &step.test.strategy(step.text("to")) : nullptr);
  return {};
}

// --- queries ------------------------------------------------------------------------------------

Value probe(const Step& step) {
  const ReplicaContext* const replica = get_replica_context();
  Json state = {{"cross_replica", in_cross_replica_context()},
                {"strategy", step.test.name_of(get_strategy())},
                {"has_strategy", has_strategy()},
                {"replica_context", nullptr}};
  if (replica != nullptr) {
    state["replica_context"] = step.test.name_of(replica->strategy());
    state["replica_id"] = replica->replica_id_in_sync_group();
    state["num_replicas"] = replica->num_replicas_in_sync();
  }
  if (step.has("label")) step.test.emit(step.text("label"), step.frame, state);
  return Value::of_json(std::move(state));
}

Json property_of(Strategy& strategy, const std::string& name) {
  if (name == "num_replicas_in_sync") return strategy.num_replicas_in_sync();
  if (name == "worker_devices") return strategy.worker_devices();
  if (name == "parameter_devices") return strategy.parameter_devices();
  if (name == "cluster_resolver") {
    return strategy.cluster_resolver() == nullptr ? Json() : Json("present");
  }
  const auto* const workers = dynamic_cast<const SynchronousStrategy*>(&strategy);
  if (name == "worker_count") return workers->num_workers();
  if (name == "id_in_cluster") return workers->worker();
  if (name == "is_chief") return workers->worker() == 0;
  if (name == "in_multi_worker_mode") return strategy.extended().in_multi_worker_mode();
  if (name == "should_init") return strategy.extended().should_init();
  if (name == "should_checkpoint") return strategy.extended().should_checkpoint();
  if (name == "should_save_summary") return strategy.extended().should_save_summary();
  if (name == "between_graph") return strategy.extended().between_graph();
  throw CaseFault("unknown property '" + name + "'");
}

Value property(const Step& step) {
  return Value::of_json(property_of(step.strategy(), step.text("name")));
}

Value batch_size(const Step& step) {
  const auto number = [&](const char* key) { return member(step.json, key).get<std::int64_t>(); };
  const InputContext context{.num_input_pipelines = number("pipelines"),
                             .input_pipeline_id = number("id"),
                             .num_replicas_in_sync = number("replicas")};
  return Value::of_json(context.get_per_replica_batch_size(number("global")));
}

// --- objects of contexts and strategies ---------------------------------------------------------

Value capture_context(const Step& step) {
  step.test.keep_context(step.text("as_global"), current_replica());
  return {};
}

Value call_on_context(const Step& step) {
  const ReplicaContext context = step.test.kept_context(step.text("ctx"));
  const std::string method = step.text("method");
  if (method == "merge_call") {
    context.merge_call([](Strategy&) {});
    return {};
  }
  const Nest nest = nest_of(with_values(step.test, step.value("value")));
  if (method == "all_reduce")
    return value_of(context.all_reduce(ReduceOpOrName(step.text_or("op", "SUM")), nest));
  if (method == "all_gather") {
    return value_of(context.all_gather(nest, member_or<std::int64_t>(step.json, "axis", 0)));
  }
  throw CaseFault("unknown method '" + method + "' of a replica context");
}

// Only the library can make a default strategy: its class has no name outside.
static_assert(std::is_abstract_v<Strategy>);
Value new_default_strategy(const Step&) {
  throw Error(ErrorCode::failed_precondition,
              "[conformance] C++ does not compile this: a second default strategy");
}

static_assert(!std::is_copy_constructible_v<MirroredStrategy> &&
              !std::is_copy_constructible_v<OneDeviceStrategy> &&
              !std::is_copy_constructible_v<CentralStorageStrategy>);
Value copy_strategy(const Step& step) {
  // A StrategyExtended is made for the strategy on which extended() is called, so it belongs to
  // that strategy; there is no copy to which it could belong.
  if (member_or(step.json, "deep", false)) return Value::of_json(true);
  throw Error(ErrorCode::failed_precondition,
              "[conformance] C++ does not compile this: a copy of a strategy");
}

Value make_strategy(const Step& step) {
  const std::string name = step.text_or("name", "unnamed strategy");
  step.test.add_strategy(name, member(step.json, "spec"));
  return {};
}

}  // namespace

const StepTable& context_steps() {
  static const StepTable table = {
      {"enter", {enter, {"what", "strategy", "of", "device", "var"}, false}},
      {"exit", {exit, {"of"}, false}},
      {"set_strategy", {set_current_strategy, {"to"}}},
      {"probe", {probe, {"label"}}},
      {"prop", {property, {"name", "strategy"}}},
      {"batch_size", {batch_size, {"pipelines", "id", "replicas", "global"}}},
      {"capture_ctx", {capture_context, {"as_global"}}},
      {"ctx_call", {call_on_context, {"ctx", "method", "value", "op", "axis"}}},
      {"new_default", {new_default_strategy, {}}},
      {"copy_strategy", {copy_strategy, {"deep", "strategy"}}},
      {"strategy", {make_strategy, {"spec", "name"}}},
  };
  return table;
}

}  // namespace cohort::conformance::strategy
