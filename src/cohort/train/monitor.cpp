// SPDX-License-Identifier: Apache-2.0
#include "cohort/train/monitor.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <utility>
#include <vector>

#include "cohort/core/error.h"
#include "cohort/core/spelling.h"

namespace cohort::train {
namespace {

// Words in names of metrics of which small or large values are good.
constexpr std::array kSmallWords{"loss", "error", "mse", "mae", "rmse", "perplexity"};
constexpr std::array kLargeWords{"accuracy", "acc", "auc", "precision", "recall", "f1", "top_k"};

// Whether one of the words is in the name as a word of its own: "acc" in "val_acc", not in "pace".
template <class Words>
bool has_word(const std::string& name, const Words& words) {
  const auto is_letter = [](char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0; };
  return std::ranges::any_of(words, [&](std::string_view word) {
    for (auto at = name.find(word); at != std::string::npos; at = name.find(word, at + 1)) {
      const std::size_t end = at + word.size();
      if ((at == 0 || !is_letter(name[at - 1])) && (end == name.size() || !is_letter(name[end])))
        return true;
    }
    return false;
  });
}

bool is_small_good(std::string_view user, const std::string& name, MonitorMode mode) {
  if (mode == MonitorMode::min) return true;
  if (mode == MonitorMode::max) return false;
  COHORT_CHECK(mode == MonitorMode::automatic, ErrorCode::invalid_argument, "[train.", user,
               "] expected a MonitorMode, got the number ", static_cast<int>(mode));
  const bool is_small = has_word(name, kSmallWords), is_large = has_word(name, kLargeWords);
  COHORT_CHECK(is_small != is_large, ErrorCode::invalid_argument, "[train.", user,
               "] expected a metric whose name tells whether small or large values are good, got '",
               name, "'; set .mode to MonitorMode::min or MonitorMode::max");
  return is_small;
}

}  // namespace

Monitor::Monitor(std::string_view user, std::string name, MonitorMode mode, double min_delta)
    : user_(user),
      name_(std::move(name)),
      is_small_good_(is_small_good(user_, name_, mode)),
      min_delta_(min_delta) {
  COHORT_CHECK(min_delta >= 0 && std::isfinite(min_delta), ErrorCode::invalid_argument, "[train.",
               user_, "] expected min_delta >= 0, got ", min_delta);
}

bool Monitor::is_better(double value, std::optional<double> than) const {
  if (std::isnan(value)) return false;
  if (!than) return true;
  return is_small_good_ ? value + min_delta_ < *than : value - min_delta_ > *than;
}

double Monitor::take(std::int64_t epoch, const MetricValues& metrics) {
  COHORT_CHECK(epoch > epoch_, ErrorCode::invalid_argument, "[train.", user_,
               "] expected an epoch after ", epoch_, ", got ", epoch,
               "; call update() once at the end of each epoch, and restore() the state with the "
               "values that belong to it");
  const auto found = metrics.find(name_);
  if (found == metrics.end()) {
    QuotedNames known;
    std::vector<std::string> names;
    for (const auto& [name, value] : metrics) {
      known.add(name);
      names.push_back(name);
    }
    internal::throw_error(ErrorCode::not_found, "[train.", user_, "] expected metric '", name_,
                          "', got ", names.empty() ? "no metrics" : known.text(),
                          did_you_mean(name_, names),
                          "; call update() in epochs that have it, or set .monitor to another");
  }
  epoch_ = epoch;
  return found->second;
}

void Monitor::note_best(double value) {
  best_ = value;
  best_epoch_ = epoch_;
}

Json Monitor::save() const {
  return {{"kind", user_},
          {"version", 1},
          {"monitor", name_},
          {"mode", is_small_good_ ? "min" : "max"},
          {"epoch", epoch_},
          {"best", best_ ? json_of(*best_) : Json(nullptr)},
          {"best_epoch", best_epoch_ ? Json(*best_epoch_) : Json(nullptr)}};
}

Json Monitor::parse(std::string_view state) const {
  Json json = Json::parse(state, nullptr, /*allow_exceptions=*/false);
  const auto field = [&](const char* name) {
    return json.is_object() && json.contains(name) ? json[name].dump() : "nothing";
  };
  COHORT_CHECK(field("kind") == Json(user_).dump() && field("version") == "1",
               ErrorCode::invalid_argument, "[train.", user_,
               "] expected a state that save() has written, of version 1, got one of kind ",
               field("kind"), " and version ", field("version"));
  const std::string mode = is_small_good_ ? "\"min\"" : "\"max\"";
  COHORT_CHECK(field("monitor") == Json(name_).dump() && field("mode") == mode,
               ErrorCode::invalid_argument, "[train.", user_, "] expected the state of metric '",
               name_, "' with mode ", mode, ", got that of ", field("monitor"), " with mode ",
               field("mode"), "; begin without this state, or monitor what it is of");
  return json;
}

void Monitor::restore(const Json& state) {
  const auto epoch = state.at("epoch").get<std::int64_t>();
  const Json& best = state.at("best");
  const Json& best_epoch = state.at("best_epoch");
  std::optional<double> value;
  std::optional<std::int64_t> value_epoch;
  if (!best.is_null()) value = double_of(best);
  if (!best_epoch.is_null()) value_epoch = best_epoch.get<std::int64_t>();
  epoch_ = epoch;
  best_ = value;
  best_epoch_ = value_epoch;
}

}  // namespace cohort::train
