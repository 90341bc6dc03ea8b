// SPDX-License-Identifier: Apache-2.0
// Gradients that travel to the other workers while the backward pass still runs.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "cohort/core/mutex.h"
#include "cohort/variable/variable.h"
#include "cohort/variable/variable_home.h"
#include "cohort/workers/pack_sender.h"

namespace cohort::internal {

class StrategyWorkers;

// The name of a step of an optimizer. Only of minimize(), which makes this call, no code of the
// user sees the gradients between the backward pass and the update.
inline constexpr std::string_view kApplyCall = "optimizer.apply_gradients";

// Steps whose gradients may travel early.
struct EarlyKind {
  std::string what;
  std::vector<std::string> names;  // of all variables of the step
  std::vector<std::vector<std::int64_t>> sizes;
  std::vector<at::ScalarType> types;
  std::vector<std::size_t> dense;  // the variables whose gradients travel
  // These, in the order in which they travel; empty until the workers have agreed.
  std::vector<std::vector<std::size_t>> packs;

  bool is_of(std::string_view what, std::span<const Variable> variables) const;
};

class EarlyGradients;

// One backward pass of minimize(). If it or the update fails, the sender is stopped: the workers
// may have sent different numbers of packs. Used from one thread.
class EarlyPass final : public GradientSink {
 public:
  // `sender`: nullptr: only the order is observed.
  EarlyPass(EarlyGradients& owner, std::shared_ptr<const EarlyKind> kind,
            std::shared_ptr<PackSender> sender);
  ~EarlyPass() override;

  void take(std::size_t i, const at::Tensor& gradient) override;
  void finish() override { has_finished_ = true; }

  bool has_finished() const { return has_finished_; }
  const std::shared_ptr<const EarlyKind>& kind() const { return kind_; }
  std::thread::id thread() const { return thread_; }
  // Whether its packs travel.
  bool sends() const { return sender_ != nullptr && sender_->is_in_order(); }
  // The variables in the order of their gradients.
  const std::vector<std::size_t>& order() const { return order_; }
  // Sends what is left; `own`: the gradient of each variable, without a value if there is none.
  // Returns the sums of EarlyKind::dense by variable. Throws as PackSender::wait() does.
  std::vector<at::Tensor> sums(const std::vector<at::Tensor>& own);

 private:
  void send_complete();

  EarlyGradients& owner_;
  const std::shared_ptr<const EarlyKind> kind_;
  const std::shared_ptr<PackSender> sender_;
  const std::thread::id thread_ = std::this_thread::get_id();
  std::vector<std::shared_ptr<GradientPack>> packs_;
  struct Position {
    std::size_t pack = 0, place = 0;
    bool travels = false;
  };
  std::vector<Position> positions_;   // of the variables
  std::vector<std::size_t> missing_;  // in each pack
  std::size_t num_sent_ = 0;          // packs
  std::vector<std::size_t> order_;
  bool has_finished_ = false;
  bool is_over_ = false;
};

// Which steps have early gradients, and who sends them. Whether the gradients of one step do travel
// early is agreed by the numbers that WorkerGradients adds in each step: only if all workers have
// sent them so. Otherwise, the same step sends them again, together.
//
// begin() and stop() are thread-safe; the rest is used in the calls of StrategyWorkers.
class EarlyGradients {
 public:
  struct Options {
    bool is_wanted = false;  // gradients may travel early
    // How many bytes of gradients travel in one call; 0: all, or a default of those that are early.
    std::int64_t bytes_per_pack = 0;
    // Dense float32 gradients travel as bfloat16, half of the bytes. They are added as float32.
    bool sends_bfloat16 = false;
  };
  explicit EarlyGradients(std::shared_ptr<StrategyWorkers> workers);
  ~EarlyGradients();

  void use(const Options& options) { options_ = options; }
  const Options& options() const { return options_; }

  // A backward pass for a step of these variables begins; nullptr: nothing of it travels early.
  std::unique_ptr<GradientSink> begin(std::string_view what, std::span<const Variable> variables);
  // The pass on this thread that has finished, and that the step may belong to; nullptr: none.
  EarlyPass* finished(std::string_view what, std::span<const Variable> variables);

  // Steps with these dense gradients come again. Returns nullptr if they are too few bytes to
  // travel early. Forgets what was agreed on for such steps.
  std::shared_ptr<const EarlyKind> expect(std::string_view what,
                                          std::span<const Variable> variables,
                                          std::vector<std::size_t> dense);
  void forget_all();
  // Whether the passes of this kind can send.
  bool is_ready(const EarlyKind& kind) const;
  // A call of all workers, none of which sends: they agree on the order, that of the gradients on
  // worker 0, and get a sender if one of them has none. `pass`: the last one, or nullptr.
  std::shared_ptr<const EarlyKind> agree(const std::shared_ptr<const EarlyKind>& kind,
                                         const EarlyPass* pass);
  // The sender sends no more; until agree(), nothing travels early.
  void stop();

 private:
  friend class EarlyPass;
  void close(const EarlyPass* pass);
  void renew_sender(std::uint64_t splits_of_all);
  void forget_those_of_the_parent() COHORT_REQUIRES(mutex_);

  const std::shared_ptr<StrategyWorkers> workers_;
  Options options_;
  std::uint64_t group_number_ = 0;  // of the group that was split
  std::uint64_t num_splits_ = 0;
  mutable Mutex mutex_;
  int process_ COHORT_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<const EarlyKind>> kinds_ COHORT_GUARDED_BY(mutex_);
  std::uint64_t epoch_ COHORT_GUARDED_BY(mutex_) = 0;  // of the workers, in which they were made
  std::shared_ptr<PackSender> sender_ COHORT_GUARDED_BY(mutex_);  // shared with the open pass
  EarlyPass* open_ COHORT_GUARDED_BY(mutex_) = nullptr;
};

}  // namespace cohort::internal
