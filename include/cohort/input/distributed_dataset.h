// SPDX-License-Identifier: Apache-2.0
// A dataset that is distributed to the replicas of a strategy (tf.distribute.DistributedDataset).
// Strategy::distribute_dataset() and distribute_datasets_from_function() create it.
//
//   for (const auto& batch : strategy.distribute_dataset(dataset)) {
//     auto losses = strategy.run(step, batch);
//   }
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <utility>

#include "cohort/core/bytes.h"
#include "cohort/core/export.h"
#include "cohort/core/nest.h"
#include "cohort/data/dataset.h"
#include "cohort/data/dataset_options.h"
#include "cohort/data/element.h"
#include "cohort/input/per_replica.h"

namespace cohort {

namespace input {
struct InputHost;                // input/input_host.h
class DistributedIteratorState;  // input/iterators/distributed_iterator_state.h
class CurrentDistribution;       // input/distribution/current_distribution.h
}  // namespace input

// The replica for which a value is created (tf.distribute.ValueContext). A value type.
struct COHORT_API ValueContext {
  std::int64_t replica_id_in_sync_group = 0;
  std::int64_t num_replicas_in_sync = 1;

  // "tf.distribute.ValueContext(replica id 2,  total replicas in sync: 4)"
  std::string to_string() const;
  friend std::ostream& operator<<(std::ostream& out, const ValueContext& context) {
    return out << context.to_string();
  }
};

using ValueFunction = std::function<Nest(const ValueContext& context)>;

// How many pipelines there are for the replicas of one worker (tf.distribute.InputReplicationMode).
enum class ReplicationMode : std::uint8_t {
  per_worker,  // one pipeline feeds all replicas of a worker
  // One pipeline per replica; only for distribute_datasets_from_function() with one worker.
  per_replica,
};

// How a distributed dataset passes its elements to replicas (tf.distribute.InputOptions). A value
// type.
struct COHORT_API InputOptions {
  // True or nullopt: mini-batches are copied ahead into the memory of each replica's device. False:
  // they stay in host memory. For CPU devices nothing is copied in either case.
  std::optional<bool> fetch_to_device = {};
  ReplicationMode replication_mode = ReplicationMode::per_worker;
  // For compatibility with tf, where the pipeline then runs on the replica's device. Requires
  // per_replica and fetch_to_device = false. Cohort's pipelines always run on the host, and the
  // values are the same.
  bool place_dataset_on_device = false;
  // How many mini-batches are copied ahead for each replica. 0: none; each is copied when it is
  // requested. kAutotune: the default.
  std::int64_t per_replica_buffer_size = 1;

  // Throws invalid_argument if fields contradict each other. distribute_dataset() checks only the
  // buffer size; the default strategy checks nothing, since it uses none of the fields.
  void validate() const;
  // per_replica_buffer_size, with kAutotune replaced by the default.
  std::int64_t buffer_size() const;
};

// The spec of every component, and the number of components. A value type.
struct COHORT_API DistributedSpec {
  ElementSpec component;
  std::size_t num_components = 1;
  bool is_wrapped = true;

  std::string to_string() const;  // "PerReplica(int64[?], int64[?])"
  friend std::ostream& operator<<(std::ostream& out, const DistributedSpec& spec) {
    return out << spec.to_string();
  }
};

// The result of get_next_as_optional(): one step or nothing.
class COHORT_API DistributedOptional {
 public:
  DistributedOptional(DistributedSpec spec, std::optional<DistributedElement> value)
      : spec_(std::move(spec)), value_(std::move(value)) {}
  bool has_value() const { return value_.has_value(); }
  // Throws invalid_argument if there is no value.
  const DistributedElement& get_value() const;
  const DistributedSpec& element_spec() const { return spec_; }

 private:
  DistributedSpec spec_;
  std::optional<DistributedElement> value_;
};

// One pass over a distributed dataset, step by step.
//
// If there are several workers, all must make the same calls in the same order. An error of one is
// thrown on all, with that worker as its origin. Calls inside a replica function throw
// invalid_argument. Used from one thread at a time.
class COHORT_API DistributedIterator {
 public:
  explicit DistributedIterator(std::unique_ptr<input::DistributedIteratorState> pass);
  ~DistributedIterator();
  DistributedIterator(DistributedIterator&&) noexcept;
  DistributedIterator& operator=(DistributedIterator&&) noexcept;

