// SPDX-License-Identifier: Apache-2.0
// Saves what belongs to a training, and restores it on any strategy and any number of replicas,
// workers and parameter servers (tf.train.Checkpoint and tf.train.CheckpointManager).
//
//   cohort::Checkpoint checkpoint(strategy);  // its variables, optimizers and random numbers
//   checkpoint.add("train", iterator).add("epoch", epoch);
//   cohort::CheckpointManager manager(checkpoint, "checkpoints");
//   std::int64_t step = manager.restore_latest().value_or(cohort::Restored{}).step;
//   for (; step < steps; ++step) {
//     train_step();
//     if (step % 1000 == 0) manager.save(step);
//   }
//
// docs/guide/checkpoints.md shows whole programs, docs/formats/checkpoint.md the files.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cohort/core/clock.h"
#include "cohort/core/export.h"
#include "cohort/data/iterator.h"
#include "cohort/input/distributed_dataset.h"
#include "cohort/strategy/replicated.h"
#include "cohort/strategy/strategy.h"
#include "cohort/variable/variable.h"

namespace cohort {

class PerWorkerDataset;  // cohort/coordinator/cluster_coordinator.h

namespace checkpoint {
class Contents;     // checkpoint/contents.h
class PendingSave;  // checkpoint/pending_save.h
}  // namespace checkpoint

// Says what Checkpoint::read() does with names. A value type.
struct RestoreOptions {
  // Variables that have another name in the checkpoint: from the name here to the name there. The
  // slots of optimizers follow their variables.
  std::map<std::string, std::string> names = {};
  // This is before the names here and not before those of the checkpoint: {.prefix = "model/"}
  // restores a checkpoint, or an exported file, that has "conv1.weight" into "model/conv1.weight".
  std::string prefix = {};
  // Whether variables, optimizers and values that the checkpoint does not have stay as they are.
  // Otherwise they are an error, before anything is changed.
  bool allow_missing = false;
  // Whether what is made or added after read() gets its values then (tf's deferred restoration):
  // variables of the strategy, modules and tables when they are made, with their slots; optimizers;
  // and what add() names. Until all was taken, this needs the Checkpoint and its folder, and read()
  // ends it. A variable that the checkpoint does not have is an error when it is made, unless
  // allow_missing. With several workers, all make and add the same in the same order.
  bool deferred = false;
};

// Says what was restored. A value type.
struct COHORT_API Restored {
  std::int64_t step = 0;                  // that save() was given
  std::string path = {};                  // the folder
  std::vector<std::string> used = {};     // names of what was restored, as the checkpoint has them
  std::vector<std::string> unused = {};   // what it has and nobody took
  std::vector<std::string> missing = {};  // what was wanted and it does not have

  // Throws failed_precondition, with the names, if something is unused
  // (tf's assert_consumed()).
  void assert_consumed() const;
};

// A value of the program that is saved as JSON. Its functions are called on the thread that saves
// or restores.
struct SavedState {
  std::function<std::string()> save;                     // returns a JSON text
  std::function<void(const std::string& json)> restore;  // of this text
};

// Saves and restores at once what belongs together. It refers to what was added, which must live as
// long as it is used. Thread-compatible.
//
// With several workers, all must make the same calls in the same order; the first one reads and
// writes the files, so that only its folder counts, and all throw its errors.
class COHORT_API Checkpoint {
 public:
  // Only what add() names: for a program without a strategy.
  Checkpoint();
  // Everything of the strategy that exists when it is saved or restored: all its variables, those
  // of modules and tables among them, with the slots of optimizers; the optimizers' numbers of
  // updates and hyperparameters; LibTorch's default generator of each worker, from which replicas
  // get their random numbers.
  explicit Checkpoint(Strategy& strategy);
  ~Checkpoint();
  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;

