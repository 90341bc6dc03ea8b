// SPDX-License-Identifier: Apache-2.0
#include "cohort/checkpoint/checkpoint.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "cohort/checkpoint/contents.h"
#include "cohort/coordinator/cluster_coordinator.h"
#include "cohort/core/error.h"
#include "cohort/core/spelling.h"

namespace cohort {
namespace {

using Json = nlohmann::json;

// A value of the program as JSON. `kind` is for messages.
template <class T>
SavedState state_of(const std::string& name, T& value, const char* kind) {
  return {.save =
              [&value, name] {
                try {
                  return Json(value).dump();
                } catch (const Json::exception& error) {
                  internal::throw_error(ErrorCode::invalid_argument,
                                        "[checkpoint.write] expected text in UTF-8 as '", name,
                                        "', got other bytes (", error.what(),
                                        "); save bytes as a tensor of uint8");
                }
              },
          .restore =
              [&value, name, kind](const std::string& text) {
                const Json json = Json::parse(text);
                const bool fits = std::is_same_v<T, std::string> ? json.is_string()
                                  : std::is_integral_v<T>        ? json.is_number_integer()
                                                                 : json.is_number();
                COHORT_CHECK(fits, ErrorCode::invalid_argument, "[checkpoint.read] expected ", kind,
                             " as '", name, "', got ", text,
                             "; add a value of the type that was saved");
                value = json.get<T>();
              }};
}

checkpoint::SavedPosition position_of(DistributedIterator& iterator) {
  return {.save = [&iterator] { return iterator.save(); },
          .restore = [&iterator](std::span<const std::byte> bytes) { iterator.restore(bytes); }};
}

checkpoint::SavedPosition position_of(Iterator& iterator) {
  return {.save = [&iterator] { return iterator.save(); },
          .restore = [&iterator](std::span<const std::byte> bytes) { iterator.restore(bytes); }};
}

}  // namespace

void Restored::assert_consumed() const {
  if (unused.empty()) return;
  QuotedNames names;
  for (const std::string& name : unused) names.add(name);
  internal::throw_error(ErrorCode::failed_precondition,
                        "[checkpoint.assert_consumed] expected to use all of checkpoint '", path,
                        "', got nothing that takes ", names.text(),
                        "; make and add it before read()");
}

Checkpoint::Checkpoint() : contents_(std::make_unique<checkpoint::Contents>(nullptr)) {}
Checkpoint::Checkpoint(Strategy& strategy)
    : contents_(std::make_unique<checkpoint::Contents>(&strategy)) {}
Checkpoint::~Checkpoint() = default;
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;

Checkpoint& Checkpoint::add(const Variable& variable) {
  contents_->add(variable);
  return *this;
}

Checkpoint& Checkpoint::add(std::string name, DistributedIterator& iterator) {
  contents_->add(std::move(name), position_of(iterator));
  return *this;
}

Checkpoint& Checkpoint::add(std::string name, Iterator& iterator) {
  contents_->add(std::move(name), position_of(iterator));
  return *this;
}

Checkpoint& Checkpoint::add(std::string name, const DistributedDataset& dataset) {
  SavedState state{.save = [dataset] { return std::to_string(dataset.next_pass()); },
                   .restore =
                       [dataset, name](const std::string& text) {
                         const Json json = Json::parse(text);
                         COHORT_CHECK(json.is_number_unsigned(), ErrorCode::invalid_argument,
                                      "[checkpoint.read] expected the number of a pass as '", name,
                                      "', got ", text, "; add what was saved by this name");
                         dataset.set_next_pass(json.get<std::uint64_t>());
                       }};
  contents_->add(std::move(name), std::move(state));
  return *this;
}

Checkpoint& Checkpoint::add(std::string name, const PerWorkerDataset& dataset) {
  contents_->add(
      std::move(name),
      checkpoint::SavedPosition{
          .save = [dataset] { return dataset.save(); },
          .restore = [dataset](std::span<const std::byte> bytes) { dataset.restore(bytes); }});
  return *this;
}

Checkpoint& Checkpoint::add(std::string name, std::int64_t& value) {
  SavedState state = state_of(name, value, "an integer");
  contents_->add(std::move(name), std::move(state));
  return *this;
}

Checkpoint& Checkpoint::add(std::string name, double& value) {
  SavedState state = state_of(name, value, "a number");
  // JSON has no other numbers.
  state.save = [&value, name] {
    COHORT_CHECK(std::isfinite(value), ErrorCode::invalid_argument,
                 "[checkpoint.write] expected a finite number as '", name, "', got ", value);
    return Json(value).dump();
  };
  contents_->add(std::move(name), std::move(state));
  return *this;
}

Checkpoint& Checkpoint::add(std::string name, std::string& value) {
  SavedState state = state_of(name, value, "a text");
  contents_->add(std::move(name), std::move(state));
  return *this;
}

Checkpoint& Checkpoint::add(std::string name, SavedState state) {
  contents_->add(std::move(name), std::move(state));
  return *this;
}

Checkpoint& Checkpoint::add_tensors(std::vector<std::pair<std::string, at::Tensor>> tensors) {
  contents_->add(std::move(tensors));
  return *this;
}

void Checkpoint::write(const std::string& path, std::int64_t step) const {
  contents_->write(path, step);
}

Restored Checkpoint::read(const std::string& path, const RestoreOptions& options) const {
  return contents_->read(path, options);
}

Restored Checkpoint::restored() const { return contents_->restored(); }

}  // namespace cohort
