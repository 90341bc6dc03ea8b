// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/internal/flat_map_base.h"

#include "cohort/core/error.h"
#include "cohort/data/internal/nest_codec.h"

namespace cohort::data {

Nest FlatMapBase::structure() const {
  {
    const Lock lock(mutex_);
    if (structure_) return *structure_;
  }
  return spec().structure;
}

void FlatMapBase::note_structure(const Nest& structure) const {
  const Lock lock(mutex_);
  if (!structure_) structure_ = structure;
  Nest::check_same_structure(*structure_, structure,
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
    NodePtr made = node_.dataset_function()->call(input_structure_, element);
    const StageContext context = context_.made_of(index, made->options());
    return std::make_unique<OpenDataset>(node_, std::move(made), context);
  } catch (...) {
    Error error = current_error();
    // An out_of_range error would look like the end of the data.
    if (error.code() == ErrorCode::out_of_range) {
      error = Error(ErrorCode::invalid_argument, error.message(), error.cause());
    }
    throw std::move(error).during("opening the dataset of element " + std::to_string(index) +
                                  " of " + std::string(node_.op()));
  }
}

}  // namespace cohort::data
