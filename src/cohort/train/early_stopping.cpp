// SPDX-License-Identifier: Apache-2.0
#include "cohort/train/early_stopping.h"

#include <cmath>
#include <sstream>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/core/log.h"
#include "cohort/train/monitor.h"

namespace cohort {
namespace {

using train::Json;
using train::Monitor;

void check_baseline(std::string_view user, std::optional<double> baseline) {
  COHORT_CHECK(!baseline || !std::isnan(*baseline), ErrorCode::invalid_argument, "[train.", user,
               "] expected a number as baseline, got NaN; leave it out for none");
}

// Calls take(json) for the state, which changes nothing if it throws.
template <class Take>
void take_state(const Monitor& monitor, std::string_view user, std::string_view state,
                const Take& take) {
  const Json json = monitor.parse(state);
  try {
    take(json);
  } catch (const Json::exception& error) {
    internal::throw_error(
        ErrorCode::invalid_argument, "[train.", user,
        "] expected a state that save() has written, got one that is damaged: ", error.what());
  }
}

}  // namespace

class EarlyStopping::Impl {
 public:
  explicit Impl(EarlyStoppingOptions options)
      : options_(std::move(options)),
        monitor_(kUser, options_.monitor, options_.mode, options_.min_delta) {
    COHORT_CHECK(options_.patience >= 0, ErrorCode::invalid_argument, "[train.", kUser,
                 "] expected patience >= 0, got ", options_.patience);
    check_baseline(kUser, options_.baseline);
  }

  // As keras.callbacks.EarlyStopping.on_epoch_end().
  void update(std::int64_t epoch, const MetricValues& metrics) {
    const double value = monitor_.take(epoch, metrics);
    if (stopped_epoch_ || epoch < options_.start_from_epoch) return;
    if (std::isnan(value)) {
      stop(std::nullopt);
      return;
    }
    ++wait_;
    if (monitor_.is_better(value, monitor_.best())) {
      monitor_.note_best(value);
      if (monitor_.is_better(value, options_.baseline)) wait_ = 0;
    } else if (wait_ >= options_.patience) {
      stop(wait_);
    }
  }

  const Monitor& monitor() const { return monitor_; }
  std::optional<std::int64_t> stopped_epoch() const { return stopped_epoch_; }

  std::string reason() const {
    if (!stopped_epoch_) return "";
    std::ostringstream text;
    text << "'" << monitor_.name() << "' ";
    if (is_nan_) {
      text << "is NaN at epoch " << *stopped_epoch_;
    } else {
      text << "has not been better than " << *monitor_.best() << " of epoch "
           << *monitor_.best_epoch() << " for " << wait_ << (wait_ == 1 ? " epoch" : " epochs");
    }
    return text.str();
  }

  std::string save() const {
    Json json = monitor_.save();
    json["wait"] = wait_;
    json["stopped_epoch"] = stopped_epoch_ ? Json(*stopped_epoch_) : Json(nullptr);
    json["is_nan"] = is_nan_;
    return json.dump();
  }
  void restore(std::string_view state) {
    take_state(monitor_, kUser, state, [&](const Json& json) {
      const auto wait = json.at("wait").get<std::int64_t>();
      const bool is_nan = json.at("is_nan").get<bool>();
      const Json& stopped = json.at("stopped_epoch");
      std::optional<std::int64_t> stopped_epoch;
      if (!stopped.is_null()) stopped_epoch = stopped.get<std::int64_t>();
      monitor_.restore(json);
      wait_ = wait;
      is_nan_ = is_nan;
      stopped_epoch_ = stopped_epoch;
    });
  }

 private:
  static constexpr std::string_view kUser = "early_stopping";

  void stop(std::optional<std::int64_t> wait) {
    stopped_epoch_ = monitor_.epoch();
    is_nan_ = !wait;
    if (is_nan_) log_warn("[train.early_stopping] the training stops: ", reason());
  }

  EarlyStoppingOptions options_;
  Monitor monitor_;
  std::int64_t wait_ = 0;  // epochs without a better value
  std::optional<std::int64_t> stopped_epoch_;
  bool is_nan_ = false;  // which has stopped it
};

EarlyStopping::EarlyStopping(EarlyStoppingOptions options)
    : impl_(std::make_unique<Impl>(std::move(options))) {}
EarlyStopping::~EarlyStopping() = default;
EarlyStopping::EarlyStopping(EarlyStopping&&) noexcept = default;
EarlyStopping& EarlyStopping::operator=(EarlyStopping&&) noexcept = default;

bool EarlyStopping::update(std::int64_t epoch, const MetricValues& metrics) {
  impl_->update(epoch, metrics);
  return should_stop();
}
bool EarlyStopping::should_stop() const { return impl_->stopped_epoch().has_value(); }
std::string EarlyStopping::reason() const { return impl_->reason(); }
std::optional<double> EarlyStopping::best() const { return impl_->monitor().best(); }
std::optional<std::int64_t> EarlyStopping::best_epoch() const {
  return impl_->monitor().best_epoch();
}
std::optional<std::int64_t> EarlyStopping::stopped_epoch() const { return impl_->stopped_epoch(); }
std::string EarlyStopping::save() const { return impl_->save(); }
void EarlyStopping::restore(std::string_view state) { impl_->restore(state); }

class BestModel::Impl {
 public:
  explicit Impl(BestModelOptions options)
      : options_(std::move(options)),
        monitor_(kUser, options_.monitor, options_.mode, options_.min_delta) {
    check_baseline(kUser, options_.baseline);
  }

  bool update(std::int64_t epoch, const MetricValues& metrics) {
    const double value = monitor_.take(epoch, metrics);
    const bool is_best =
        monitor_.is_better(value, monitor_.best() ? monitor_.best() : options_.baseline);
    if (is_best) monitor_.note_best(value);
    return is_best;
  }
  const Monitor& monitor() const { return monitor_; }
  void restore(std::string_view state) {
    take_state(monitor_, kUser, state, [&](const Json& json) { monitor_.restore(json); });
  }

 private:
  static constexpr std::string_view kUser = "best_model";

  BestModelOptions options_;
  Monitor monitor_;
};

BestModel::BestModel(BestModelOptions options)
    : impl_(std::make_unique<Impl>(std::move(options))) {}
BestModel::~BestModel() = default;
BestModel::BestModel(BestModel&&) noexcept = default;
BestModel& BestModel::operator=(BestModel&&) noexcept = default;

bool BestModel::update(std::int64_t epoch, const MetricValues& metrics) {
  return impl_->update(epoch, metrics);
}
std::optional<double> BestModel::best() const { return impl_->monitor().best(); }
std::optional<std::int64_t> BestModel::best_epoch() const { return impl_->monitor().best_epoch(); }
std::string BestModel::save() const { return impl_->monitor().save().dump(); }
void BestModel::restore(std::string_view state) { impl_->restore(state); }

}  // namespace cohort