  const DistributedSpec& element_spec() const;
  // The next step; nullopt at the end and in every later call. After an error, the next call
  // continues with the following step, and every replica gets the elements meant for it.
  //
  // If all shapes are static and there is one worker, a last step in which only some replicas have
  // data is left out, as in tf (handles_partial_batches() is false). Only datasets from
  // distribute_datasets_from_function() have such a step. The shapes of a map() without
  // MapOptions::output_spec are not static here, because they were learned from a few elements.
  std::optional<DistributedElement> try_next();
  // Like try_next(), but throws out_of_range at the end.
  DistributedElement get_next();
  // Like try_next(), but also returns a last step in which only some replicas have data.
  DistributedOptional get_next_as_optional();

  // The position of all workers after the last step that was returned; the same bytes on each
  // worker.
  Bytes save() const;
  // Continues at a position that an equally built distributed dataset saved. With the same numbers
  // of workers and replicas, the next step is exactly the one after it; with different numbers,
  // every remaining sample is used once.
  void restore(std::span<const std::byte> position);

 private:
  std::unique_ptr<input::DistributedIteratorState> state_;
};

using DatasetFunction = std::function<Dataset(const InputContext& context)>;

// A shared handle, to be made once: it counts its passes, which gives a dataset that shuffles
// another order in each, and it lives through MultiWorkerMirroredStrategy::rebuild(). Its next
// iterator belongs to the new group, which divides the data between other workers. Thread-safe. If
// there are several workers, all must call iterator() equally often and in the same order.
class COHORT_API DistributedDataset {
 public:
  // Splits the dataset's global batches into mini-batches and distributes them to workers and
  // replicas as DatasetOptions say. Throws unimplemented for ReplicationMode::per_replica, and
  // invalid_argument if the dataset is not batched.
  static DistributedDataset from_dataset(std::shared_ptr<const input::InputHost> host,
                                         const Dataset& dataset, const InputOptions& options);
  // Calls fn now, and again for each new group of workers, once for each pipeline of this worker,
  // and returns its elements unchanged. If there are several workers, all must make this call; an
  // error of fn on one is thrown on all.
  static DistributedDataset from_function(std::shared_ptr<const input::InputHost> host,
                                          const DatasetFunction& fn, const InputOptions& options);

  // The cardinality of the user's dataset.
  std::int64_t cardinality() const;
  DistributedSpec element_spec() const;
  // Whether try_next() returns a step in which only some replicas have data; the others then get
  // empty batches.
  bool handles_partial_batches() const;
  // A new pass from the first element, in a new order if the dataset shuffles. The number of the
  // pass is the highest next_pass() of all workers: one that has come back takes that of the
  // others.
  //
  // With several workers, throws invalid_argument on all unless they have made the same dataset,
  // with the same seeds (but not functions, whose code is not compared), where they divide it
  // between them. The place in the program is for messages on other workers.
  DistributedIterator iterator(const char* file = __builtin_FILE(),
                               int line = __builtin_LINE()) const;
  // The number of the next pass, from 0 on; DistributedIterator::restore() makes it the one after
  // the restored pass. It is what a program saves between two passes. On this worker; iterator()
  // agrees on it.
  std::uint64_t next_pass() const;
  // To be called on all workers, with what next_pass() was when the program was saved.
  void set_next_pass(std::uint64_t pass) const;
  // Returns the last state of a new pass: fn(state, element) is called for each step of try_next()
  // and returns the next state.
  template <class T, class F>
  T reduce(T state, F fn) const {
    DistributedIterator all = iterator();
    while (std::optional<DistributedElement> element = all.try_next())
      state = fn(std::move(state), *element);
    return state;
  }

  // Range-based for over the steps of try_next() in a new pass.
  class Pass;
  struct End {};
  Pass begin(const char* file = __builtin_FILE(), int line = __builtin_LINE()) const;
  End end() const { return {}; }

  explicit DistributedDataset(std::shared_ptr<input::CurrentDistribution> distribution)
      : distribution_(std::move(distribution)) {}

 private:
  std::shared_ptr<input::CurrentDistribution> distribution_;
};

// An input iterator over one pass.
class COHORT_API DistributedDataset::Pass {
 public:
  explicit Pass(DistributedIterator iterator);
  const DistributedElement& operator*() const { return *element_; }
  Pass& operator++();
  bool operator==(End) const { return !element_.has_value(); }

 private:
  std::shared_ptr<DistributedIterator> iterator_;
  std::optional<DistributedElement> element_;
};

// Calls value_fn once for each local replica, in order (distribute_values_from_function). Throws
// invalid_argument if the structures of the values differ.
COHORT_API PerReplica<Nest> distributed_values(const input::InputHost& host,
                                               const ValueFunction& value_fn);

}  // namespace cohort
