// SPDX-License-Identifier: Apache-2.0
// When to stop a training, and which epoch was the best one (keras.callbacks.EarlyStopping and
// ModelCheckpoint with save_best_only). Both are decisions alone: the program acts on them.
//
//   EarlyStopping stopping({.monitor = "val_loss", .patience = 3});
//   BestModel best({.monitor = "val_loss"});
//   for (std::int64_t epoch = 0; !stopping.should_stop(); ++epoch) {
//     const std::map<std::string, double> metrics = train_and_evaluate(epoch);
//     if (best.update(epoch, metrics)) save_values("best.safetensors", values);
//     stopping.update(epoch, metrics);
//   }
//   restore_values("best.safetensors", values);  // keras: restore_best_weights
//
// With several workers, each has its own objects and gives them the same metrics, values that were
// reduced over all workers; so all decide alike, without a message.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "cohort/core/export.h"

namespace cohort {

// Which values of a metric are good.
enum class MonitorMode : std::uint8_t {
  automatic,  // by the name: small ones of a loss or an error, large ones of an accuracy or AUC
  min,
  max,
};

// The values of an epoch by name, such as {"loss", 0.3}, {"val_loss", 0.4}.
using MetricValues = std::map<std::string, double>;

// The options of Keras, but for restore_best_weights: see BestModel.
struct EarlyStoppingOptions {
  std::string monitor = "val_loss";
  double min_delta = 0;       // a value must be better by more than this; not negative
  std::int64_t patience = 0;  // after so many epochs without a better value it stops; not negative
  MonitorMode mode = MonitorMode::automatic;
  // An epoch counts as one without a better value until this is surpassed.
  std::optional<double> baseline = {};
  std::int64_t start_from_epoch = 0;  // epochs before this one do not count
};

// Thread-compatible.
class COHORT_API EarlyStopping {
 public:
  // Throws invalid_argument for options out of their range, and for the mode `automatic` with a
  // name that tells none.
  explicit EarlyStopping(EarlyStoppingOptions options = {});
  ~EarlyStopping();
  EarlyStopping(EarlyStopping&&) noexcept;
  EarlyStopping& operator=(EarlyStopping&&) noexcept;

  // Takes the metrics at the end of an epoch. Returns should_stop(). A value that is NaN stops the
  // training at once, since the model does not recover from it; Keras counts it as one that is not
  // better. Throws not_found, naming the metrics that there are, without the one that is monitored;
  // invalid_argument unless `epoch` is larger than before and not negative. Changes nothing then.
  bool update(std::int64_t epoch, const MetricValues& metrics);
  bool should_stop() const;
  // Why: "'val_loss' has not been better than 0.25 of epoch 4 for 3 epochs"; empty if it goes on.
  std::string reason() const;
  // The best value so far and its epoch.
  std::optional<double> best() const;
  std::optional<std::int64_t> best_epoch() const;
  // The epoch after which should_stop() was true.
  std::optional<std::int64_t> stopped_epoch() const;

  // All that update() has changed, as JSON, for a checkpoint.
  std::string save() const;
  // Continues where save() was called. Throws invalid_argument, and changes nothing, for a text
  // that save() has not written, and for the state of another metric or mode. The other options may
  // differ.
  void restore(std::string_view state);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

struct BestModelOptions {
  std::string monitor = "val_loss";
  double min_delta = 0;  // a value must be better by more than this; not negative
  MonitorMode mode = MonitorMode::automatic;
  // Only an epoch with a better value than this can be the best (keras: initial_value_threshold).
  std::optional<double> baseline = {};
};

// Says which epoch was the best one, so that the program keeps its values: in a file, where an
// interruption does not lose them. (Keras' restore_best_weights keeps a copy in memory.)
// Thread-compatible.
class COHORT_API BestModel {
 public:
  // Throws as EarlyStopping does.
  explicit BestModel(BestModelOptions options = {});
  ~BestModel();
  BestModel(BestModel&&) noexcept;
  BestModel& operator=(BestModel&&) noexcept;

  // Takes the metrics at the end of an epoch. Returns whether it is the best one so far: the first
  // one is. NaN never is. Throws as EarlyStopping::update() does.
  bool update(std::int64_t epoch, const MetricValues& metrics);
  std::optional<double> best() const;
  std::optional<std::int64_t> best_epoch() const;

  // As those of EarlyStopping.
  std::string save() const;
  void restore(std::string_view state);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cohort
