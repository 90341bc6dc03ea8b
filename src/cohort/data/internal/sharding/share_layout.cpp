// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/internal/sharding/share_layout.h"

#include <algorithm>
#include <memory>

#include "cohort/data/dataset.h"
#include "cohort/data/internal/stage.h"

namespace cohort::data {

ShareLayout::ShareLayout(const Share& share, std::int64_t count) : share_(share), count_(count) {
  if (share_.batch_size == 0) share_.batch_size = 1;
  if (share_.drop_remainder && count_ > 0) count_ -= count_ % share_.batch_size;
  before_.push_back(0);
  for (std::int64_t number = 0; number < share_.parts; ++number) {
    const std::int64_t step = (share_.batch_size + share_.parts - 1) / share_.parts;
    const std::int64_t begin = std::min(of_worker(number) % share_.parts * step, share_.batch_size);
    before_.push_back(before_.back() + std::min(step, share_.batch_size - begin));
  }
  if (count_ < 0) return;
  const std::int64_t all = count_ / share_.batch_size * share_.parts;
  full_minibatches_ =
      std::max<std::int64_t>(0, (all - share_.index + share_.num_shards - 1) / share_.num_shards);
  full_elements_ = full_minibatches_ / share_.parts * before_.back() +
                   before_[static_cast<std::size_t>(full_minibatches_ % share_.parts)];
}

std::int64_t ShareLayout::minibatches() const {
  if (count_ < 0) return count_;
  const std::int64_t batches =
      count_ / share_.batch_size + (count_ % share_.batch_size != 0 ? 1 : 0);
  return batches * share_.parts;
}

ShareLayout::Rows ShareLayout::rows(std::int64_t minibatch) const {
  const std::int64_t first = minibatch / share_.parts * share_.batch_size;
  const std::int64_t length =
      count_ < 0 ? share_.batch_size : std::min(share_.batch_size, count_ - first);
  const std::int64_t step = (length + share_.parts - 1) / share_.parts;
  const std::int64_t begin = std::min(minibatch % share_.parts * step, length);
  return {.begin = first + begin, .end = first + std::min(begin + step, length)};
}

Selection::Run ShareLayout::run(std::int64_t index) const {
  if (count_ >= 0 && index >= full_elements_) return run_in_last_batch(index - full_elements_);
  const std::int64_t period = before_.back();
  if (period == 0) return {};
  const std::int64_t rest = index % period;
  const auto after = std::upper_bound(before_.begin(), before_.end(), rest);
  const std::int64_t number = after - before_.begin() - 1;
  const Rows found = rows(of_worker(index / period * share_.parts + number));
  const std::int64_t inside = rest - before_[static_cast<std::size_t>(number)];
  return {.position = found.begin + inside, .length = found.length() - inside};
}

Selection::Run ShareLayout::run_in_last_batch(std::int64_t index) const {
  for (std::int64_t number = full_minibatches_; has(of_worker(number)); ++number) {
    const Rows found = rows(of_worker(number));
    if (index < found.length()) {
      return {.position = found.begin + index, .length = found.length() - index};
    }
    index -= found.length();
  }
  return {};
}

namespace {

// For ops whose element number i is made from element number i of every input.
std::int64_t fewest(const Node& node, const StageContext& context) {
  std::int64_t count = kInfiniteCardinality;
  for (const NodePtr& input : node.inputs()) {
    const std::int64_t of_input = count_of_run(*input, context);
    if (of_input == kUnknownCardinality) return of_input;
    if (of_input >= 0 && (count < 0 || of_input < count)) count = of_input;
  }
  return count;
}

std::int64_t count_of_files(const Node& reader, const StageContext& context) {
  const std::unique_ptr<Stage> stage = reader.start(context.selecting(nullptr));
  if (stage->rows() == nullptr) return kUnknownCardinality;
  return stage->rows()->rows_left().value_or(kUnknownCardinality);
}

}  // namespace

std::int64_t count_of_run(const Node& node, const StageContext& context) {
  const std::int64_t known = node.cardinality();
  if (known != kUnknownCardinality) return known;
  if (node.op() == "shuffle" || is_element_wise(node)) return fewest(node, context);
  return is_seekable_reader(node) ? count_of_files(node, context) : kUnknownCardinality;
}

}  // namespace cohort::data
