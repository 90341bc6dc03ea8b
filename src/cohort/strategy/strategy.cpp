// SPDX-License-Identifier: Apache-2.0
#include "cohort/strategy/strategy.h"

#include <deque>
#include <exception>

#include "cohort/core/thread_value.h"
#include "cohort/function/autocast.h"
#include "cohort/function/trace.h"
#include "cohort/input/input_host.h"
#include "cohort/replicas/compute_share.h"
#include "cohort/replicas/merge_scope.h"
#include "cohort/replicas/replica_random.h"
#include "cohort/replicas/replica_run.h"
#include "cohort/replicas/replica_threads.h"
#include "cohort/replicas/run_error.h"
#include "cohort/strategy/backward_context.h"
#include "cohort/strategy/contexts.h"
#include "cohort/strategy/replica_trace.h"
#include "cohort/strategy/strategy_access.h"
#include "cohort/strategy/strategy_extended.h"
#include "cohort/strategy/strategy_parts.h"
#include "cohort/strategy/variable_creators.h"
#include "cohort/variable/replica_count.h"

namespace cohort {
namespace {

struct Mode {
  Strategy* strategy;
  ReplicaContext* replica;   // nullptr: cross-replica
  std::size_t creators = 0;  // the number of VariableCreatorScopes around it
};

class DefaultStrategy final : public Strategy {
 public:
  std::string_view name() const override { return "default"; }
  int num_replicas_in_sync() const override { return 1; }
  std::vector<std::string> worker_devices() const override { refuse_devices("worker_devices"); }
  std::vector<std::string> parameter_devices() const override {
    refuse_devices("parameter_devices");
  }

 protected:
  void run_replicas(const std::function<void(ReplicaContext&)>& body) override {
    internal::in_replica_context(*this, 0, body);
  }
  std::shared_ptr<const input::InputHost> input_host() override {
    static const auto host = std::make_shared<const input::InputHost>(input::InputHost{
        .passes_through = true, .handles_partial_batches = false, .wraps_values = false});
    return host;
  }
  internal::StrategyTraits traits() const override { return {.is_between_graph = std::nullopt}; }

 private:
  [[noreturn]] static void refuse_devices(std::string_view method) {
    internal::throw_error(ErrorCode::failed_precondition, "[strategy.", method,
                          "] expected a strategy with devices, got 'default'; enter the scope of "
                          "one, or make a OneDeviceStrategy");
  }
};

ReplicaContext& default_replica() {
  static ReplicaContext context =
      internal::StrategyAccess::context(default_strategy(), 0, 0, nullptr);
  return context;
}

std::vector<Mode>& mode_stack() {
  return internal::ThreadValue<std::vector<Mode>, struct ModeStack>::get();
}
thread_local Strategy* strategy_set = nullptr;  // current while the stack is empty
thread_local int updated = -1;                  // the component that an update() changes here
thread_local int default_scopes = 0;  // open scopes of the default strategy; outside all others

Mode current_mode() {
  const std::vector<Mode>& modes = mode_stack();
  if (!modes.empty()) return modes.back();
  if (ReplicaContext* const replica = internal::context_of_backward())
    return {&replica->strategy(), replica};
  if (strategy_set != nullptr) return {strategy_set, nullptr};
  return {&default_strategy(), &default_replica()};
}

// Pushes a mode, and pops it when it is destroyed.
class PushedMode {
 public:
  PushedMode(Strategy* strategy, ReplicaContext* replica)
      : count_(replica == nullptr ? 1 : strategy->num_replicas_in_sync(),
               replica == nullptr ? 0 : replica->local_replica_id()) {
    mode_stack().push_back({strategy, replica, internal::variable_creators().size()});
    if (replica == nullptr && internal::context_of_backward() != nullptr)
      no_backward_.emplace(replica);
  }
  ~PushedMode() { mode_stack().pop_back(); }

