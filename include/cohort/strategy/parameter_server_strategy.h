// SPDX-License-Identifier: Apache-2.0
// Variables live on parameter servers; steps run on workers, scheduled by a ClusterCoordinator
// (tf.distribute.ParameterServerStrategy, version 2). Training is asynchronous, as described in
// coordinator/cluster_coordinator.h.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cohort/cluster/cluster_options.h"
#include "cohort/cluster/cluster_resolver.h"
#include "cohort/core/export.h"
#include "cohort/core/tensor_spec.h"
#include "cohort/strategy/replicated.h"
#include "cohort/strategy/strategy.h"
#include "cohort/variable/initializer.h"
#include "cohort/variable/variable.h"

namespace cohort {

namespace detail {
class ParameterServerHome;
}
namespace variable {
class ReadCache;  // variable/read_cache.h
}

// --- how variables are divided (tf.distribute.experimental.partitioners) ------------------------

// The number of shards along each axis of a variable of this spec: [4, 1] divides a matrix into
// four parts of rows. All numbers but the first one must be 1, since only rows are divided; a first
// number greater than the number of rows counts as that one. Called when a variable is made, on the
// thread that makes it.
using Partitioner = std::function<std::vector<std::int64_t>(const TensorSpec& spec)>;

// A number of shards along `axis`, and 1 along the other axes. Immutable, and thread-safe. Each
// call throws invalid_argument for unknown sizes, and for an axis that the spec does not have. A
// strategy refuses 0 shards when it makes a variable.
class COHORT_API FixedShardsPartitioner {
 public:
  explicit FixedShardsPartitioner(std::int64_t num_shards) : num_shards_(num_shards) {}
  std::vector<std::int64_t> operator()(const TensorSpec& spec, std::int64_t axis = 0) const;

 private:
  std::int64_t num_shards_;
};

struct MinSizePartitionerOptions {
  std::int64_t min_shard_bytes = 256 << 10;
  std::int64_t max_shards = 1;
  std::int64_t bytes_per_string = 16;
};
// As many shards as have at least `min_shard_bytes` each, rounded up as in tf: the last one may
// bring them below it. At most `max_shards`. Throws invalid_argument for an option below 1.
class COHORT_API MinSizePartitioner {
 public:
  explicit MinSizePartitioner(MinSizePartitionerOptions options = {});
  std::vector<std::int64_t> operator()(const TensorSpec& spec, std::int64_t axis = 0) const;

 private:
  MinSizePartitionerOptions options_;
};

struct MaxSizePartitionerOptions {
  std::int64_t max_shard_bytes = 0;
  std::int64_t max_shards = 0;  // 0: any number
  std::int64_t bytes_per_string = 16;
};
// As few shards as have at most `max_shard_bytes` each; a row is never divided, so a shard of one
// row may be larger. Throws invalid_argument unless `max_shard_bytes` and `bytes_per_string` are at
// least 1 and `max_shards` at least 0. Differs from tf for a variable without rows: tf divides by
// zero, this returns 1.
class COHORT_API MaxSizePartitioner {
 public:
  explicit MaxSizePartitioner(MaxSizePartitionerOptions options);
  std::vector<std::int64_t> operator()(const TensorSpec& spec, std::int64_t axis = 0) const;

 private:
  MaxSizePartitionerOptions options_;
};

// --- tables --------------------------------------------------------------------------------------

// How a full table treats the updates of new keys.
enum class TableEviction : std::uint8_t {
  none,  // they are refused with resource_exhausted
  // They take the rows whose last update or lookup is longest ago.
  least_recently_used,
  // They take the rows with the fewest updates and lookups. An eviction halves the numbers of those
  // that stay, so that a key which was frequent long ago does not stay forever.
  least_frequently_used
};

struct EmbeddingTableOptions {
  std::int64_t dim = 0;  // the numbers of a row
  at::ScalarType dtype = at::kFloat;
  // Makes the first value of a row; not glorot_uniform(), which needs the number of rows.
  Initializer initializer = Initializer::random_uniform(-0.05, 0.05);
  // The largest number of rows, divided evenly over the servers; 0: as many as there are keys. A
  // table without an eviction says so in the log of a server when 90 % of its rows are used.
  std::int64_t capacity = 0;
  TableEviction eviction = TableEviction::none;
  // A key gets a row with its update of this number; earlier ones are dropped. So keys that occur
  // once or twice cost no rows. Counts of old keys are forgotten in time.
  std::int64_t min_count = 1;
};

// The memory of a table on all servers.
struct EmbeddingTableMemory {
  std::int64_t rows = 0;
  std::int64_t row_bytes = 0;  // the value and the slots of one row
  std::int64_t bytes = 0;      // all of it, also the index and room for more rows
};

// The key of a string: its 64-bit FarmHash fingerprint, which never changes. Two strings with one
// key share a row; among ten million strings there is such a pair with a probability of 1 to
// 370,000.
COHORT_API std::int64_t embedding_key(std::string_view text);

// A table of rows by key on parameter servers, whose number of keys nobody knows before: each int64
// but the least one is a key. Its servers divide the keys by their hashes.
//
//   EmbeddingTable users = strategy.embedding_table("users", {.dim = 16, .capacity = 10'000'000,
//       .eviction = TableEviction::least_recently_used});
//   const Adagrad adagrad({users.variable()});
//   const Function train([&](at::Tensor ids, at::Tensor target) {
//     const at::Tensor score = users.lookup(ids).sum(1);
//     adagrad.minimize(torch::mse_loss(score, target));
//   });
//   coordinator.schedule(train, images, labels);
//
// A key that was never updated has its first value, which depends on the seed of ClusterOptions,
// the names of the table and the key alone: it is the same on any number of servers, and that of
// row `key` of a variable of this name. The key gets a row, and memory, with its first update.
// Optimizers change only the rows that a step has looked up, whatever their rule is (as with
// .lazy_rows); a count of steps, as Adam's, is one for the table.
//
// A shared handle; thread-safe. Keep the strategy as long as its tables.
class COHORT_API EmbeddingTable {
 public:
  explicit EmbeddingTable(Variable variable) : variable_(std::move(variable)) {}

