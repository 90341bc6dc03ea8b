// SPDX-License-Identifier: Apache-2.0
// The best value of a metric so far, for decisions at the end of an epoch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "cohort/train/early_stopping.h"
#include "cohort/train/json_number.h"

namespace cohort::train {

// Thread-compatible.
class Monitor {
 public:
  // `user` is the name of the class, for messages. Throws as EarlyStopping's constructor does.
  Monitor(std::string_view user, std::string name, MonitorMode mode, double min_delta);

  const std::string& name() const { return name_; }
  bool is_better(double value, std::optional<double> than) const;
  // The value of the metric at the end of this epoch. Throws as EarlyStopping::update() does.
  double take(std::int64_t epoch, const MetricValues& metrics);
  void note_best(double value);  // of the epoch that was taken last

  std::optional<double> best() const { return best_; }
  std::optional<std::int64_t> best_epoch() const { return best_epoch_; }
  std::int64_t epoch() const { return epoch_; }  // -1 before the first

  Json save() const;
  // The object of a text that save() has written. Throws as EarlyStopping::restore() does.
  Json parse(std::string_view state) const;
  void restore(const Json& state);

 private:
  std::string user_;  // "early_stopping"
  std::string name_;
  bool is_small_good_;
  double min_delta_;
  std::int64_t epoch_ = -1;
  std::optional<double> best_;
  std::optional<std::int64_t> best_epoch_;
};

}  // namespace cohort::train
