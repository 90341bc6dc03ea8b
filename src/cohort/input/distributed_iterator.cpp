// SPDX-License-Identifier: Apache-2.0
#include "cohort/input/distributed_dataset.h"

#include <string_view>
#include <utility>

#include "cohort/core/call_site.h"
#include "cohort/core/error.h"
#include "cohort/input/iterators/distributed_iterator_state.h"

namespace cohort {
namespace {

constexpr std::string_view kDraws = "draws from an iterator";

}  // namespace

std::string DistributedSpec::to_string() const {
  if (!is_wrapped) return component.to_string();
  std::string text = "PerReplica(";
  for (std::size_t i = 0; i < num_components; ++i) {
    text += (i > 0 ? ", " : "") + component.to_string();
  }
  return text + ")";
}

const DistributedElement& DistributedOptional::get_value() const {
  COHORT_CHECK(value_.has_value(), ErrorCode::invalid_argument,
               "[input.optional] expected an optional with a value, got an empty one of ",
               spec_.to_string());
  return *value_;
}

DistributedIterator::DistributedIterator(std::unique_ptr<input::DistributedIteratorState> pass)
    : state_(std::move(pass)) {}
DistributedIterator::~DistributedIterator() = default;
DistributedIterator::DistributedIterator(DistributedIterator&&) noexcept = default;
DistributedIterator& DistributedIterator::operator=(DistributedIterator&&) noexcept = default;

const DistributedSpec& DistributedIterator::element_spec() const {
  return state_->distribution().spec();
}

std::optional<DistributedElement> DistributedIterator::try_next() {
  const internal::CallSite site(kDraws);
  return state_->next(/*hands_out_all=*/false);
}

DistributedElement DistributedIterator::get_next() {
  std::optional<DistributedElement> element = try_next();
  COHORT_CHECK(element.has_value(), ErrorCode::out_of_range,
               "[input.get_next] the distributed dataset has ended");
  return std::move(*element);
}

DistributedOptional DistributedIterator::get_next_as_optional() {
  const internal::CallSite site(kDraws);
  return {element_spec(), state_->next(/*hands_out_all=*/true)};
}

Bytes DistributedIterator::save() const {
  const internal::CallSite site("saves the position of an iterator");
  return state_->save();
}

void DistributedIterator::restore(std::span<const std::byte> position) {
  const internal::CallSite site("restores the position of an iterator");
  state_->restore(position);
}

}  // namespace cohort