  const std::string& name() const { return variable_.name(); }
  std::int64_t dim() const { return variable_.spec().sizes->back(); }
  // The rows of these keys: int64 of any shape […] gives [..., dim], a key that comes twice twice.
  // Inside a step, scheduled or in run(), gradients flow to the rows. Look keys up before the step
  // updates the table: in a scheduled step, a lookup after that throws invalid_argument. Throws
  // invalid_argument for what is no key, and otherwise as Variable::read() does.
  at::Tensor lookup(const at::Tensor& keys) const;
  // Removes the rows of these keys, int64 of any shape, on all servers, and forgets what min_count
  // has counted of them: they have their first values again, and optimizers begin with them. Keys
  // without rows are ignored. A closure that runs meanwhile may update a row before or after.
  // Throws failed_precondition inside a step; otherwise as lookup() does.
  void erase(const at::Tensor& keys) const;
  // For optimizers. It has no value as a whole: read() and assign() throw unimplemented.
  const Variable& variable() const { return variable_; }
  // Ask the servers. size() is the number of rows.
  std::int64_t size() const { return memory().rows; }
  EmbeddingTableMemory memory() const;

 private:
  Variable variable_;
};

// --- variables with a copy for each worker -------------------------------------------------------

// A variable of which each worker has a copy of its own, that nobody synchronizes, and the
// coordinator another one (tf's experimental `per_worker_variable`); for counters and statistics.
//
//   const PerWorkerVariable seen = strategy.per_worker_variable("seen", at::zeros({}, at::kLong));
//   const Function count([&] { seen.assign_add(1); });
//   coordinator.schedule(count);
//   coordinator.join();
//   std::int64_t all = 0;
//   for (const at::Tensor& of_worker : seen.read_all()) all += of_worker.item<std::int64_t>();
//
// In a scheduled step the calls concern the copy of the worker that runs it; elsewhere, also in
// ParameterServerStrategy::run(), that of the coordinator. The copies are rows of one variable on a
// parameter server. So, other than in tf, a worker that is lost and returns has its copy as it was,
// and an update counts once however often its closure is retried: the sum over all copies is exact.
//
// It is not trained, and no argument of functions: capture it. A file of all variables has it as
// one variable with a row for each worker and a last one for the coordinator, so it fits strategies
// with as many workers.
//
// A shared handle; thread-safe. Keep the strategy as long as its variables.
class COHORT_API PerWorkerVariable {
 public:
  // `rows`: as per_worker_variable() makes it.
  explicit PerWorkerVariable(Variable rows);

  const std::string& name() const { return rows_.name(); }
  // The spec of one copy.
  const TensorSpec& spec() const { return spec_; }
  // These use one copy, and throw as those of Variable do.
  at::Tensor read() const;
  void assign(const at::Tensor& value) const;
  void assign_add(const at::Tensor& value) const;
  void assign_sub(const at::Tensor& value) const;
  void assign(const at::Scalar& number) const;
  void assign_add(const at::Scalar& number) const;
  void assign_sub(const at::Scalar& number) const;
  // The values of all workers, by their index, read at one time; the initial value for a worker
  // that has not assigned another one. Throws as Variable::read() does; failed_precondition inside
  // a scheduled function.
  std::vector<at::Tensor> read_all() const;