  // These return the object itself. They throw already_exists for a name that was added before.
  //
  // A variable of no strategy, with its optimizers; it is named as it was made.
  Checkpoint& add(const Variable& variable);
  // The position in the data. After restore() the next step is the one after the last step that was
  // returned before the save, also if the numbers of workers and replicas are others
  // (DistributedIterator::restore()).
  Checkpoint& add(std::string name, DistributedIterator& iterator);
  // The number of the next pass: for a program that saves between two passes.
  Checkpoint& add(std::string name, const DistributedDataset& dataset);
  Checkpoint& add(std::string name, Iterator& iterator);
  // The position in the pass that an epoch of the coordinator makes, and else the number of the
  // next pass. After read() the next run_epoch() or begin_epoch() uses the elements that the saved
  // values had not seen, each once. It may be saved between two steps, as in EpochOptions::on_step.
  // The number of workers must be the same, unless it was saved between two passes
  // (PerWorkerDataset::restore()). A copy of the dataset is kept, which keeps its coordinator.
  Checkpoint& add(std::string name, const PerWorkerDataset& dataset);
  // A number or text of the program.
  Checkpoint& add(std::string name, std::int64_t& value);
  Checkpoint& add(std::string name, double& value);
  Checkpoint& add(std::string name, std::string& value);
  Checkpoint& add(std::string name, SavedState state);
  // A module that no strategy has, such as a torch::nn module: its parameters and buffers are saved
  // as "<name>/<path>", as replicate() names them.
  template <class M>
  requires requires(M& module) { internal::module_of(module).named_parameters(); }
  Checkpoint& add(std::string name, M& module) {
    std::vector<std::pair<std::string, at::Tensor>> tensors;
    for (const internal::NamedTensor& each : internal::tensors_of(internal::module_of(module)))
      tensors.emplace_back(name + "/" + each.name, each.tensor);
    return add_tensors(std::move(tensors));
  }

  // Writes a folder with all of it (tf's write()), which appears whole or not at all: an old one of
  // this name stays until then. `step`: for Restored::step. On parameter servers no closure begins
  // until those that run, and the steps of epochs that wait, have ended and the moment is marked;
  // then they go on. No other thread may update variables in this call.
  // Throws failed_precondition in a replica or a step; deadline_exceeded for a closure that does
  // not end; aborted if updates have waited for the files for too long
  // (docs/guide/checkpoints.md); invalid_argument for a value that cannot be saved, such as a
  // complex one, or text that is no JSON; not_found, permission_denied, resource_exhausted (a full
  // disk) or failed_precondition, with the path; and what reading a variable throws.
  void write(const std::string& path, std::int64_t step = 0) const;
  // Restores from such a folder, or from a safetensors file, which has values of variables alone
  // (of `cohort checkpoint export`, or a state_dict of Python). All variables, optimizers and
  // iterators must exist, unless options.deferred. A worker that has come back to a training keeps
  // what the others have handed over, with a warning.
  // Throws failed_precondition in a replica or a step, and while closures of a coordinator wait or
  // run (join() first); not_found if there is no such folder or file; data_loss, naming the file,
  // if it is damaged or something else; unimplemented for one of a newer version; invalid_argument
  // for a variable of another dtype or shape, with both; not_found for what is missing, unless
  // allow_missing. In all these cases nothing was changed, unless a file was found damaged in its
  // middle.
  Restored read(const std::string& path, const RestoreOptions& options = {}) const;
  // Says what the last read() has restored by now; after a deferred one, what is `unused` waits.
  Restored restored() const;

 private:
  friend class CheckpointManager;
  Checkpoint& add_tensors(std::vector<std::pair<std::string, at::Tensor>> tensors);

