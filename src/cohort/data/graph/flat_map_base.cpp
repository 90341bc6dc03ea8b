// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/graph/flat_map_base.h"

#include "cohort/core/error.h"
#include "cohort/data/graph/nest_codec.h"

namespace cohort::data {
namespace {

// Flags in a position. Positions of earlier releases have the first one only.
constexpr std::uint8_t kInputHasEnded = 1;
constexpr std::uint8_t kHasPass = 2;
constexpr std::uint8_t kKnowsPass = 4;

}  // namespace

Nest FlatMapBase::structure() const {
  std::optional<Nest> noted = structure_.get();
  return noted ? *std::move(noted) : spec().structure;
}

void FlatMapBase::note_structure(const Nest& structure) const {
  std::optional<Nest> noted = structure_.get();
  if (!noted) noted = structure_.offer(structure);
  Nest::check_same_structure(*noted, structure,
                             "[data." + std::string(op()) + "] an element of a made dataset");
}

ElementSpec FlatMapBase::make_spec() const {
  if (known_spec_) return *known_spec_;
  try {
    return function_->element_spec(input());
  } catch (...) {
    throw current_error().during("finding the element spec of " + std::string(op()));
  }
}

Attributes FlatMapBase::function_attributes() const {
  Attributes all = function_->attributes(input(), op());
  all.emplace("spec", nest_of(spec()));
  return all;
}

bool OpenDataset::next(Fields& fields) {
  if (!stage_->next(fields)) return false;
  if (!is_checked_) owner_.note_structure(node_->structure());
  is_checked_ = true;
  return true;
}

std::unique_ptr<OpenDataset> DatasetOpener::open(const Fields& element, std::uint64_t index) {
  try {
    once_.call([this] { input_structure_ = node_.input().structure(); });
    NodePtr made;
    {
      const CallScope scope(random_, index);
      made = node_.dataset_function()->call(input_structure_, element);
    }
    const StageContext context = context_.made_of(index, made->options(), random_.seed);
    return std::make_unique<OpenDataset>(node_, std::move(made), context);
  } catch (...) {
    throw call_error("opening the dataset of element " + std::to_string(index) + " of " +
                     std::string(node_.op()));
  }
}

void DatasetOpener::describe_position(Position& at, bool& is_input_at_end) {
  const std::optional<std::uint64_t> pass = context_.pass().get();
  auto flags = static_cast<std::uint8_t>(kKnowsPass | (pass ? kHasPass : 0) |
                                         (is_input_at_end ? kInputHasEnded : 0));
  at(flags);
  at.check(flags <= (kInputHasEnded | kHasPass | kKnowsPass), "a position in made datasets");
  is_input_at_end = (flags & kInputHasEnded) != 0;
  const bool has_pass = (flags & kHasPass) != 0;
  std::uint64_t number = pass.value_or(0);
  if (has_pass) at(Fixed{number});
  if (!at.is_restored() || (flags & kKnowsPass) == 0) return;
  context_.pass().set(has_pass ? std::optional(number) : std::nullopt);
}

}  // namespace cohort::data