 private:
  const variable::ReplicaCount count_;
  std::optional<internal::BackwardContextScope> no_backward_;  // outside of replicas
};

// Forgets the weights that autocast has converted on this thread, at both ends of a replica's run.
// Autocast itself does so when the thread's outermost guard ends. If that guard is around several
// runs, it would compute with weights of the first run on the caller's thread; and on the threads
// of other replicas no guard ends.
class AutocastCacheScope {
 public:
  AutocastCacheScope() { forget(); }
  ~AutocastCacheScope() { forget(); }
  AutocastCacheScope(const AutocastCacheScope&) = delete;
  AutocastCacheScope& operator=(const AutocastCacheScope&) = delete;

 private:
  static void forget() {
    // A trace records each conversion, and ends with its guard.
    const bool is_enabled = function::is_autocast_enabled() || function::is_gpu_autocast_enabled();
    if (is_enabled && function::Trace::current() == nullptr) at::autocast::clear_cache();
  }
};

// The contexts of the replicas that run on this thread, one inside the other. The places are used
// again, so that a pointer to a context that has ended still points to one.
std::deque<ReplicaContext>& contexts_of_thread() {
  return internal::ThreadValue<std::deque<ReplicaContext>, struct ReplicaContexts>::get();
}
thread_local std::size_t replica_depth = 0;

// Runs body in a context, on this thread.
void run_in(const ReplicaContext& context, const std::function<void(ReplicaContext&)>& body) {
  std::deque<ReplicaContext>& replica_contexts = contexts_of_thread();
  if (replica_contexts.size() == replica_depth) {
    replica_contexts.push_back(context);
  } else {
    replica_contexts[replica_depth] = context;
  }
  ReplicaContext& place = replica_contexts[replica_depth];
  const internal::ScopedValue depth(replica_depth, replica_depth + 1);
  const AutocastCacheScope autocast;
  const PushedMode pushed(&place.strategy(), &place);
  internal::call_watched([&] { body(place); });
}

[[noreturn]] void refuse_mixing(std::string_view what, std::string_view wanted,
                                const Strategy& current, const internal::MadeBy& used = {}) {
  std::string made, remedy = "; leave its scope first";
  if (!used.kind.empty())
    made = ", which has made " + std::string(used.kind) + " '" + std::string(used.name) + "',";
  if (&current == strategy_set && mode_stack().empty()) remedy = "; call set_strategy(nullptr)";
  const bool is_in_run = replica_depth > 0 || internal::context_of_backward() != nullptr;
  if (is_in_run && &current != &default_strategy()) {
    remedy = made.empty() ? " in its run(); call it outside of that"
                          : " in its run(); use there only what its own strategy has made";
  }
  internal::throw_error(ErrorCode::failed_precondition, "[strategy.", what,
                        "] mixing strategies: expected '", wanted, "'", made,
                        " or none to be current, got ", wanted == current.name() ? "another " : "",
                        "'", current.name(), "'", remedy);
}

}  // namespace

StrategyScope::StrategyScope(Strategy& strategy)
    : strategy_(strategy), has_pushed_(&strategy != &default_strategy()) {
  const Mode mode = current_mode();
  const bool is_default = mode.strategy == &default_strategy();
  if (!has_pushed_) {
    COHORT_CHECK(mode_stack().empty() && is_default, ErrorCode::failed_precondition,
                 "[strategy.scope] mixing strategies: the default strategy's scope cannot be "
                 "entered inside that of '",
                 mode.strategy->name(), "'");
    ++default_scopes;
    return;
  }
  if (mode.strategy != &strategy && !is_default)
    refuse_mixing("scope", strategy.name(), *mode.strategy);
  COHORT_CHECK(mode.replica == nullptr || is_default, ErrorCode::failed_precondition,
               "[strategy.scope] '", strategy.name(),
               "' is in a replica context; its scope needs cross-replica context: use merge_call");
  mode_stack().push_back({&strategy, nullptr, internal::variable_creators().size()});
}

StrategyScope::~StrategyScope() {
  if (is_open_) leave();
}

void StrategyScope::exit() {
  if (!is_open_) return;
  const Mode mode = current_mode();
  COHORT_CHECK(!has_pushed_ || (mode.strategy == &strategy_ && mode.replica == nullptr),
               ErrorCode::failed_precondition, "[strategy.scope] expected the scope of '",
               strategy_.name(), "' to be the innermost context, got one of '",
               mode.strategy->name(), "'; leave that first");
  COHORT_CHECK(!has_pushed_ || internal::variable_creators().size() <= mode.creators,
               ErrorCode::failed_precondition, "[strategy.scope] cannot leave the scope of '",
               strategy_.name(),
               "' while a variable creator scope that was opened inside is open; leave that first");
  leave();
}

void StrategyScope::leave() {
  is_open_ = false;
  if (has_pushed_) {
    mode_stack().pop_back();
  } else {
    --default_scopes;
  }
}

ReplicaContext::ReplicaContext(Strategy& strategy, int replica_id, int local_replica_id,
                               internal::ReplicaRun* run)
    : strategy_(&strategy),
      replica_id_(replica_id),
      local_replica_id_(local_replica_id),
      run_(run) {
  static std::atomic<std::uint64_t> last_serial{0};
  serial_ = ++last_serial;
}

int ReplicaContext::num_replicas_in_sync() const { return strategy_->num_replicas_in_sync(); }

// Only compares the strategies: if this context is not current, its own may have been destroyed.
void ReplicaContext::check_is_current(std::string_view call) const {
  const Mode mode = current_mode();
  COHORT_CHECK(mode.replica != nullptr, ErrorCode::failed_precondition, "[strategy.", call,
               "] expected a replica context, got cross-replica context of '",
               mode.strategy->name(), "'; call it inside run(), and outside of merge_call()");
  COHORT_CHECK(mode.strategy == strategy_, ErrorCode::failed_precondition, "[strategy.", call,
               "] expected a context of the current strategy '", mode.strategy->name(),
               "', got one of another strategy, whose run may have ended; take the current one "
               "from get_replica_context()");
  COHORT_CHECK(mode.replica->serial_ == serial_, ErrorCode::failed_precondition, "[strategy.", call,
               "] expected the context of this replica, got another replica context of '",
               mode.strategy->name(),
               "', whose run may have ended; take the current one from get_replica_context()");
}

std::shared_ptr<const void> ReplicaContext::meet(const internal::MergeOffer& offer,
                                                 const internal::Merge& merge) const {
  const std::string_view call = offer.call;
  check_is_current(call);
  COHORT_CHECK(internal::ReplicaTrace::current() == nullptr, ErrorCode::unimplemented, "[strategy.",
               call, "] expected a step that a trace can record, got ", call,
               "() in one of function(), whose code for all replicas would run only once, in the "
               "trace; use all_reduce(), all_gather() or a variable with an aggregation, or call "
               "run() in place of function()");
  const auto in_cross_replica = [&](const std::vector<const void*>& arguments) {
    const PushedMode cross(strategy_, nullptr);
    internal::MergeScope writes;
    std::shared_ptr<const void> result = merge(arguments);
    writes.complete();
    return result;
  };
  if (run_ == nullptr) return in_cross_replica({offer.arguments});
  const auto with_all_threads = [&](const std::vector<const void*>& arguments) {
    const internal::ComputeShare::OfThread all(run_->threads());
    return in_cross_replica(arguments);
  };
  return run_->meet(local_replica_id_, offer, with_all_threads);
}

Variable Strategy::variable(std::string variable, const at::Tensor& initial_value,
                            const VariableOptions& options) {
  COHORT_CHECK(initial_value.defined(), ErrorCode::invalid_argument,
               "[strategy.variable] expected an initial value, got an undefined tensor (variable '",
               variable, "')");
  return create({.name = std::move(variable), .initial_value = initial_value, .options = options});
}

Variable Strategy::variable(std::string variable, const TensorSpec& spec,
                            const Initializer& initializer, const VariableOptions& options) {
  return create(
      {.name = std::move(variable), .spec = spec, .initializer = initializer, .options = options});
}

Variable Strategy::create(VariableRequest wanted) {
  return internal::created(std::move(wanted), [this](VariableRequest request) {
    internal::StrategyVariables& home =
        variables_for("variable", "variable '" + request.name + "'");
    if (request.initial_value.defined())
      return home.create(std::move(request.name), request.initial_value, request.options);
    COHORT_CHECK(request.initializer.has_value(), ErrorCode::invalid_argument,
                 "[strategy.variable] expected an initial value or an initializer of variable '",
                 request.name, "', got none");
    return home.create(std::move(request.name), request.spec, *request.initializer,
                       request.options);
  });
}

Strategy& get_strategy() { return *current_mode().strategy; }
bool has_strategy() { return current_mode().strategy != &default_strategy(); }
bool in_cross_replica_context() { return current_mode().replica == nullptr; }
ReplicaContext* get_replica_context() { return current_mode().replica; }

void set_strategy(Strategy* strategy) {
  COHORT_CHECK(
      mode_stack().empty(), ErrorCode::failed_precondition,
      "[strategy.set_strategy] expected no scope and no replica on this thread, got one of '",
      get_strategy().name(), "'; leave its scope first");
  strategy_set = strategy == &default_strategy() ? nullptr : strategy;
}

Strategy& default_strategy() {
  static DefaultStrategy strategy;
  return strategy;
}

namespace internal {

void check_can_run(const Strategy& strategy, std::string_view call) {
  const Mode mode = current_mode();
  const bool is_default = mode.strategy == &default_strategy();
  if (mode.strategy != &strategy && !is_default)
    refuse_mixing(call, strategy.name(), *mode.strategy);
  COHORT_CHECK(mode.replica == nullptr || is_default, ErrorCode::failed_precondition, "[strategy.",
               call, "] ", call, "() of '", strategy.name(),
               "' inside one of its replicas: use merge_call");
}

void in_replica_context(Strategy& strategy, int replica_id,
                        const std::function<void(ReplicaContext&)>& body, int local_replica_id) {
  check_can_run(strategy, "run");
  if (&strategy == &default_strategy()) return body(default_replica());
  run_in(StrategyAccess::context(strategy, replica_id, local_replica_id, nullptr), body);
}

void in_replica_contexts(Strategy& strategy, ReplicaThreads& threads, int first, int count,
                         const std::function<void(ReplicaContext&)>& body) {
  if (count == 1) {
    try {
      if (strategy.num_replicas_in_sync() == 1) return in_replica_context(strategy, first, body);
      RunSeed seed;  // the replicas of other workers draw other numbers
      return in_replica_context(strategy, first, [&](ReplicaContext& replica) {
        const ReplicaRandomScope random(seed, first);
        body(replica);
      });
    } catch (...) {
      rethrow_of_only_replica(first);
    }
  }
  check_can_run(strategy, "run");
  COHORT_CHECK(function::Trace::current() == nullptr, ErrorCode::unimplemented,
               "[strategy.run] expected a run outside a traced step, got one of ", count,
               " replicas inside it");
  ReplicaRun run(count, first);
  RunSeed seed;
  const int threads_of_each = ComputeShare::of_replica(count);
  const ComputeShare share(threads_of_each);
  const int default_scopes_here = default_scopes;
  const VariableCreators creators_here = variable_creators();
  threads.run(count, [&](int replica) {
    std::exception_ptr error;
    try {
      const ScopedValue scopes(default_scopes, default_scopes_here);
      const ScopedValue creators(variable_creators(), creators_here);
      const ReplicaRandomScope random(seed, first + replica);
      const ComputeShare::OfThread threads_here(threads_of_each);
      run_in(StrategyAccess::context(strategy, first + replica, replica, &run), body);
    } catch (...) {
      error = error_of_replica(std::current_exception());
    }
    run.end(replica, std::move(error));
  });
  run.rethrow_error();
}

int updated_component() { return updated; }

void in_update(Strategy& strategy, int component, const std::function<void()>& body) {
  const PushedMode cross(&strategy, nullptr);
  const internal::ScopedValue changed(updated, component);
  body();
}

void check_not_mixing(const Strategy* strategy, std::string_view name, std::string_view method,
                      const MadeBy& used) {
  const Mode mode = current_mode();
  if (mode.strategy != strategy && mode.strategy != &default_strategy())
    refuse_mixing(method, name, *mode.strategy, used);
}

void check_can_create(const Strategy* strategy, std::string_view name, std::string_view method) {
  check_not_mixing(strategy, name, method);
  if (default_scopes > 0) refuse_mixing(method, name, default_strategy());
}

}  // namespace internal

}  // namespace cohort