  std::unique_ptr<checkpoint::Contents> contents_;
};

// The processes that write the files of a checkpoint.
enum class CheckpointWriters {
  // One: the first worker, or the coordinator, to which parameter servers send their values. Only
  // its file system counts.
  first,
  // On parameter servers each server writes what it has, all at the same time, and the coordinator
  // the rest. Synchronous workers with shard_optimizer_state each write the slots of which they
  // have shares, before save() returns, and the first one the rest. All must see the folder at one
  // path, such as that of a network file system, and servers must have been started with --data for
  // it, or for a folder above it. In one process this is the same as `first`.
  each
};

// Which checkpoints of a folder stay, and how they are written. A value type.
struct CheckpointManagerOptions {
  // The newest ones; older ones are removed after each save. 0: all stay (tf's None).
  std::int64_t max_to_keep = 5;
  // Beside those, one for each such time stays for ever (tf's keep_checkpoint_every_n_hours); zero:
  // none.
  Duration keep_every = Duration::zero();
  // How much memory save() may use for copies of values that are still to be written. It returns
  // when the last ones that fit are copied; so with as much as all values have, slots among them,
  // it writes nothing before it returns. On parameter servers save() never waits for the disk; this
  // is also how many bytes updates may replace on each server during a save before they wait.
  std::int64_t memory_max_bytes = std::int64_t{64} << 20;
  // How long save() and restore_latest() wait for the save before.
  Duration timeout = std::chrono::minutes(30);
  CheckpointWriters writers = CheckpointWriters::first;
};

// A save that CheckpointManager::save() has begun. A handle, which need not be kept: the next
// save() or restore_latest() of the manager waits, too, and throws an error that wait() has not
// thrown; the manager's destructor logs it. Used only from the thread that uses the manager.
class COHORT_API PendingCheckpoint {
 public:
  // The folder, on all workers. It exists when the save has ended.
  const std::string& path() const;
  // Whether wait() has nothing to wait for. With several workers only the first one, which writes,
  // sees this before wait().
  bool done() const;
  // Waits until the disk has the checkpoint. With several workers, all must make this call. Throws
  // what the save has thrown; deadline_exceeded, if it needs longer, and then may be called again;
  // failed_precondition on another worker than the first one after the manager has ended.
  void wait(Duration timeout = std::chrono::minutes(30)) const;

 private:
  friend class CheckpointManager;
  explicit PendingCheckpoint(std::shared_ptr<checkpoint::PendingSave> save)
      : save_(std::move(save)) {}
  std::shared_ptr<checkpoint::PendingSave> save_;  // the manager has it, too
};

// Keeps the checkpoints of one training in a folder, "step-<step>" for each. With several workers,
// all make the same calls. Thread-compatible.
class COHORT_API CheckpointManager {
 public:
  // Makes the folder, and removes what an ended process has left unfinished in it. `checkpoint`
  // and its strategy must outlive the manager. Throws failed_precondition if another manager uses
  // the folder; invalid_argument for a path that is a file, for negative options, and for no memory
  // or no time; the
  // errors of the file system.
  CheckpointManager(const Checkpoint& checkpoint, std::string folder,
                    CheckpointManagerOptions options = {});
  // Waits until the last save has ended.
  ~CheckpointManager();
  CheckpointManager(const CheckpointManager&) = delete;
  CheckpointManager& operator=(const CheckpointManager&) = delete;

  // Begins a checkpoint of the values of this moment, which a thread goes on to write, makes the
  // latest one when it is complete, and then removes those that need not stay. When save() returns,
  // all values are written or copied, so the program may change them at once; see memory_max_bytes.
  // Waits for the save before first, and throws its error; then nothing was begun. Otherwise throws
  // as Checkpoint::write(), but wait() throws what is found later, such as a full disk;
  // invalid_argument for a negative step; deadline_exceeded for a save before that goes on. A
  // checkpoint of this step is replaced. With CheckpointWriters::each, wait(), or with synchronous
  // workers save(), throws permission_denied or failed_precondition, naming the server or worker,
  // for one that may not write into the folder or does not see it, and deadline_exceeded for one
  // that writes nothing for ClusterOptions::data_timeout.
  //
  // A process that ends without the destructor, by exit() for example, leaves the checkpoint before
  // as the latest one.
  PendingCheckpoint save(std::int64_t step);
  // Restores the latest checkpoint; nullopt if there is none, and then nothing was changed. Waits
  // for the last save, and throws its error. Throws as Checkpoint::read(); if the latest one is
  // damaged, the message names the newest one before it
  // that is whole.
  std::optional<Restored> restore_latest(const RestoreOptions& options = {});
  // The folder of the latest checkpoint that is complete; nullopt if there is none.
  std::optional<std::string> latest_checkpoint() const;
  // The folders of all, the oldest first. On the first worker; empty on the others.
  std::vector<std::string> checkpoints() const;

 private:
  class Folder;
  const Checkpoint& checkpoint_;
  const CheckpointManagerOptions options_;
  std::shared_ptr<Folder> folder_;  // nullptr: another worker has it; a save has it, too
  std::shared_ptr<checkpoint::PendingSave> last_;  // nullptr: none yet
};

}  // namespace cohort