 private:
  Variable rows_;  // [workers + 1, the sizes of a copy]; the last row is the coordinator's
  TensorSpec spec_;
};

// --- the strategy --------------------------------------------------------------------------------

// Which server gets the next variable, or the next shard of one.
enum class VariablePlacement : std::uint8_t {
  round_robin,  // the next one in turn, as in tf
  // The one that has got the fewest bytes of this strategy's variables so far, without their slots
  // (the GreedyLoadBalancingStrategy of tf version 1).
  fewest_bytes
};

struct ParameterServerOptions {
  ClusterOptions cluster = {};
  // Divides the rows of variables over the servers; without one, each variable is whole on one
  // server. Not asked for scalars, for variables with VariableOptions::colocate_with, and for the
  // buffers of modules, which stay whole.
  Partitioner partitioner = {};
  VariablePlacement placement = VariablePlacement::round_robin;
};

// variable() creates a variable on one parameter server, or each of its shards on one, as
// ParameterServerOptions::placement says; a server may have none.
// replicate() puts a module's parameters and buffers there. A sharded variable is one Variable: its
// numbers are those of a whole one. An assignment to it is not atomic over the servers, as in tf.
// Both connect, and block until the servers have the values, under the deadlines of ClusterOptions.
// They throw already_exists if a name is taken; unavailable, naming the servers, if some are
// missing or were restarted; failed_precondition inside a scheduled function; invalid_argument if
// the partitioner returns no list of one number for each axis, a first number below 1, or another
// one that is not 1. A server computes the values of an Initializer itself.
//
// Thread-safe. Must outlive its ClusterCoordinator and that one's epochs.
class COHORT_API ParameterServerStrategy final : public Strategy {
 public:
  // Only validates the cluster spec: the jobs are chief, worker, ps and evaluator, with at least
  // one ps and one worker. The first call that needs a server connects.
  explicit ParameterServerStrategy(const ClusterResolver& resolver,
                                   ParameterServerOptions options = {});
  ~ParameterServerStrategy() override;

  std::string_view name() const override;
  int num_replicas_in_sync() const override { return 1; }
  // A SimpleResolver with the answers that the constructor's argument gave then.
  const ClusterResolver* cluster_resolver() const override;

  // "/job:ps/task:0", …
  std::vector<std::string> parameter_devices() const override;
  // The device of the worker that runs a step.
  std::vector<std::string> worker_devices() const override { return {"CPU:0"}; }

  // Makes a table on all parameter servers. Throws as variable() does; invalid_argument for an
  // option out of its range.
  EmbeddingTable embedding_table(std::string name, const EmbeddingTableOptions& options);

  // A dataset function of ClusterCoordinator::create_per_worker_dataset() may return the result, as
  // in tf's programs:
  //
  //   const auto per_worker = coordinator.create_per_worker_dataset([&] {
  //     return strategy.distribute_datasets_from_function([](const InputContext& worker) {
  //       return Dataset::range(100).shard(worker);
  //     });
  //   });
  //
  // Calls nothing and returns `fn`, which the coordinator calls once for each worker: a dataset
  // whose elements are the worker's, one for each step. Other than the result of a synchronous
  // strategy, it cannot be iterated here. Throws invalid_argument if `fn` is empty, or options
  // contradict each other; those of replicas have no effect, since a worker has one.
  DatasetFunction distribute_datasets_from_function(DatasetFunction fn,
                                                    const InputOptions& options = {}) const;

  // Makes a variable whose copies have this value. It is whole on one server. Throws as variable()
  // does.
  PerWorkerVariable per_worker_variable(std::string name, const at::Tensor& initial_value);

  // For the coordinator: the state that the strategy, the coordinator and all variables share. It
  // lives as long as one of them. The type is not public.
  const std::shared_ptr<detail::ParameterServerHome>& home() const { return home_; }

 protected:
  internal::StrategyVariables* variables() const override { return variables_.get(); }
  void run_replicas(const std::function<void(ReplicaContext&)>& body) override;
  // Throws unimplemented: the workers read their own input. Use
  // ClusterCoordinator::create_per_worker_dataset() for a dataset, and pass other values to
  // schedule() as arguments.
  std::shared_ptr<const input::InputHost> input_host() override;
  internal::StrategyTraits traits() const override { return {.is_asynchronous = true}; }

 private:
  std::shared_ptr<detail::ParameterServerHome> home_;
  std::shared_ptr<internal::StrategyVariables> variables_;  // shared: not complete here
};

// Until the object is destroyed, Variable::read() on this thread reads each variable of a
// ParameterServerStrategy once, and then returns copies of that value, also after this thread has
// assigned another one (tf's cache_variable_reads()). Other reads are as always: tensor() inside a
// step, rows of a variable, and reads in a traced function or a trace that began later. In a traced
// step it saves the pull after an assignment. Throws invalid_argument inside another such scope of
// this thread. Differs from tf, where a variable that earlier scopes did not read is cached only
// after several reads.
class COHORT_API CacheVariableReadsScope {
 public:
  CacheVariableReadsScope();
  ~CacheVariableReadsScope();
  CacheVariableReadsScope(const CacheVariableReadsScope&) = delete;
  CacheVariableReadsScope& operator=(const CacheVariableReadsScope&) = delete;

 private:
  const std::unique_ptr<variable::ReadCache> cache_;
};

}  // namespace cohort
